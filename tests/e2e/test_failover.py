"""Nodes and engines that die, freeze or drain under load: every answer is the undisturbed one."""

from __future__ import annotations

import os
import signal
import threading
import time
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass

import psutil
import pytest

from node.client import Client
from node.demo.local_mesh import LocalMesh
from node.demo.workload import load_subjects, make_workload
from rumormill.v1 import inference_pb2

pytestmark = [pytest.mark.e2e, pytest.mark.soak, pytest.mark.timeout(600)]

STREAMS = 8
REQUESTS = 16
MAX_TOKENS = 24
SAMPLING = inference_pb2.Sampling(max_tokens=MAX_TOKENS, ignore_eos=True)


@dataclass(frozen=True, slots=True)
class Answered:
    """One complete answer, and the longest time between two of its tokens."""

    token_ids: tuple[int, ...]
    routes: tuple[str, ...]
    longest_gap_s: float


class Load:
    """Prompts that enter at the last two nodes, `STREAMS` at a time, and are answered anywhere."""

    def __init__(self, mesh: LocalMesh, victim: int) -> None:
        self._clients = [mesh.client(2), mesh.client(3)]
        self._victim = mesh.nodes[victim].node_id
        self.prompts = [w.prompt[-1200:] for w in make_workload(load_subjects(), REQUESTS, 3, seed=5)]
        self.victim_streams = threading.Semaphore(0)
        """Released by each stream that has got a token from the node that will be struck."""

    def close(self) -> None:
        for client in self._clients:
            client.close()

    def run(self, policy: str) -> list[Answered]:
        with ThreadPoolExecutor(STREAMS) as pool:
            return list(pool.map(self._ask, range(REQUESTS), self.prompts, [policy] * REQUESTS))

    def _ask(self, index: int, prompt: str, policy: str) -> Answered:
        tokens: list[int] = []
        routes: list[str] = []
        last, gap, reason = 0.0, 0.0, 0
        client: Client = self._clients[index % len(self._clients)]
        for response in client.generate(prompt, SAMPLING, policy=policy):
            if response.route.node and not response.finish_reason:
                routes.append(response.route.node)
            if response.token_ids:
                assert response.first_index == len(tokens), "a token was lost or doubled"
                now = time.monotonic()
                gap = max(gap, now - last) if tokens else 0.0
                last = now
                tokens += response.token_ids
                if routes[-1] == self._victim and len(tokens) == 2:
                    self.victim_streams.release()
            reason = response.finish_reason
        assert reason == inference_pb2.FINISH_REASON_LENGTH
        return Answered(tuple(tokens), tuple(routes), gap)


@pytest.fixture(scope="module")
def mesh() -> Iterator[LocalMesh]:
    """Four nodes, of which the tests below break the first two, each test with what the last one left."""
    with LocalMesh(4, ["--threads", "1", "--kv-memory-mib", "128"], report=lambda text: None) as local_mesh:
        yield local_mesh


def disturbed(mesh: LocalMesh, victim: int, disturb: Callable[[], None]) -> list[Answered]:
    """Answers of a run in which `disturb` strikes while the victim streams; equal to the calm run's."""
    load = Load(mesh, victim)
    try:
        calm = load.run("local")
        with ThreadPoolExecutor(1) as pool:
            struck = pool.submit(load.run, "round-robin")
            for _ in range(2):
                assert load.victim_streams.acquire(timeout=120), "the victim got no requests"
            disturb()
            stormy = struck.result()
    finally:
        load.close()
    assert [a.token_ids for a in stormy] == [a.token_ids for a in calm]
    moved = sum(len(answer.routes) > 1 for answer in stormy)
    print(f"{moved} answers moved; longest gap {max(a.longest_gap_s for a in stormy):.2f} s")
    return stormy


def engine_of(mesh: LocalMesh) -> psutil.Process:
    return psutil.Process(mesh.nodes[0].process.pid).children()[0]


def test_a_killed_engine_is_replaced_and_restarts(mesh: LocalMesh) -> None:
    before = engine_of(mesh).pid
    stormy = disturbed(mesh, 0, lambda: engine_of(mesh).kill())
    assert any(len(answer.routes) > 1 for answer in stormy), "nothing was struck"
    deadline = time.monotonic() + 60
    with mesh.client(0) as client:
        while (served_by := ask(client)) != mesh.nodes[0].node_id:
            assert time.monotonic() < deadline, f"{served_by} still answers for a node whose engine died"
    assert engine_of(mesh).pid != before


def test_a_frozen_node_is_not_waited_for(mesh: LocalMesh) -> None:
    pid = mesh.nodes[0].process.pid
    try:
        stormy = disturbed(mesh, 0, lambda: os.kill(pid, signal.SIGSTOP))
    finally:
        os.kill(pid, signal.SIGCONT)
    assert any(len(answer.routes) > 1 for answer in stormy), "nothing was struck"


def test_a_killed_node_is_not_missed(mesh: LocalMesh) -> None:
    stormy = disturbed(mesh, 1, mesh.nodes[1].process.kill)
    assert any(len(answer.routes) > 1 for answer in stormy), "nothing was struck"


def test_a_drained_node_finishes_and_ends_with_status_0(mesh: LocalMesh) -> None:
    disturbed(mesh, 0, mesh.nodes[0].process.terminate)
    assert mesh.nodes[0].process.wait(timeout=60) == 0


def ask(client: Client) -> str:
    """Which node answers a short prompt that asks for the node it enters at."""
    return list(client.generate("Hello", inference_pb2.Sampling(max_tokens=2), policy="local"))[-1].route.node
