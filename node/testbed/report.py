"""What happened to the requests of a workload before, during and after something was done to the mesh."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import asdict, dataclass
from typing import Any

from node.testbed.workload import Asked

COLUMNS = ("requests", "failed", "lost", "moved", "p50 ms", "p95 ms", "gap s", "cached")
"""The quantiles are of the time to first token, the gap is the longest silence that any caller saw."""


@dataclass(frozen=True, slots=True)
class Figures:
    """Of some requests. `failed` had entered at a living node; `lost` at one that was struck meanwhile."""

    requests: int
    failed: int
    lost: int
    moved: int
    ttft_p50_ms: float
    ttft_p95_ms: float
    longest_gap_s: float
    cached_share: float
    errors: tuple[str, ...]

    def row(self) -> tuple[str, ...]:
        return (
            str(self.requests),
            str(self.failed),
            str(self.lost),
            str(self.moved),
            f"{self.ttft_p50_ms:.0f}",
            f"{self.ttft_p95_ms:.0f}",
            f"{self.longest_gap_s:.2f}",
            f"{self.cached_share:.0%}",
        )


@dataclass(frozen=True, slots=True)
class FaultReport:
    """One fault, its targets, the requests around it, and how long until all nodes saw one another again."""

    fault: str
    targets: tuple[str, ...]
    seconds: float
    whole_again_s: float | None
    held_back: int
    phases: dict[str, Figures]

    @property
    def total(self) -> Figures:
        return self.phases["all"]

    def to_dict(self) -> dict[str, Any]:
        return asdict(self)


def phases_of(asked: Sequence[Asked], struck_at: float, mended_at: float) -> dict[str, Figures]:
    """Figures by phase. During is whatever was under way between strike and mending."""
    before = [a for a in asked if a.ended < struck_at]
    after = [a for a in asked if a.started > mended_at]
    during = [a for a in asked if a.ended >= struck_at and a.started <= mended_at]
    named = {"before": before, "during": during, "after": after, "all": asked}
    return {name: figures_of(some) for name, some in named.items()}


def figures_of(asked: Sequence[Asked]) -> Figures:
    answered = [a for a in asked if not a.error and not a.lost_entry]
    ttfts = sorted(a.ttft_s * 1000 for a in answered if a.ttft_s is not None)
    failed = [a for a in asked if a.failed]
    prompt_tokens = sum(a.prompt_tokens for a in answered)
    return Figures(
        requests=len(asked),
        failed=len(failed),
        lost=sum(a.lost_entry and bool(a.error) for a in asked),
        moved=sum(len(a.served_by) > 1 for a in answered),
        ttft_p50_ms=_quantile(ttfts, 0.5),
        ttft_p95_ms=_quantile(ttfts, 0.95),
        longest_gap_s=max((a.longest_gap_s for a in answered), default=0.0),
        cached_share=sum(a.cached_tokens for a in answered) / prompt_tokens if prompt_tokens else 0.0,
        errors=tuple(sorted({f"{a.entry}: {a.error}" for a in failed})),
    )


def _quantile(ordered: Sequence[float], share: float) -> float:
    """The least value that at least `share` of them don't pass; 0 of none."""
    return ordered[min(int(share * len(ordered)), len(ordered) - 1)] if ordered else 0.0
