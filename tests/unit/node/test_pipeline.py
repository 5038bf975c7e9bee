"""One request through failures: the answer is always the undisturbed one, no token twice, none missing."""

from __future__ import annotations

import asyncio
import random
from collections.abc import Sequence
from contextlib import aclosing
from dataclasses import replace
from typing import Any, cast

import pytest

from engine.block_hash import BlockHasher
from engine.interface import FinishReason, SamplingParams, TokenOutput
from engine.tokenizer import Tokenizer
from node.admission import Admission
from node.errors import DeadlineExceededError, DrainingError, OverloadedError, UnavailableError
from node.forwarding import Forwarder
from node.in_flight import InFlight
from node.metrics import Metrics
from node.observer import Observer
from node.own_blocks import OwnBlocks
from node.pipeline import Pipeline
from node.prompt_hasher import PromptHasher
from node.request import Chunk, Done, Event, PromptScored, Request, Route
from node.tracing import PassingTracer
from overlay.core.router import Router
from overlay.core.types import NodeId
from tests.unit.node.fakes import (
    BUSY,
    INVALID,
    NAMESPACE,
    REFUSES,
    SELF,
    FakeEngine,
    FakeHearsay,
    FakePeers,
    FakeTokenizer,
    continuation,
    logprobs_of,
    peer_view,
)

PROMPT = (1, 2, 3, 4, 5, 6, 7, 8)
A, B, C = NodeId("a"), NodeId("b"), NodeId("c")


class World:
    """A pipeline between fakes. Peers are preferred: they claim to have the whole prompt cached."""

    def __init__(self, engine: FakeEngine | None = None, **behaviour: int | Exception | None) -> None:
        self.engine = engine or FakeEngine()
        self.tokenizer = FakeTokenizer()
        self.peers = FakePeers({NodeId(name): value for name, value in behaviour.items()})
        views = tuple(peer_view(node_id) for node_id in self.peers.behaviour)
        self.hearsay = FakeHearsay(views, dict.fromkeys(self.peers.behaviour, 2))
        self.now = 100.0
        self.router = Router(self.hearsay, NAMESPACE.model, "longest-prefix", random.Random(1))
        self.admission = Admission(1000, 100)
        self.in_flight = InFlight()
        self.metrics = Metrics()
        self.sent: list[NodeId] = []
        self.pipeline = Pipeline(
            SELF,
            self.engine,
            cast(Tokenizer, self.tokenizer),
            PromptHasher(BlockHasher(b"k" * 16, 4), OwnBlocks()),
            self.router,
            cast(Forwarder, self.peers),
            self.admission,
            self.in_flight,
            Observer(SELF, self.metrics, PassingTracer(), clock=lambda: self.now),
            on_decision=lambda request, decision: None,
            on_sent=lambda node_id, hashes: self.sent.append(node_id),
            clock=lambda: self.now,
        )

    async def ask(self, max_tokens: int = 6, stop: Sequence[str] = ()) -> list[Event]:
        events = self.pipeline.generate(request(max_tokens, stop))
        return [event async for event in events]

    def count(self, outcome: str, route: str) -> float | None:
        labels = {"outcome": outcome, "route": route}
        return self.metrics.registry.get_sample_value("rumormill_requests_total", labels)


def request(max_tokens: int = 6, stop: Sequence[str] = ()) -> Request:
    return Request("r1", PROMPT, SamplingParams(max_tokens=max_tokens), NAMESPACE, tuple(stop))


def tokens_of(events: Sequence[Event]) -> list[int]:
    """The delivered tokens; every index must be the next one."""
    tokens: list[int] = []
    for event in events:
        if isinstance(event, Chunk):
            assert event.first_index == len(tokens)
            tokens.extend(event.token_ids)
    return tokens


def routes_of(events: Sequence[Event]) -> list[NodeId]:
    return [event.node for event in events if isinstance(event, Route)]


async def test_alone_a_node_answers_itself() -> None:
    world = World()
    events = await world.ask()
    assert tokens_of(events) == continuation(PROMPT, 6)
    done = events[-1]
    assert isinstance(done, Done)
    assert (done.reason, done.usage.completion_tokens) == (FinishReason.LENGTH, 6)
    assert world.count("ok", "local") == 1


@pytest.mark.parametrize("delivered", range(7))
@pytest.mark.parametrize("second", [None, 0, 2])
async def test_a_peer_that_dies_at_any_token_changes_nothing(delivered: int, second: int | None) -> None:
    world = World(a=delivered, b=second)
    events = await world.ask()
    assert tokens_of(events) == continuation(PROMPT, 6)
    assert isinstance(events[-1], Done)
    assert events[-1].usage.completion_tokens == 6
    assert world.peers.open == world.engine.open == world.in_flight.count == 0


@pytest.mark.parametrize("delivered", range(7))
async def test_every_option_goes_to_whoever_continues(delivered: int) -> None:
    """Log-probabilities too come unbroken, and a stop token ends the answer wherever it is met."""
    expected = continuation(PROMPT, 5)
    asked = replace(
        request(20), sampling=SamplingParams(20, 0.7, logprobs=2, stop_token_ids=frozenset({expected[4]}))
    )
    asked = replace(asked, client="ada", priority=1)
    world = World(a=delivered)
    events = [event async for event in world.pipeline.generate(asked, timeout_s=60.0)]
    assert tokens_of(events) == expected
    assert "".join(event.text for event in events if isinstance(event, Chunk)) == world.tokenizer.decode(
        expected[:4]
    ), "the stop token itself is not shown"
    logprobs = [each for event in events if isinstance(event, Chunk) for each in event.logprobs]
    assert logprobs == [logprobs_of(token, 2)[0] for token in expected]
    assert isinstance(events[-1], Done)
    assert events[-1].reason == FinishReason.STOP
    for submitted in world.engine.submitted:
        assert (submitted.client, submitted.priority, submitted.deadline) == ("ada", 1, world.now + 60.0)
        assert replace(submitted.sampling, max_tokens=20) == asked.sampling


@pytest.mark.parametrize("delivered", range(4))
async def test_a_prompt_is_scored_once_whoever_does_it(delivered: int) -> None:
    asked = replace(request(3), sampling=SamplingParams(3, prompt_logprobs=1), policy="round-robin")
    world = World(a=delivered)
    events = [event async for event in world.pipeline.generate(asked)]
    assert tokens_of(events) == continuation(PROMPT, 3)
    scored = [event.logprobs for event in events if isinstance(event, PromptScored)]
    assert scored == [tuple(logprobs_of(token, 1)[0] for token in PROMPT[1:])]
    kinds = [type(event) for event in events]
    assert kinds.index(PromptScored) < kinds.index(Chunk)


async def test_a_peer_that_scores_too_little_has_failed() -> None:
    world = World(a=None)
    world.peers.lies = [TokenOutput("r1", 0, tuple(continuation(PROMPT, 1)), 0)]
    asked = replace(request(), sampling=SamplingParams(6, prompt_logprobs=0), policy="round-robin")
    events = [event async for event in world.pipeline.generate(asked)]
    assert tokens_of(events) == continuation(PROMPT, 6)
    assert world.router.quarantine.remaining(A, world.now) > 0


async def test_a_peer_that_finds_the_request_wrong_is_not_quarantined() -> None:
    world = World(a=INVALID)
    assert tokens_of(await world.ask()) == continuation(PROMPT, 6)
    assert world.router.quarantine.remaining(A, world.now) == 0
    world.peers.behaviour[A] = None
    assert routes_of(await world.ask()) == [A]


async def test_a_peer_that_leaves_log_probabilities_out_has_failed() -> None:
    world = World(a=None)
    world.peers.lies = [TokenOutput("r1", 0, (1,), 4)]
    asked = replace(request(), sampling=SamplingParams(6, logprobs=0))
    events = [event async for event in world.pipeline.generate(asked)]
    assert tokens_of(events) == continuation(PROMPT, 6)
    assert world.router.quarantine.remaining(A, world.now) > 0


async def test_busy_and_failing_peers_are_passed_over_then_it_runs_here() -> None:
    world = World(a=BUSY, b=REFUSES, c=REFUSES)
    events = await world.ask()
    assert tokens_of(events) == continuation(PROMPT, 6)
    assert len(world.peers.asked) == 2, "at most two peers are tried"
    assert routes_of(events)[-1] == SELF


async def test_a_failed_peer_is_quarantined_and_a_busy_one_is_not_for_long() -> None:
    world = World(a=REFUSES)
    await world.ask()
    assert world.router.quarantine.remaining(A, world.now) > 0
    await world.ask()
    assert world.peers.asked == [A], "a quarantined peer is not asked"
    world.now += 1
    world.peers.behaviour[A] = None
    assert routes_of(await world.ask()) == [A]
    assert world.router.quarantine.remaining(A, world.now) == 0

    busy = World(b=BUSY)
    await busy.ask()
    await busy.ask()
    assert busy.peers.asked == [B], "the lease holds"
    busy.now += 0.6
    await busy.ask()
    assert busy.peers.asked == [B, B], "the lease ends by itself"


async def test_an_engine_that_dies_is_replaced_by_a_peer() -> None:
    world = World(FakeEngine(deaths=1), a=None)
    world.hearsay.matches.clear()
    events = await world.ask()
    assert routes_of(events) == [SELF, A]
    assert tokens_of(events) == continuation(PROMPT, 6)


async def test_an_engine_that_dies_alone_is_tried_again_once() -> None:
    assert tokens_of(await World(FakeEngine(deaths=1)).ask()) == continuation(PROMPT, 6)
    with pytest.raises(UnavailableError):
        await World(FakeEngine(deaths=2)).ask()


async def test_a_client_that_goes_away_frees_everything() -> None:
    for world in (World(), World(a=None)):
        async with aclosing(world.pipeline.generate(request())) as events:
            async for event in events:
                if isinstance(event, Chunk):
                    break
            assert world.engine.open + world.peers.open == 1
        assert world.engine.open == world.peers.open == world.in_flight.count == 0


async def test_a_stop_string_ends_the_answer_and_the_work() -> None:
    world = World()
    text = FakeTokenizer().decode(continuation(PROMPT, 6))
    events = await world.ask(stop=[text[2:4]])
    assert "".join(event.text for event in events if isinstance(event, Chunk)) == text[:2]
    assert isinstance(events[-1], Done)
    assert events[-1].reason is FinishReason.STOP
    assert world.engine.open == 0


async def test_a_full_node_uses_its_peers_and_alone_refuses() -> None:
    full = FakeEngine(queued=2000)
    world = World(full, a=None)
    world.hearsay.matches.clear()
    assert routes_of(await world.ask()) == [A]
    with pytest.raises(OverloadedError) as refusal:
        await World(full).ask()
    assert refusal.value.retry_after_s == pytest.approx(1.0)


async def test_a_draining_node_takes_nothing_new() -> None:
    world = World()
    world.admission.draining = True
    with pytest.raises(DrainingError):
        await world.ask()


async def test_peers_of_another_model_or_draining_are_never_asked() -> None:
    world = World(a=None, b=None, c=None)
    load: Any = world.hearsay.load
    world.hearsay.views = (
        peer_view(A, model=b"other"),
        peer_view(B, load=type(load)(load.epoch, 1, draining=True)),
        peer_view(C, load=type(load)(load.epoch, 1, accepting=False)),
    )
    assert routes_of(await world.ask()) == [SELF]


async def test_a_peer_that_skips_or_adds_tokens_is_given_up() -> None:
    for lie in (TokenOutput("r1", 3, (1,), 0), TokenOutput("r1", 0, tuple(range(99)), 0)):
        world = World(a=None)
        world.peers.lies = [lie]
        events = await world.ask()
        assert tokens_of(events) == continuation(PROMPT, 6)
        assert routes_of(events) == [A, SELF]
        assert world.router.quarantine.remaining(A, world.now) > 0


async def test_a_peer_cannot_claim_more_cached_tokens_than_the_prompt_has() -> None:
    world = World(a=None)
    world.peers.lies = [TokenOutput("r1", 0, tuple(continuation(PROMPT, 1)), 10_000)]
    done = (await world.ask())[-1]
    assert isinstance(done, Done)
    assert done.usage.cached_tokens == len(PROMPT)


async def test_an_answer_whose_last_word_was_lost_is_not_continued_past_its_end() -> None:
    end = continuation(PROMPT, 3)[-1]
    world = World(a=3)
    world.tokenizer.eos_token_ids = frozenset({end})
    events = await world.ask()
    assert tokens_of(events) == continuation(PROMPT, 3)
    assert isinstance(events[-1], Done)
    assert events[-1].reason is FinishReason.STOP
    assert world.engine.submitted == []


async def test_a_resumed_answer_says_how_much_of_it_was_delivered() -> None:
    world = World(a=4)
    await world.ask()
    assert [request.resumed_tokens for request in world.engine.submitted] == [4]


async def test_text_held_back_is_shown_when_the_last_word_was_lost() -> None:
    world = World(a=6)
    text = FakeTokenizer().decode(continuation(PROMPT, 6))
    events = await world.ask(stop=[text[-1] + "zzz"])
    assert "".join(event.text for event in events if isinstance(event, Chunk)) == text


async def test_an_answer_once_begun_is_finished_by_a_full_node() -> None:
    world = World(FakeEngine(queued=4000), a=3)
    events = await world.ask()
    assert routes_of(events) == [A, SELF]
    assert tokens_of(events) == continuation(PROMPT, 6)


async def test_a_cancelled_request_is_counted_as_such() -> None:
    world = World()
    world.engine.stuck = asyncio.Event()
    asking = asyncio.create_task(world.ask())
    await world.engine.entered.wait()
    asking.cancel()
    with pytest.raises(asyncio.CancelledError):
        await asking
    assert world.count("cancelled", "local") == 1
    assert world.count("failed", "local") is None
    assert world.engine.open == world.in_flight.count == 0


async def test_a_node_without_a_free_slot_uses_its_peers_and_alone_refuses() -> None:
    world = World(a=None)
    world.admission.max_requests = 0
    world.hearsay.matches.clear()
    assert routes_of(await world.ask()) == [A]
    alone = World()
    alone.admission.max_requests = 0
    with pytest.raises(OverloadedError):
        await alone.ask()


class Late:
    """Moves a world's time past every deadline once so many tokens were delivered."""

    def __init__(self, world: World, after: int) -> None:
        self._world = world
        self._after = after

    async def ask(self, timeout_s: float = 5.0) -> list[Event]:
        events: list[Event] = []
        async with aclosing(self._world.pipeline.generate(request(), timeout_s)) as answer:
            async for event in answer:
                events.append(event)
                if len(tokens_of(events)) == self._after:
                    self._world.now += timeout_s
        return events


@pytest.mark.parametrize("delivered", [0, 2])
async def test_a_peer_whose_call_ran_into_the_deadline_is_not_blamed(delivered: int) -> None:
    world = World(a=delivered)
    late = Late(world, delivered)
    if delivered:
        events = await late.ask()
        assert tokens_of(events) == continuation(PROMPT, 6)[:delivered]
        assert isinstance(events[-1], Done)
        assert events[-1].reason is FinishReason.DEADLINE
        assert world.count("ok", "forwarded") == 1
    else:
        with pytest.raises(DeadlineExceededError):
            await late.ask()
        assert world.count("deadline", "forwarded") == 1
    assert not world.router.quarantine.remaining(A, world.now)
    assert world.engine.submitted == []


async def test_the_engine_is_told_the_deadline_and_its_end_is_the_answers() -> None:
    world = World()
    world.engine.expires_after = 3
    events = await Late(world, 3).ask()
    assert world.engine.submitted[0].deadline == 105.0
    assert tokens_of(events) == continuation(PROMPT, 6)[:3]
    assert isinstance(events[-1], Done)
    assert events[-1].reason is FinishReason.DEADLINE


async def test_a_deadline_before_the_first_token_is_an_error_of_its_own() -> None:
    world = World()
    world.engine.expires_after = 0
    with pytest.raises(DeadlineExceededError):
        await Late(world, 0).ask()
    assert world.count("deadline", "local") == 1


async def test_a_peer_cannot_end_an_answer_by_a_deadline_that_has_not_passed() -> None:
    world = World(a=3)
    world.peers.lies = [TokenOutput("r1", 0, (), 4, FinishReason.DEADLINE)]
    events = await world.ask()
    assert tokens_of(events) == continuation(PROMPT, 6)
    assert routes_of(events) == [A, SELF]
    assert world.router.quarantine.remaining(A, world.now)
