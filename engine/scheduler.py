"""Continuous batching: which tokens of which sequences the next step computes.

Running streams go first, one token each; what is left of the step's token budget goes to prompts, in
chunks (chunked prefill, arXiv 2308.16369), those of the least served client first. When blocks run out, the
youngest sequence of the most served client gives its own back and recomputes them later (preemption by
recomputation, arXiv 2309.06180); it also gives way to a client that was served far less and finds no place.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Final

from engine.prefix_cache import Node, PrefixCache
from engine.sequence import Sequence
from engine.waiting_queue import OUTPUT_WEIGHT, WaitingQueue

MAX_LOOK_AHEAD: Final = 64
"""Waiting sequences considered per step, should those before them wait for a prefix."""

QUANTUM: Final = 512
"""Tokens of service that a running sequence is ahead, beside what it would have to recompute, when it gives
way to one that waits; so at most half of the work is done twice."""


@dataclass(frozen=True, slots=True)
class Work:
    """Compute the next `count` tokens of a sequence; sample if those were its last.

    `copied`: a cached block to copy into the sequence's first private one before; in the order of the works,
    for a block that is read here may be written by the next.
    """

    sequence: Sequence
    count: int
    copied: int | None = None

    @property
    def samples(self) -> bool:
        """Whether this work reaches the end of the sequence, so that the next token can be sampled."""
        return self.count == self.sequence.uncomputed


class Scheduler:
    """Decides admission, chunking and preemption over one prefix cache."""

    def __init__(self, cache: PrefixCache, max_running: int) -> None:
        self._cache = cache
        self._max_running = max_running
        self._waiting = WaitingQueue()
        self._running: list[Sequence] = []
        self._copied: dict[Sequence, int] = {}
        self.preemptions = 0

    @property
    def running(self) -> int:
        """Sequences that hold blocks."""
        return len(self._running)

    @property
    def waiting(self) -> int:
        """Sequences that wait for admission."""
        return len(self._waiting)

    @property
    def decoding(self) -> int:
        """Running sequences that have one token to compute."""
        return sum(sequence.uncomputed == 1 for sequence in self._running)

    def queued_prefill_tokens(self) -> int:
        """Prompt tokens still to be computed, over running and waiting sequences."""
        running = sum(sequence.uncomputed for sequence in self._running if sequence.uncomputed > 1)
        return running + self._waiting.expected_prefill()

    def add(self, sequence: Sequence) -> None:
        """Queues a new sequence."""
        sequence.expected_prefill = len(sequence.token_ids) - self._cached_tokens(sequence)
        self._waiting.add(sequence)

    def schedule(self, prefill_tokens: int) -> list[Work]:
        """The next step's work, at most `prefill_tokens` tokens of it from prompts; empty when idle."""
        self._give_way()
        work = self._decodes()
        budget = prefill_tokens
        for sequence in self._prompts():
            count = min(sequence.uncomputed, budget)
            work.append(Work(sequence, count, self._copied.pop(sequence, None)))
            budget -= count
            if not budget:
                break
        return work

    def advance(self, work: Work) -> None:
        """Notes that a sequence's tokens are computed, and caches the blocks they filled."""
        sequence = work.sequence
        if work.samples:
            self._waiting.charge(sequence.request.client, OUTPUT_WEIGHT)
        sequence.computed += work.count
        size = self._cache.block_size
        while len(sequence.path) < sequence.computed // size:
            start = len(sequence.path) * size
            node = self._cache.insert(
                sequence.request.namespace,
                sequence.path[-1] if sequence.path else None,
                sequence.token_ids[start : start + size],
                sequence.private.pop(0),
            )
            sequence.path.append(node)

    def remove(self, sequence: Sequence) -> None:
        """Takes a finished or aborted sequence out and frees what it holds."""
        if sequence in self._running:
            self._running.remove(sequence)
            self._release(sequence)
        else:
            self._waiting.remove(sequence)

    def _give_way(self) -> None:
        """Preempts a sequence of the most served client if the least served one has no place."""
        least = self._waiting.first()
        if least is None or not self._running:
            return
        victim = self._by_service()[-1]
        lead = self._waiting.rank(victim) - self._waiting.rank(least)
        if lead > QUANTUM + victim.computed:
            newcomer = self._newcomer(set())
            if newcomer is not None and not self._has_place(*newcomer):
                self._preempt(victim)

    def _decodes(self) -> list[Work]:
        """One token for each running stream; those that get no block are preempted."""
        return [
            Work(sequence, 1)
            for sequence in self._by_service()
            if sequence.uncomputed == 1 and sequence in self._running and self._grow(sequence)
        ]

    def _prompts(self) -> Iterator[Sequence]:
        """Sequences with a prompt to compute; those that wait are admitted as they come up."""
        begun = deque(sequence for sequence in self._by_service() if sequence.uncomputed > 1)
        passed_over: set[Sequence] = set()
        admitting = len(self._running) < self._max_running
        while True:
            newcomer = self._newcomer(passed_over) if admitting else None
            if newcomer is not None and not (
                begun and self._waiting.rank(begun[0]) <= self._waiting.rank(newcomer[0])
            ):
                admitting = self._has_place(*newcomer)
                if admitting:
                    self._admit(*newcomer)
                    yield newcomer[0]
            elif begun:
                yield begun.popleft()
            else:
                return

    def _newcomer(self, passed_over: set[Sequence]) -> tuple[Sequence, list[Node]] | None:
        """The next to be admitted, with its cached prefix; those that wait for a prefix are passed over."""
        while len(passed_over) < MAX_LOOK_AHEAD:
            sequence = self._waiting.first(passed_over)
            if sequence is None:
                return None
            path = self._cached_path(sequence)
            if not self._is_being_computed(sequence, path):
                return sequence, path
            passed_over.add(sequence)
        return None

    def _by_service(self) -> list[Sequence]:
        """What runs, the least served client's first, then by age: the last gives its blocks back first."""
        return sorted(self._running, key=self._waiting.rank)

    def _grow(self, sequence: Sequence) -> bool:
        """Makes room for one more token; False when that took preempting the sequence itself."""
        if sequence.computed < sequence.block_count * self._cache.block_size:
            return True
        while (blocks := self._cache.allocate(1)) is None:
            victim = self._by_service()[-1]
            self._preempt(victim)
            if victim is sequence:
                return False
        sequence.private += blocks
        return True

    def _preempt(self, sequence: Sequence) -> None:
        self._running.remove(sequence)
        self._release(sequence)
        self.add(sequence)
        self.preemptions += 1

    def _is_being_computed(self, sequence: Sequence, path: list[Node]) -> bool:
        """Whether a running prompt will soon cache this sequence's next block: wait, don't do it twice."""
        size = self._cache.block_size
        depth = len(path)
        if depth >= self._cacheable_blocks(sequence):
            return False
        block = sequence.token_ids[depth * size : (depth + 1) * size]
        return any(
            other.uncomputed > 1
            and other.request.namespace == sequence.request.namespace
            and (not depth or (len(other.path) >= depth and other.path[depth - 1] is path[-1]))
            and other.token_ids[depth * size : (depth + 1) * size] == block
            for other in self._running
        )

    def _has_place(self, sequence: Sequence, path: list[Node]) -> bool:
        """Whether it can run too: blocks for all beside `path`, and a spare one per sequence that runs."""
        blocks = self._blocks(sequence) - sum(node.references > 0 for node in path)
        free = self._cache.available_blocks - len(self._running)
        return len(self._running) < self._max_running and blocks <= free

    def _admit(self, sequence: Sequence, path: list[Node]) -> None:
        """Gives a sequence its cached prefix, and blocks for the rest."""
        self._cache.acquire(path)
        blocks = self._cache.allocate(self._blocks(sequence) - len(path))
        if blocks is None:
            raise AssertionError("scheduler: blocks counted as available were not")
        self._waiting.remove(sequence)
        sequence.path, sequence.private = path, blocks
        sequence.computed = len(path) * self._cache.block_size
        self._begin_block(sequence)
        if sequence.cached_tokens is None:
            sequence.cached_tokens = sequence.computed
            self._waiting.charge(sequence.request.client, sequence.uncomputed)
        self._running.append(sequence)

    def _begin_block(self, sequence: Sequence) -> None:
        """Has its first private block begin as a copy of a cached one that starts with the same tokens."""
        found = self._closest(sequence, sequence.path)
        if found is not None:
            node, tokens = found
            self._copied[sequence] = node.block
            sequence.computed += tokens

    def _blocks(self, sequence: Sequence) -> int:
        """Blocks that hold all its tokens."""
        return -(-len(sequence.token_ids) // self._cache.block_size)

    def _release(self, sequence: Sequence) -> None:
        self._cache.release_private(sequence.private)
        self._cache.release(sequence.path)
        sequence.path, sequence.private = [], []
        sequence.computed = 0

    def _cached_tokens(self, sequence: Sequence) -> int:
        path = self._cached_path(sequence)
        found = self._closest(sequence, path)
        return len(path) * self._cache.block_size + (found[1] if found else 0)

    def _closest(self, sequence: Sequence, path: list[Node]) -> tuple[Node, int] | None:
        """The cached block after `path` that begins as the sequence goes on, and for how many tokens."""
        begin = len(path) * self._cache.block_size
        end = min(begin + self._cache.block_size, self._cacheable_tokens(sequence))
        rest = sequence.token_ids[begin:end]
        return self._cache.closest(sequence.request.namespace, path[-1] if path else None, rest)

    def _cached_path(self, sequence: Sequence) -> list[Node]:
        return self._cache.peek(
            sequence.request.namespace, sequence.token_ids, self._cacheable_blocks(sequence)
        )

    def _cacheable_blocks(self, sequence: Sequence) -> int:
        return self._cacheable_tokens(sequence) // self._cache.block_size

    def _cacheable_tokens(self, sequence: Sequence) -> int:
        """Tokens before the first that is computed in any case, for its logits."""
        return next(iter(sequence.unscored), len(sequence.token_ids) - 1)
