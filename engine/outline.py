"""The shape of a prefix cache, for people who look at it: its most used runs of blocks, no tokens."""

from __future__ import annotations

import heapq
import itertools
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import Protocol


class CachedBlock(Protocol):
    """One node of the tree, as far as its shape goes."""

    @property
    def block_hash(self) -> int: ...

    @property
    def children(self) -> Mapping[bytes, CachedBlock]: ...

    @property
    def hits(self) -> int: ...

    @property
    def references(self) -> int: ...


@dataclass(frozen=True, slots=True)
class CachedRun:
    """Blocks that follow one another without a branch.

    `parent` is the index of the run it continues, None where prompts start; `depth` blocks come before it.
    `hits`: how often a request found its first block cached; `running`: how many use that block now.
    """

    parent: int | None
    depth: int
    blocks: int
    hits: int
    running: int
    first_hash: int
    last_hash: int


def outline(roots: Iterable[CachedBlock], limit: int) -> tuple[CachedRun, ...]:
    """At most `limit` runs, the most used first and each after its parent; costs as much as they are long."""
    order = itertools.count()
    open_runs: list[tuple[int, int, int | None, int, CachedBlock]] = []

    def open_children(of: CachedBlock, parent: int | None, depth: int) -> None:
        for child in heapq.nlargest(limit, of.children.values(), key=lambda block: block.hits):
            heapq.heappush(open_runs, (-child.hits, next(order), parent, depth, child))

    for root in roots:
        open_children(root, None, 0)
    runs: list[CachedRun] = []
    while open_runs and len(runs) < limit:
        _, _, parent, depth, first = heapq.heappop(open_runs)
        last, blocks = first, 1
        while len(last.children) == 1:
            last, blocks = next(iter(last.children.values())), blocks + 1
        runs.append(
            CachedRun(parent, depth, blocks, first.hits, first.references, first.block_hash, last.block_hash)
        )
        open_children(last, len(runs) - 1, depth + blocks)
    return tuple(runs)
