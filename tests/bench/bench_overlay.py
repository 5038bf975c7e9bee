"""`make bench-overlay`: the prefix index and gossip beside plain Python, and what gossip costs on the wire.

A table, then one JSON line per figure. Each index runs in a process of its own, whose growth is its memory;
lookups are timed in processor time, which other work on the machine disturbs least.
"""

from __future__ import annotations

import argparse
import json
import random
import statistics
import struct
import time
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import ProcessPoolExecutor
from dataclasses import asdict, dataclass
from hashlib import sha256
from multiprocessing import get_context
from pathlib import Path

from overlay.core.digest import Digester
from overlay.core.hashes import to_array
from overlay.core.limits import MAX_HASHES_PER_FRAME
from overlay.core.messages import Delta
from overlay.core.prefix_index import PrefixIndex
from overlay.core.types import BlockHash, Epoch, NodeId, Version
from overlay.net.codec import decode, encode
from overlay.sim.report import Workload, run_overlay
from overlay.sim.wire_size import wire_size
from rumormill.v1 import overlay_pb2 as pb

CHAIN = 512
"""Blocks of a prompt of 8,192 tokens."""

SHARED_CHAINS = 64
SHARED_PER_PEER = 16


@dataclass(frozen=True)
class Figure:
    """One line: `ratio` says how many times better than the baseline."""

    name: str
    value: float
    unit: str
    baseline: float | None
    ratio: float | None
    goal: str | None


def against(name: str, value: float, unit: str, baseline: float | None, goal: str | None) -> Figure:
    """A figure of which less is better."""
    return Figure(name, value, unit, baseline, baseline / value if baseline is not None else None, goal)


class DictOfSets:
    """What one would write first: block -> the set of its owners."""

    def __init__(self) -> None:
        self._owners: dict[int, set[str]] = {}

    def add(self, owner: str, blocks: Sequence[int]) -> None:
        for block in blocks:
            self._owners.setdefault(block, set()).add(owner)

    def match(self, blocks: Sequence[int]) -> dict[str, int]:
        depths: dict[str, int] = {}
        active: set[str] | None = None
        for depth, block in enumerate(blocks):
            owners = self._owners.get(block, set())
            active = owners if active is None else active & owners
            if not active:
                break
            for owner in active:
                depths[owner] = depth + 1
        return depths


def chains(peers: int, blocks: int) -> Iterator[tuple[int, list[list[int]]]]:
    """What each peer has cached: chains of a prompt's length, a quarter of them common to many peers."""
    rng = random.Random(1)
    shared = [[rng.getrandbits(64) for _ in range(CHAIN)] for _ in range(SHARED_CHAINS)]
    for peer in range(peers):
        own = [[rng.getrandbits(64) for _ in range(CHAIN)] for _ in range(blocks // CHAIN - SHARED_PER_PEER)]
        yield peer, rng.sample(shared, SHARED_PER_PEER) + own


def lookups(kind: str, peers: int, blocks: int, questions: int) -> dict[str, float]:
    """Fills one index, and asks it for whole prompts: milliseconds, and bytes per distinct block."""
    index: PrefixIndex | DictOfSets = PrefixIndex() if kind == "index" else DictOfSets()
    rng = random.Random(2)
    asked: list[list[BlockHash]] = []
    distinct, before = set[int](), _memory()
    kept = []
    for peer, cached in chains(peers, blocks):
        flat = [block for chain in cached for block in chain]
        if isinstance(index, PrefixIndex):
            kept.append(to_array(index.add(NodeId(f"peer{peer}"), flat)))  # as a replica's own list
        else:
            index.add(f"peer{peer}", flat)
            kept.append(to_array(flat))
        for chain in rng.sample(cached, 8):
            depth = rng.randrange(1, CHAIN + 1)
            unknown = [rng.getrandbits(64) for _ in range(CHAIN - depth)]
            asked.append([BlockHash(block) for block in chain[:depth] + unknown])
    memory = _memory() - before
    for part in kept:
        distinct.update(part.tolist())
    rng.shuffle(asked)
    taken = []
    for question in (asked * (1 + questions // len(asked)))[:questions]:
        began = time.thread_time_ns()
        index.match(question)
        taken.append((time.thread_time_ns() - began) / 1e6)
    cuts = statistics.quantiles(taken, n=100)
    return {"p50": cuts[49], "p99": cuts[98], "bytes": memory / len(distinct)}


def _memory() -> int:
    """Resident bytes of this process."""
    return int(Path("/proc/self/statm").read_text().split()[1]) * 4096


def apart(kind: str, peers: int, blocks: int, questions: int) -> dict[str, float]:
    with ProcessPoolExecutor(1, mp_context=get_context("spawn")) as pool:
        return pool.submit(lookups, kind, peers, blocks, questions).result()


def milliseconds(work: Callable[[], object], rounds: int = 15) -> float:
    """The median."""
    taken = []
    for _ in range(rounds):
        began = time.perf_counter()
        work()
        taken.append((time.perf_counter() - began) * 1e3)
    return statistics.median(taken)


def index_figures(peers: int, blocks: int, questions: int) -> list[Figure]:
    ours, plain = (apart(kind, peers, blocks, questions) for kind in ("index", "dict"))
    what = f"{CHAIN} hashes, {peers} peers x {blocks} blocks"
    return [
        against(f"lookup p50, {what}", ours["p50"], "ms", plain["p50"], None),
        against(f"lookup p99, {what}", ours["p99"], "ms", plain["p99"], "< 0.5"),
        against("index memory per block", ours["bytes"], "bytes", plain["bytes"], "< 120"),
    ]


def set_figures() -> list[Figure]:
    rng = random.Random(3)
    blocks = [rng.getrandbits(64) for _ in range(100_000)]
    hashes, digester = to_array(blocks), Digester(b"k" * 16)
    part = hashes[:MAX_HASHES_PER_FRAME]
    listed = part.tolist()
    delta = Delta(None, Epoch(1 << 40), Version(7), Version(8), part, part[:0])
    data = encode(delta).SerializeToString()
    layout = struct.Struct(f"<{len(listed)}Q")
    packed = layout.pack(*listed)
    return [
        against(
            "digest of 100,000 blocks", milliseconds(lambda: digester.digest(hashes)), "ms",
            milliseconds(lambda: sha256(struct.pack("<100000Q", *sorted(blocks))).digest()), None,
        ),
        against(
            f"delta of {len(part):,} blocks, encode", milliseconds(lambda: encode(delta).SerializeToString()),
            "ms", milliseconds(lambda: layout.pack(*listed)), None,
        ),
        against(
            f"delta of {len(part):,} blocks, decode", milliseconds(lambda: decode(pb.Frame.FromString(data))),
            "ms", milliseconds(lambda: layout.unpack(packed)), None,
        ),
    ]  # fmt: skip


def wire_figures() -> list[Figure]:
    """In virtual time, so the same on any machine; the baseline tells each change in a frame of its own."""
    changing = run_overlay(6, workload=Workload(steady_s=100.0, changes_per_s=10.0)).bytes_per_change
    idle = run_overlay(2, workload=Workload(steady_s=100.0)).bytes_per_node_per_s * 2
    one = to_array([1 << 63])
    alone = wire_size(Delta(None, Epoch(1 << 40), Version(1000), Version(1001), one, one[:0]))
    return [
        against("wire bytes per changed block, 20 a second", changing or 0.0, "bytes", alone, "<= 12"),
        against("wire bytes per second of an idle pair", idle, "bytes/s", None, "<= 300"),
    ]


def main() -> None:
    parser = argparse.ArgumentParser(description="Measures the prefix index and gossip.")
    parser.add_argument("--peers", type=int, default=128)
    parser.add_argument("--blocks", type=int, default=32_768, help="cached by each peer")
    parser.add_argument("--questions", type=int, default=5_000)
    options = parser.parse_args()
    results = [
        *index_figures(options.peers, options.blocks, options.questions),
        *set_figures(),
        *wire_figures(),
    ]
    for figure in results:
        beside = f"{figure.baseline:10.3f} {figure.ratio:6.1f}x" if figure.baseline is not None else " " * 18
        print(f"{figure.name:52} {figure.value:10.3f} {figure.unit:8} {beside} {figure.goal or ''}")
    for figure in results:
        print(json.dumps(asdict(figure)))


if __name__ == "__main__":
    main()
