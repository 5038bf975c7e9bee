"""Rates over the last seconds, from totals that only rise."""

from __future__ import annotations

from collections import deque
from collections.abc import Callable
from dataclasses import dataclass
from typing import Protocol

WINDOW_S = 10.0


class Totals(Protocol):
    """What a node's engine has answered since it started."""

    @property
    def requests(self) -> int: ...
    @property
    def prompt_tokens(self) -> int: ...
    @property
    def cached_tokens(self) -> int: ...
    @property
    def generated_tokens(self) -> int: ...


@dataclass(frozen=True, slots=True)
class Sample:
    """Totals at one moment."""

    at: float
    requests: int
    prompt_tokens: int
    cached_tokens: int
    generated_tokens: int


class Rates:
    """Per-second rates of one node; seconds are the caller's clock."""

    def __init__(self) -> None:
        self._samples: deque[Sample] = deque()

    def sample(self, now: float, totals: Totals) -> None:
        """Takes the totals down; totals below the last ones are those of a restarted node."""
        taken = Sample(
            now, totals.requests, totals.prompt_tokens, totals.cached_tokens, totals.generated_tokens
        )
        if self._samples and taken.requests < self._samples[-1].requests:
            self._samples.clear()
        self._samples.append(taken)
        while len(self._samples) > 2 and self._samples[1].at <= now - WINDOW_S:
            self._samples.popleft()

    @property
    def requests_per_s(self) -> float:
        return self._per_second(lambda sample: sample.requests)

    @property
    def tokens_per_s(self) -> float:
        """Generated tokens."""
        return self._per_second(lambda sample: sample.generated_tokens)

    @property
    def hit_rate(self) -> float | None:
        """Cached prompt tokens over all, of the window's requests, or else of all since the start."""
        if not self._samples:
            return None
        first, last = self._samples[0], self._samples[-1]
        if last.prompt_tokens > first.prompt_tokens:
            return (last.cached_tokens - first.cached_tokens) / (last.prompt_tokens - first.prompt_tokens)
        return last.cached_tokens / last.prompt_tokens if last.prompt_tokens else None

    def _per_second(self, total: Callable[[Sample], int]) -> float:
        if len(self._samples) < 2:
            return 0.0
        first, last = self._samples[0], self._samples[-1]
        return (total(last) - total(first)) / max(last.at - first.at, 1e-9)


def share(value: float | None) -> str:
    """A share as people read it; "-" when there is none."""
    return "-" if value is None else f"{value:.0%}"
