"""The testbed's workload: what it counts as failed, as lost, and as moved."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Iterator
from typing import cast

import grpc

from node.client import Client, ClientError
from node.testbed.report import figures_of, phases_of
from node.testbed.workload import Asked, Workload
from rumormill.v1 import inference_pb2

TOKENS = 3
PROMPTS = ["prompt"]


class FakeClient:
    """Answers as its node is told to: in full, from two nodes, too little, with an error, or when let go."""

    def __init__(self, address: str) -> None:
        self.behaviour = address
        self.closed = False
        self.let_go = threading.Event()
        self.asked = threading.Event()

    def generate(
        self, prompt: str, sampling: object, timeout_s: float | None = None
    ) -> Iterator[inference_pb2.GenerateResponse]:
        self.asked.set()
        if self.behaviour == "hanging":
            assert self.let_go.wait(60)
            raise ClientError("it died", grpc.StatusCode.UNAVAILABLE)
        for index in range(TOKENS - (self.behaviour == "short")):
            node = "b" if self.behaviour == "moving" and index else "a"
            yield inference_pb2.GenerateResponse(
                route=inference_pb2.Route(node=node), token_ids=[7], first_index=index
            )
        if self.behaviour == "failing":
            raise ClientError("full", grpc.StatusCode.RESOURCE_EXHAUSTED)
        yield inference_pb2.GenerateResponse(
            finish_reason=inference_pb2.FINISH_REASON_LENGTH,
            usage=inference_pb2.Usage(prompt_tokens=10, cached_tokens=5),
        )

    def close(self) -> None:
        self.closed = True


class Nodes:
    """The clients of a workload, by address."""

    def __init__(self) -> None:
        self.clients: dict[str, FakeClient] = {}

    def connect(self, address: str) -> Client:
        self.clients[address] = FakeClient(address)
        return cast(Client, self.clients[address])

    def workload(self, *behaviours: str) -> Workload:
        return Workload({b: b for b in behaviours}, self.connect, PROMPTS, rate=1000, max_tokens=TOKENS)


def until(condition: Callable[[], bool]) -> None:
    deadline = time.monotonic() + 30
    while not condition():
        assert time.monotonic() < deadline
        time.sleep(0.001)


def test_every_entry_is_asked_and_every_outcome_is_told() -> None:
    nodes = Nodes()
    with nodes.workload("whole", "moving", "short", "failing") as workload:
        until(lambda: len({asked.entry for asked in workload.asked()}) == 4)
    outcomes = {asked.entry: asked for asked in workload.asked()}
    assert outcomes["whole"].error == outcomes["moving"].error == ""
    assert "2 tokens of 3" in outcomes["short"].error
    assert outcomes["failing"].error.startswith("RESOURCE_EXHAUSTED")
    assert outcomes["whole"].served_by == ["a"]
    assert outcomes["moving"].served_by == ["a", "b"]
    assert all(client.closed for client in nodes.clients.values())


def test_only_what_entered_at_a_struck_node_is_lost() -> None:
    nodes = Nodes()
    with nodes.workload("hanging", "failing") as workload:
        hanging = nodes.clients["hanging"]
        assert hanging.asked.wait(30)
        workload.struck("hanging")
        hanging.let_go.set()
        until(lambda: any(asked.entry == "failing" for asked in workload.asked()))
    figures = figures_of(workload.asked())
    assert figures.lost >= 1
    assert figures.failed == figures.requests - figures.lost >= 1
    assert figures.errors == ("failing: RESOURCE_EXHAUSTED: full",)


def test_nothing_enters_at_a_node_that_is_avoided_until_it_is_back() -> None:
    nodes = Nodes()
    with nodes.workload("whole", "moving") as workload:
        workload.avoid("moving")
        mark = time.monotonic()
        until(lambda: sum(asked.started > mark for asked in workload.asked()) > 5)
        assert not any(a.entry == "moving" and a.started > mark + 0.5 for a in workload.asked())
        workload.enter_at("moving", "moving")
        back = time.monotonic()
        until(lambda: any(a.entry == "moving" and a.started > back for a in workload.asked()))


def asked(started: float, ended: float, **values: object) -> Asked:
    request = Asked("node", started, ended)
    for name, value in values.items():
        setattr(request, name, value)
    return request


def test_phases_are_told_apart_by_what_was_under_way() -> None:
    requests = [asked(0, 1), asked(1, 3), asked(3, 4), asked(5, 7), asked(7, 8)]
    counts = {name: f.requests for name, f in phases_of(requests, struck_at=2, mended_at=6).items()}
    assert counts == {"before": 1, "during": 3, "after": 1, "all": 5}


def test_figures_are_those_of_what_was_answered() -> None:
    requests = [
        asked(0, 1, ttft_s=0.1, longest_gap_s=0.2, prompt_tokens=10, cached_tokens=5, served_by=["a"]),
        asked(0, 1, ttft_s=0.3, longest_gap_s=0.9, prompt_tokens=30, cached_tokens=25, served_by=["a", "b"]),
        asked(0, 9, longest_gap_s=8.0, error="UNAVAILABLE: gone", lost_entry=True),
        asked(0, 9, longest_gap_s=8.0, error="UNAVAILABLE: gone"),
    ]
    figures = figures_of(requests)
    assert (figures.requests, figures.failed, figures.lost, figures.moved) == (4, 1, 1, 1)
    assert (figures.ttft_p50_ms, figures.ttft_p95_ms, figures.longest_gap_s) == (300, 300, 0.9)
    assert figures.cached_share == 0.75
    assert figures_of([]).ttft_p95_ms == 0
