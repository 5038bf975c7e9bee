"""What the mesh costs a client: forwarding beside local execution, and leaving in the middle of a stream.

Each request is measured beside one that ran the other way, in turns, on the same two nodes; the network
between them is loopback, so all the difference is this project's. Prints a table, then a JSON line a figure.
"""

from __future__ import annotations

import argparse
import json
import statistics
import time
from collections.abc import Iterator
from dataclasses import dataclass

from node.client import Client
from node.demo.local_mesh import LocalMesh
from rumormill.v1 import admin_pb2, inference_pb2

PROMPT = "The tide comes in, the tide goes out, and nobody who lives by the sea can say why. " * 3
STREAM_TOKENS = 64


@dataclass(frozen=True)
class Figure:
    """`baseline` is what it would be without the mesh's part; `goal` the most that `value` may be."""

    name: str
    value: float
    unit: str
    baseline: float
    goal: float

    def line(self) -> str:
        """As JSON; a ratio of 1 reaches the goal."""
        ratio = self.goal / max(self.value, 1e-9)
        fields = {"name": self.name, "value": round(self.value, 4), "unit": self.unit}
        return json.dumps(
            {**fields, "baseline": round(self.baseline, 4), "ratio": round(ratio, 2), "goal": self.goal}
        )


@dataclass(frozen=True)
class Timing:
    """One answer: where it was computed, seconds to the first token, and from there to the last."""

    node: str
    first_s: float
    rest_s: float


def ask(client: Client, tokens: int) -> Timing:
    """Turns decide where it runs, so that neighbours in time are compared."""
    sampling = inference_pb2.Sampling(max_tokens=tokens, ignore_eos=True)
    started = time.perf_counter()
    times, node = [], ""
    for response in client.generate(PROMPT, sampling, policy="round-robin"):
        node = response.route.node or node
        times += [time.perf_counter()] * bool(response.token_ids)
    return Timing(node, times[0] - started, times[-1] - times[0])


def compare(client: Client, entry: str, count: int, tokens: int) -> tuple[list[Timing], list[Timing]]:
    """As many forwarded answers as local ones."""
    timings = [ask(client, tokens) for _ in range(2 * count)]
    forwarded = [timing for timing in timings if timing.node != entry]
    return forwarded, [timing for timing in timings if timing.node == entry]


def hop(client: Client, entry: str, count: int) -> Iterator[Figure]:
    """What forwarding adds to the first token, and to each one after it."""
    compare(client, entry, 5, 1)  # both nodes have the prompt cached from here on
    forwarded, local = compare(client, entry, count, 1)
    there, here = (1000 * statistics.median(t.first_s for t in each) for each in (forwarded, local))
    yield Figure("forwarding, first token", there - here, "ms", here, 2.0)
    forwarded, local = compare(client, entry, max(count // 10, 5), STREAM_TOKENS)
    steps = STREAM_TOKENS - 1
    there, here = (1000 * statistics.median(t.rest_s for t in each) / steps for each in (forwarded, local))
    yield Figure("forwarding, each further token", there - here, "ms", here, 1.0)


def leaving(client: Client, streams: int) -> Iterator[Figure]:
    """How long the blocks of streams stay in use whose clients go away."""
    sampling = inference_pb2.Sampling(max_tokens=4000, ignore_eos=True)
    answers = [client.generate(f"{index} {PROMPT}", sampling, policy="local") for index in range(streams)]
    for answer in answers:
        next(response for response in answer if response.token_ids)
    left = time.perf_counter()
    for answer in answers[: streams // 2]:
        answer.close()
    while running(client.status()) > streams - streams // 2:
        time.sleep(0.005)
    freed_s = time.perf_counter() - left
    for answer in answers:
        answer.close()
    yield Figure(f"half of {streams} streams leave: blocks freed after", freed_s, "s", 0.0, 1.0)


def running(status: admin_pb2.GetStatusResponse) -> int:
    return status.load.running


def main() -> None:
    """Runs on two nodes of one thread each."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--requests", type=int, default=150)
    parser.add_argument("--streams", type=int, default=200)
    options = parser.parse_args()
    node_options = ["--threads", "1", "--max-running", str(options.streams + 8)]
    with LocalMesh(2, node_options, report=print) as mesh, mesh.client(0) as client:
        figures = list(hop(client, mesh.nodes[0].node_id, options.requests))
        figures += leaving(client, options.streams)
    for figure in figures:
        verdict = "reached" if figure.value <= figure.goal else "MISSED"
        print(f"{figure.name:50} {figure.value:8.3f} {figure.unit:3} goal {figure.goal} {verdict}")
    for figure in figures:
        print(figure.line())


if __name__ == "__main__":
    main()
