"""The figures of one cell: how each policy did on the same requests."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import asdict, dataclass
from typing import Any

from overlay.sim.routing.mesh import Served


@dataclass(frozen=True, slots=True)
class PolicyFigures:
    """One policy on one workload, once it is warm. Rates are shares of prompt tokens.

    `imbalance` is the tokens that the busiest node computed over the mean. `busy` counts BUSY answers,
    `refused` the times that a client was asked to come back, `failed` those who gave up waiting; a failed
    request counts with the time that was waited for it.
    """

    ttft_mean_ms: float
    ttft_p50_ms: float
    ttft_p95_ms: float
    hit_rate: float
    oracle_hit_rate: float
    imbalance: float
    forwarded: int
    busy: int
    refused: int
    failed: int

    @classmethod
    def of(cls, served: Sequence[Served], nodes: int, oracle_hit_rate: float) -> PolicyFigures:
        times = sorted(each.ttft_s * 1000 for each in served if each.ttft_s is not None)
        answered = [each for each in served if each.served_by is not None]
        tokens = sum(each.request.tokens for each in answered)
        cached = sum(each.cached_tokens for each in answered)
        work = [0] * nodes
        for each in answered:
            request = each.request
            work[each.served_by or 0] += request.tokens - each.cached_tokens + request.answer_tokens
        mean_work = sum(work) / nodes
        return cls(
            ttft_mean_ms=sum(times) / len(times),
            ttft_p50_ms=percentile(times, 0.50),
            ttft_p95_ms=percentile(times, 0.95),
            hit_rate=cached / tokens if tokens else 0.0,
            oracle_hit_rate=oracle_hit_rate,
            imbalance=max(work) / mean_work if mean_work else 1.0,
            forwarded=sum(each.served_by != each.request.entry for each in answered),
            busy=sum(each.busy for each in served),
            refused=sum(each.refused for each in served),
            failed=sum(each.failed for each in served),
        )


def percentile(ordered: Sequence[float], share: float) -> float:
    """Of sorted values, by nearest rank."""
    return ordered[max(math.ceil(share * len(ordered)) - 1, 0)]


@dataclass(frozen=True, slots=True)
class Cell:
    """One point of the evaluation's grid; `delay_ms` is one way.

    The first share `warmup` of the requests finds empty caches and routers that know nothing yet; figures
    are of the rest. `kv_blocks` 0 leaves the engine's own.
    """

    workload: str
    nodes: int = 4
    delay_ms: float = 1.0
    skew: float = 0.0
    load: float = 0.6
    seed: int = 0
    requests: int = 400
    gossip_s: float = 1.0
    entry_skew: float = 0.0
    kv_blocks: int = 0
    warmup: float = 0.25

    def __post_init__(self) -> None:
        if not 0.0 <= self.warmup < 1.0:
            raise ValueError("the warm-up is a share of the requests, from 0 to below 1")

    @property
    def skipped(self) -> int:
        """How many requests come before those that count."""
        return int(self.requests * self.warmup)


@dataclass(frozen=True, slots=True)
class RoutingReport:
    """All policies at one cell."""

    cell: Cell
    policies: dict[str, PolicyFigures]

    def excess(self, policy: str = "cost", rivals: Sequence[str] | None = None) -> tuple[float, float]:
        """How much slower a policy is than the best of the others, as a share: (mean, p95)."""
        others = [
            figures
            for name, figures in self.policies.items()
            if name != policy and (rivals is None or name in rivals)
        ]
        own = self.policies[policy]
        return (
            own.ttft_mean_ms / min(each.ttft_mean_ms for each in others) - 1.0,
            own.ttft_p95_ms / min(each.ttft_p95_ms for each in others) - 1.0,
        )

    def to_dict(self) -> dict[str, Any]:
        """For JSON: the cell's parameters and `policies.<policy>.<figure>`."""
        return {
            **asdict(self.cell),
            "policies": {name: asdict(figures) for name, figures in self.policies.items()},
        }

    def rows(self) -> list[tuple[str, ...]]:
        """One row of text per policy, under ROW_TITLES."""
        return [
            (
                name,
                f"{each.ttft_mean_ms:,.0f} ms",
                f"{each.ttft_p95_ms:,.0f} ms",
                f"{each.hit_rate:.1%}",
                f"{each.oracle_hit_rate:.1%}",
                f"{each.imbalance:.2f}",
                str(each.forwarded),
                str(each.busy),
                str(each.failed),
            )
            for name, each in self.policies.items()
        ]


ROW_TITLES = (
    "policy",
    "TTFT mean",
    "TTFT p95",
    "hits",
    "oracle",
    "imbalance",
    "forwarded",
    "busy",
    "failed",
)
