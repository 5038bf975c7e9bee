"""A run as a picture; needs the extra `plot`."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from itertools import accumulate
from pathlib import Path
from typing import TYPE_CHECKING

from node.bench.results import Result
from node.bench.workloads import PlanError

try:
    from matplotlib.figure import Figure
except ImportError:
    raise PlanError("--plot needs matplotlib; run: pip install 'rumormill[plot]'") from None

if TYPE_CHECKING:
    from matplotlib.axes import Axes

FORMATS = (".png", ".svg", ".pdf")
WINDOW = 20
"""Requests that a point of the hit rate over time is the mean of."""


def check_path(path: Path) -> None:
    """Raises PlanError for a kind of file that can't be written."""
    if path.suffix.lower() not in FORMATS:
        raise PlanError(f"--plot {path}: choose a name that ends in {', '.join(FORMATS)}")


def plot(runs: Mapping[str, Sequence[Result]], names: Mapping[str, str], title: str, path: Path) -> None:
    """One line a policy, one bar a node; `names` are what nodes are called."""
    picture = Figure(figsize=(11, 7), layout="constrained")
    picture.suptitle(title)
    (ttft, itl), (hits, split) = picture.subplots(2, 2)
    for policy, results in runs.items():
        answered = [result for result in results if not result.error]
        _shares(ttft, [result.ttft_s * 1000 for result in answered], policy)
        _shares(itl, [gap * 1000 for result in answered for gap in result.gaps_s], policy)
        _hits(hits, answered, policy)
    _split(split, runs, names)
    ttft.set(title="time to first token", xlabel="ms", ylabel="share of requests", xscale="log")
    itl.set(title="time between tokens", xlabel="ms", ylabel="share of tokens", xscale="log")
    hits.set(title=f"prompt tokens found cached, last {WINDOW} requests", xlabel="s", ylim=(0, 1))
    split.set(title="who computed", ylabel="tokens computed and generated")
    for axes in (ttft, itl, hits):
        axes.grid(alpha=0.3)
    ttft.legend()
    picture.savefig(path, dpi=120)


def _shares(axes: Axes, values: list[float], label: str) -> None:
    """The share of values up to each."""
    ordered = sorted(values)
    axes.step(ordered, [(rank + 1) / len(ordered) for rank in range(len(ordered))], where="post", label=label)


def _hits(axes: Axes, answered: Sequence[Result], label: str) -> None:
    ordered = sorted(answered, key=lambda result: result.started_s)
    cached = [0, *accumulate(result.cached_tokens for result in ordered)]
    tokens = [0, *accumulate(result.prompt_tokens for result in ordered)]
    points = range(1, len(ordered) + 1)
    rates = [
        (cached[end] - cached[max(end - WINDOW, 0)]) / max(tokens[end] - tokens[max(end - WINDOW, 0)], 1)
        for end in points
    ]
    axes.plot([result.started_s for result in ordered], rates, label=label)


def _split(axes: Axes, runs: Mapping[str, Sequence[Result]], names: Mapping[str, str]) -> None:
    width = 0.8 / len(runs)
    for number, (policy, results) in enumerate(runs.items()):
        work = [
            sum(
                result.prompt_tokens - result.cached_tokens + result.output_tokens
                for result in results
                if result.served_by == node and not result.error
            )
            for node in names
        ]
        axes.bar([place + number * width for place in range(len(names))], work, width, label=policy)
    axes.set_xticks(
        [place + width * (len(runs) - 1) / 2 for place in range(len(names))], list(names.values())
    )
