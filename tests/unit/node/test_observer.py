"""Every metric moves when what it counts happens, and log lines tell a request's story by its id."""

from __future__ import annotations

import logging
from typing import Any

import pytest

from engine.errors import EngineDiedError, PromptTooLongError, QueueFullError
from engine.interface import FinishReason, TokenOutput
from node.errors import DrainingError, OverloadedError, UnavailableError
from node.forwarding import PeerBusyError, PeerFailedError
from node.logs import fields_of
from node.metrics import Metrics
from node.observer import Observer
from node.request import Chunk
from node.tracing import PassingTracer
from overlay.core.types import NodeId
from tests.unit.node.observations import PEER, PROMPT_TOKENS, SELF, decision, done, request, route


class World:
    """An observer on a clock that only moves when told."""

    def __init__(self) -> None:
        self.now = 0.0
        self.metrics = Metrics()
        self.observer = Observer(SELF, self.metrics, PassingTracer(), lambda: self.now)

    def value(self, name: str, **labels: str) -> float:
        return self.metrics.registry.get_sample_value(name, labels) or 0.0

    def answer(self, target: NodeId, error: BaseException | None = None) -> None:
        """A request that gets two tokens, 0.2 s and 0.05 s apart, and then ends."""
        with self.observer.entered(request()) as entered:
            entered.saw(route(target))
            with entered.attempt(decision(target), request()) as attempt:
                for index, pause in enumerate((0.2, 0.05)):
                    self.now += pause
                    attempt.output(TokenOutput("r1", index, (7,), 4))
                    entered.saw(Chunk("x", (7,), index))
                if error is not None:
                    raise error
            entered.saw(done(target))


@pytest.fixture
def world() -> World:
    return World()


@pytest.mark.parametrize(("target", "where"), [(SELF, "local"), (PEER, "forwarded")])
def test_an_answer_is_counted_and_timed(world: World, target: NodeId, where: str) -> None:
    world.answer(target)
    assert world.value("rumormill_requests_total", outcome="ok", route=where) == 1
    assert world.value("rumormill_ttft_seconds_sum") == pytest.approx(0.2)
    assert world.value("rumormill_ttft_seconds_count") == 1
    assert world.value("rumormill_itl_seconds_sum") == pytest.approx(0.05)
    assert world.value("rumormill_prompt_tokens_total", source="cached") == 4
    assert world.value("rumormill_prompt_tokens_total", source="computed") == PROMPT_TOKENS - 4
    assert world.value("rumormill_predicted_cached_tokens_total") == 6


@pytest.mark.parametrize(
    ("error", "outcome"),
    [
        (GeneratorExit(), "cancelled"),
        (OverloadedError(1.0), "overloaded"),
        (QueueFullError("full"), "overloaded"),
        (DrainingError(), "draining"),
        (PromptTooLongError("long"), "invalid"),
        (UnavailableError("gone"), "failed"),
        (RuntimeError("a bug"), "failed"),
    ],
)
def test_every_end_has_its_outcome(world: World, error: BaseException, outcome: str) -> None:
    with pytest.raises(type(error)):
        world.answer(SELF, error)
    assert world.value("rumormill_requests_total", outcome=outcome, route="local") == 1


def test_a_client_that_leaves_after_the_last_word_was_answered(world: World) -> None:
    entered = world.observer.entered(request())
    entered.saw(route(SELF))
    entered.saw(done(SELF))
    entered.__exit__(GeneratorExit, GeneratorExit(), None)
    assert world.value("rumormill_requests_total", outcome="ok", route="local") == 1


@pytest.mark.parametrize(
    ("error", "cause"),
    [(PeerBusyError(0.1), "busy"), (PeerFailedError("gone"), "failed"), (EngineDiedError("x"), "engine")],
)
def test_a_request_that_moves_on_is_counted_by_cause(world: World, error: Exception, cause: str) -> None:
    with pytest.raises(type(error)):
        world.answer(PEER, error)
    assert world.value("rumormill_moves_total", cause=cause) == 1


def test_only_what_this_engine_answered_counts_as_served(world: World) -> None:
    served = world.observer.served
    world.answer(PEER)
    assert (served.requests, served.generated_tokens) == (0, 0)
    world.answer(SELF)
    with world.observer.forwarded_here("r2", PEER, 10, "") as serving:
        serving.output(TokenOutput("r2", 0, (1, 2), 10))
        serving.output(TokenOutput("r2", 2, (), 10, FinishReason.STOP))
    assert (served.requests, served.prompt_tokens) == (2, PROMPT_TOKENS + 10)
    assert (served.cached_tokens, served.generated_tokens) == (14, 4)


def test_peers_requests_are_counted_by_what_became_of_them(world: World) -> None:
    world.observer.refused("r1")
    with world.observer.forwarded_here("r2", PEER, 10, ""):
        pass
    assert world.value("rumormill_forwarded_here_total", outcome="busy") == 1
    assert world.value("rumormill_forwarded_here_total", outcome="accepted") == 1


def lines(caplog: pytest.LogCaptureFixture) -> list[tuple[str, dict[str, Any]]]:
    return [(record.getMessage(), fields_of(record)) for record in caplog.records]


def test_the_request_id_is_in_every_line_here_and_there(
    world: World, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level(logging.INFO)
    parent = "00-0af7651916cd43dd8448eb211c80319c-b7ad6b7169203331-01"
    with world.observer.entered(request(parent)) as entered:
        entered.saw(route(PEER))
        with pytest.raises(PeerFailedError), entered.attempt(decision(PEER), request()):
            raise PeerFailedError("b stopped")
        with world.observer.forwarded_here("r1", SELF, 8, parent) as serving:
            serving.output(TokenOutput("r1", 0, (1,), 4, FinishReason.STOP))
        entered.saw(done(PEER))
    said = lines(caplog)
    assert [message for message, _ in said] == ["request moves on", "forwarded request", "request"]
    assert all(fields["request_id"] == "r1" for _, fields in said)
    assert all(fields["trace_id"] == "0af7651916cd43dd8448eb211c80319c" for _, fields in said)
    last = said[-1][1]
    assert (last["outcome"], last["node"], last["moves"], last["cached_tokens"]) == ("ok", "bbbbbbbb", 1, 4)
    assert last["reason"] == "cost: 3 ms expected"
