"""Sends one workload through a mesh under one policy after the other, from cold caches each time."""

from __future__ import annotations

import statistics
import time
from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass

from node.client import Client, ClientError
from node.demo.local_mesh import LocalMesh
from node.demo.workload import WorkloadRequest
from rumormill.v1 import inference_pb2

SETTLE_SECONDS = 10.0


@dataclass(frozen=True, slots=True)
class Result:
    """What became of one request; `error` is empty when it was answered."""

    request: WorkloadRequest
    policy: str
    entry: str
    served_by: str
    prompt_tokens: int
    predicted_cached_tokens: int
    cached_tokens: int
    ttft_s: float
    text: str
    error: str = ""


@dataclass(frozen=True, slots=True)
class PolicyRun:
    """All results of one policy."""

    policy: str
    results: tuple[Result, ...]
    gossip_bytes: int

    @property
    def answered(self) -> list[Result]:
        return [result for result in self.results if not result.error]

    @property
    def failed(self) -> int:
        return len(self.results) - len(self.answered)

    @property
    def hit_rate(self) -> float:
        """Cached prompt tokens over all prompt tokens."""
        prompt_tokens = sum(result.prompt_tokens for result in self.answered)
        return sum(result.cached_tokens for result in self.answered) / prompt_tokens if prompt_tokens else 0.0

    @property
    def ttft_mean_s(self) -> float:
        return statistics.fmean(result.ttft_s for result in self.answered) if self.answered else 0.0

    @property
    def ttft_p95_s(self) -> float:
        times = sorted(result.ttft_s for result in self.answered)
        return times[min(round(0.95 * len(times)), len(times) - 1)] if times else 0.0


class Runner:
    """Runs workloads; `on_result` is told of every answer as it comes."""

    def __init__(self, mesh: LocalMesh, concurrency: int, on_result: Callable[[Result], None]) -> None:
        self._clients = [mesh.client(index) for index in range(len(mesh.nodes))]
        self._ids = [node.node_id for node in mesh.nodes]
        self._concurrency = concurrency
        self._on_result = on_result

    def close(self) -> None:
        for client in self._clients:
            client.close()

    def warm_up(self, prompt: str) -> None:
        """One request on every node, so that no policy pays for what a process does only once."""
        for client in self._clients:
            list(client.generate(prompt, inference_pb2.Sampling(max_tokens=4), policy="local"))

    def run(self, policy: str, workload: Sequence[WorkloadRequest], max_tokens: int) -> PolicyRun:
        """The whole workload, in order, `concurrency` at a time, from empty caches."""
        self._start_cold()
        before = self._gossip_bytes()
        with ThreadPoolExecutor(self._concurrency) as pool:
            try:
                pending = [pool.submit(self._ask, policy, request, max_tokens) for request in workload]
                results = tuple(future.result() for future in pending)
            except BaseException:
                pool.shutdown(wait=False, cancel_futures=True)
                self.close()
                raise
        return PolicyRun(policy, results, self._gossip_bytes() - before)

    def _ask(self, policy: str, request: WorkloadRequest, max_tokens: int) -> Result:
        started = time.monotonic()
        first_token_s, text = 0.0, ""
        last = inference_pb2.GenerateResponse()
        error = ""
        sampling = inference_pb2.Sampling(max_tokens=max_tokens, stop=["\n"])
        try:
            for response in self._clients[request.entry].generate(request.prompt, sampling, policy=policy):
                if response.token_ids and not first_token_s:
                    first_token_s = time.monotonic() - started
                text += response.text
                last = response
        except ClientError as failure:
            error = str(failure)
        result = Result(
            request,
            policy,
            self._ids[request.entry],
            last.route.node,
            last.usage.prompt_tokens,
            last.route.predicted_cached_tokens,
            last.usage.cached_tokens,
            first_token_s,
            text.strip(),
            error,
        )
        self._on_result(result)
        return result

    def _start_cold(self) -> None:
        """Empties every cache, and waits until every node knows that of every other."""
        for client in self._clients:
            client.flush_cache()
        deadline = time.monotonic() + SETTLE_SECONDS
        while any(not _sees_only_empty(client) for client in self._clients) and time.monotonic() < deadline:
            time.sleep(0.05)

    def _gossip_bytes(self) -> int:
        return sum(client.status().gossip_bytes["sent"] for client in self._clients)


def _sees_only_empty(client: Client) -> bool:
    return not client.status().cached_blocks and not any(peer.cached_blocks for peer in client.peers())
