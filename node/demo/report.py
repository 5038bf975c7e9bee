"""How a demonstration's results are shown: tables for people, one object for programs."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from rich.console import Console

from node.cli.table import plain_table, print_table
from node.demo.runner import PolicyRun, Result

ANSWER_CHARACTERS = 8


def as_object(runs: Sequence[PolicyRun]) -> dict[str, Any]:
    """The `--json` form of DESIGN 8."""
    return {
        "policies": {run.policy: _summary(run) for run in runs},
        "requests": [_request(result) for run in runs for result in run.results],
        "identical_answers": identical_answers(runs),
    }


def identical_answers(runs: Sequence[PolicyRun]) -> int:
    """Requests whose answer was the same under every policy."""
    by_request = zip(*(run.results for run in runs), strict=True)
    return sum(len({(result.text, result.error) for result in results}) == 1 for results in by_request)


def print_requests(console: Console, run: PolicyRun, names: dict[str, str]) -> None:
    """One line a request of one policy."""
    table = plain_table(
        ">#", "subject", "entry", "by", ">prompt", ">predicted", ">cached", ">ttft ms", "answer"
    )
    for result in run.results:
        table.add_row(
            str(result.request.index + 1),
            result.request.subject,
            names[result.entry],
            names.get(result.served_by, "-"),
            str(result.prompt_tokens),
            str(result.predicted_cached_tokens),
            str(result.cached_tokens),
            f"{result.ttft_s * 1000:.0f}",
            result.error or result.text[:ANSWER_CHARACTERS],
        )
    console.print(f"\npolicy {run.policy}: tokens of each prompt, predicted and found in the cache")
    print_table(table)


def print_summary(console: Console, runs: Sequence[PolicyRun]) -> None:
    """One line a policy, on the same workload."""
    table = plain_table(
        "policy", ">requests", ">failed", ">hit rate", ">mean ttft ms", ">p95 ttft ms", ">gossip kB"
    )
    for run in runs:
        table.add_row(
            run.policy,
            str(len(run.results)),
            str(run.failed),
            f"{run.hit_rate:.1%}",
            f"{run.ttft_mean_s * 1000:.0f}",
            f"{run.ttft_p95_s * 1000:.0f}",
            f"{run.gossip_bytes / 1000:.1f}",
        )
    console.print("\nthe same requests under each policy")
    print_table(table)
    total = len(runs[0].results)
    console.print(f"identical answers under every policy: {identical_answers(runs)} of {total}")


def _summary(run: PolicyRun) -> dict[str, Any]:
    return {
        "requests": len(run.results),
        "failed": run.failed,
        "hit_rate": run.hit_rate,
        "ttft_mean_ms": run.ttft_mean_s * 1000,
        "ttft_p95_ms": run.ttft_p95_s * 1000,
        "gossip_bytes": run.gossip_bytes,
    }


def _request(result: Result) -> dict[str, Any]:
    return {
        "policy": result.policy,
        "subject": result.request.subject,
        "entry": result.entry,
        "served_by": result.served_by,
        "prompt_tokens": result.prompt_tokens,
        "predicted_cached_tokens": result.predicted_cached_tokens,
        "cached_tokens": result.cached_tokens,
        "ttft_ms": result.ttft_s * 1000,
        "answer": result.text,
        "error": result.error,
    }
