"""What a run measured, request by request, and its figures."""

from __future__ import annotations

import math
import statistics
from collections.abc import Sequence
from dataclasses import asdict, dataclass
from typing import Any

SHARES = (0.5, 0.9, 0.95, 0.99)


@dataclass(frozen=True, slots=True)
class Result:
    """What became of one request; `error` is empty when it was answered. Times in seconds.

    `started_s` counts from the beginning of the run. `gaps_s` are the times between its tokens.
    """

    group: str
    entry: str
    served_by: str
    policy: str
    prompt_tokens: int
    predicted_cached_tokens: int
    cached_tokens: int
    output_tokens: int
    started_s: float
    ttft_s: float
    latency_s: float
    gaps_s: tuple[float, ...]
    error: str = ""


@dataclass(frozen=True, slots=True)
class Spread:
    """Mean and percentiles (nearest rank) of times, in milliseconds."""

    mean: float
    p50: float
    p90: float
    p95: float
    p99: float

    @classmethod
    def of(cls, seconds: Sequence[float]) -> Spread:
        """All 0 of nothing."""
        if not seconds:
            return cls(0.0, 0.0, 0.0, 0.0, 0.0)
        ordered = sorted(value * 1000 for value in seconds)
        ranks = [ordered[max(math.ceil(share * len(ordered)) - 1, 0)] for share in SHARES]
        return cls(statistics.fmean(ordered), *ranks)


@dataclass(frozen=True, slots=True)
class NodeShare:
    """What one node did of a run; `share` is of all computed and generated tokens."""

    requests: int
    entered: int
    prompt_tokens: int
    cached_tokens: int
    output_tokens: int
    hit_rate: float
    share: float


@dataclass(frozen=True, slots=True)
class Figures:
    """One policy's run. `imbalance` is the busiest node's tokens over the mean of all nodes'."""

    requests: int
    failed: int
    seconds: float
    requests_per_s: float
    prompt_tokens_per_s: float
    output_tokens_per_s: float
    hit_rate: float
    predicted_hit_rate: float
    forwarded: int
    imbalance: float
    gossip_bytes: int
    ttft: Spread
    itl: Spread
    latency: Spread
    nodes: dict[str, NodeShare]

    def to_dict(self) -> dict[str, Any]:
        """For JSON: `ttft_mean_ms`, `ttft_p95_ms` and so on beside the plain figures."""
        plain = asdict(self)
        for name in ("ttft", "itl", "latency"):
            spread = plain.pop(name)
            plain.update({f"{name}_{part}_ms": value for part, value in spread.items()})
        return plain


def figures(results: Sequence[Result], nodes: Sequence[str], gossip_bytes: int) -> Figures:
    """Of one run over the named nodes."""
    answered = [result for result in results if not result.error]
    prompt_tokens = sum(result.prompt_tokens for result in answered)
    cached = sum(result.cached_tokens for result in answered)
    predicted = sum(result.predicted_cached_tokens for result in answered)
    output_tokens = sum(result.output_tokens for result in answered)
    begin = min((result.started_s for result in results), default=0.0)
    seconds = max(max((r.started_s + r.latency_s for r in results), default=0.0) - begin, 1e-9)
    work = {node: _work([r for r in answered if r.served_by == node]) for node in nodes}
    total = sum(work.values())
    return Figures(
        requests=len(results),
        failed=len(results) - len(answered),
        seconds=seconds,
        requests_per_s=len(answered) / seconds,
        prompt_tokens_per_s=prompt_tokens / seconds,
        output_tokens_per_s=output_tokens / seconds,
        hit_rate=cached / prompt_tokens if prompt_tokens else 0.0,
        predicted_hit_rate=predicted / prompt_tokens if prompt_tokens else 0.0,
        forwarded=sum(result.served_by != result.entry for result in answered),
        imbalance=max(work.values(), default=0) * len(work) / total if total else 1.0,
        gossip_bytes=gossip_bytes,
        ttft=Spread.of([result.ttft_s for result in answered]),
        itl=Spread.of([gap for result in answered for gap in result.gaps_s]),
        latency=Spread.of([result.latency_s for result in answered]),
        nodes={node: _share(node, results, total) for node in nodes},
    )


def _work(results: Sequence[Result]) -> int:
    return sum(r.prompt_tokens - r.cached_tokens + r.output_tokens for r in results)


def _share(node: str, results: Sequence[Result], total: int) -> NodeShare:
    mine = [result for result in results if result.served_by == node and not result.error]
    prompt_tokens = sum(result.prompt_tokens for result in mine)
    cached = sum(result.cached_tokens for result in mine)
    return NodeShare(
        requests=len(mine),
        entered=sum(result.entry == node for result in results),
        prompt_tokens=prompt_tokens,
        cached_tokens=cached,
        output_tokens=sum(result.output_tokens for result in mine),
        hit_rate=cached / prompt_tokens if prompt_tokens else 0.0,
        share=_work(mine) / total if total else 0.0,
    )
