"""Continuous batching: which tokens of which sequences the next step computes.

Running streams go first, one token each; what is left of the step's token budget goes to prompts, in
chunks (chunked prefill, arXiv 2308.16369). When blocks run out, the youngest sequence gives its own back and
recomputes them later (preemption by recomputation, arXiv 2309.06180).
"""

from __future__ import annotations

from collections import deque
from dataclasses import dataclass
from itertools import islice
from typing import Final

from engine.prefix_cache import Node, PrefixCache
from engine.sequence import Sequence

MAX_LOOK_AHEAD: Final = 64
"""Waiting sequences considered per step, should those before them wait for a prefix."""


@dataclass(frozen=True, slots=True)
class Work:
    """Compute the next `count` tokens of a sequence; sample if those were its last."""

    sequence: Sequence
    count: int

    @property
    def samples(self) -> bool:
        """Whether this work reaches the end of the sequence, so that the next token can be sampled."""
        return self.count == self.sequence.uncomputed


class Scheduler:
    """Decides admission, chunking and preemption over one prefix cache."""

    def __init__(self, cache: PrefixCache, max_running: int) -> None:
        self._cache = cache
        self._max_running = max_running
        self._waiting: deque[Sequence] = deque()
        self._running: list[Sequence] = []
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
        return running + sum(sequence.expected_prefill for sequence in self._waiting)

    def add(self, sequence: Sequence) -> None:
        """Queues a new sequence behind all others."""
        sequence.expected_prefill = len(sequence.token_ids) - self._cached_tokens(sequence)
        self._waiting.append(sequence)

    def schedule(self, prefill_tokens: int) -> list[Work]:
        """The next step's work, at most `prefill_tokens` tokens of it from prompts; empty when idle."""
        work = self._decodes()
        budget = prefill_tokens
        for sequence in self._running:
            if budget and sequence.uncomputed > 1:
                count = min(sequence.uncomputed, budget)
                work.append(Work(sequence, count))
                budget -= count
        for sequence in tuple(islice(self._waiting, MAX_LOOK_AHEAD)):
            if not budget or len(self._running) >= self._max_running:
                break
            path = self._cached_path(sequence)
            if self._is_being_computed(sequence, path):
                continue
            if not self._admit(sequence, path):
                break
            self._waiting.remove(sequence)
            count = min(sequence.uncomputed, budget)
            work.append(Work(sequence, count))
            budget -= count
        return work

    def advance(self, work: Work) -> None:
        """Notes that a sequence's tokens are computed, and caches the blocks they filled."""
        sequence = work.sequence
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

    def _decodes(self) -> list[Work]:
        """One token for each running stream, oldest first; those that get no block are preempted."""
        return [
            Work(sequence, 1)
            for sequence in tuple(self._running)
            if sequence.uncomputed == 1 and sequence in self._running and self._grow(sequence)
        ]

    def _grow(self, sequence: Sequence) -> bool:
        """Makes room for one more token; False when that took preempting the sequence itself."""
        if sequence.computed < sequence.block_count * self._cache.block_size:
            return True
        while (blocks := self._cache.allocate(1)) is None:
            victim = self._running[-1]
            self._preempt(victim)
            if victim is sequence:
                return False
        sequence.private += blocks
        return True

    def _preempt(self, sequence: Sequence) -> None:
        self._running.remove(sequence)
        self._release(sequence)
        sequence.expected_prefill = len(sequence.token_ids) - self._cached_tokens(sequence)
        self._waiting.appendleft(sequence)
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

    def _admit(self, sequence: Sequence, path: list[Node]) -> bool:
        """Gives a sequence its cached prefix and blocks for the rest, if there are enough of them.

        One spare block per running sequence is left for their next tokens.
        """
        needed = -(-len(sequence.token_ids) // self._cache.block_size) - len(path)
        self._cache.acquire(path)
        if needed + len(self._running) > self._cache.available_blocks:
            self._cache.release(path)
            return False
        blocks = self._cache.allocate(needed)
        if blocks is None:
            raise AssertionError("scheduler: blocks counted as available were not")
        sequence.path, sequence.private = path, blocks
        sequence.computed = len(path) * self._cache.block_size
        if sequence.cached_tokens is None:
            sequence.cached_tokens = sequence.computed
        self._running.append(sequence)
        return True

    def _release(self, sequence: Sequence) -> None:
        self._cache.release_private(sequence.private)
        self._cache.release(sequence.path)
        sequence.path, sequence.private = [], []
        sequence.computed = 0

    def _cached_tokens(self, sequence: Sequence) -> int:
        return len(self._cached_path(sequence)) * self._cache.block_size

    def _cached_path(self, sequence: Sequence) -> list[Node]:
        return self._cache.peek(
            sequence.request.namespace, sequence.token_ids, self._cacheable_blocks(sequence)
        )

    def _cacheable_blocks(self, sequence: Sequence) -> int:
        """Full blocks before the last token: that one is always computed, for its logits."""
        return (len(sequence.token_ids) - 1) // self._cache.block_size
