"""Figures from requests, by hand."""

from __future__ import annotations

from pathlib import Path

import pytest

from node.bench.plot import check_path, plot
from node.bench.results import Result, Spread, figures
from node.bench.workloads import PlanError


def result(entry: str, served_by: str, cached: int, started_s: float, ttft_s: float = 0.1) -> Result:
    return Result("g", entry, served_by, "cost", 100, 80, cached, 10, started_s, ttft_s, 0.5, (0.01, 0.03))


RESULTS = [
    result("a", "a", 0, 0.0),
    result("a", "b", 90, 0.5),
    result("b", "b", 90, 1.0, ttft_s=0.3),
    Result("g", "b", "", "", 0, 0, 0, 0, 1.0, 0.0, 9.0, (), "full"),
]


def test_percentiles_are_by_nearest_rank() -> None:
    assert Spread.of([n / 1000 for n in range(1, 101)]) == Spread(50.5, 50.0, 90.0, 95.0, 99.0)
    assert Spread.of([0.002]) == Spread(2.0, 2.0, 2.0, 2.0, 2.0)
    assert Spread.of([]) == Spread(0.0, 0.0, 0.0, 0.0, 0.0)


def test_figures_are_of_what_was_answered() -> None:
    found = figures(RESULTS, ["a", "b"], 1234)
    assert (found.requests, found.failed, found.forwarded, found.gossip_bytes) == (4, 1, 1, 1234)
    assert found.hit_rate == pytest.approx(0.6)
    assert found.predicted_hit_rate == pytest.approx(0.8)
    assert found.seconds == pytest.approx(10.0)
    assert found.output_tokens_per_s == pytest.approx(3.0)
    assert found.ttft.mean == pytest.approx(500 / 3)
    assert found.itl.mean == pytest.approx(20.0)


def test_the_split_shows_who_computed() -> None:
    found = figures(RESULTS, ["a", "b"], 0)
    assert (found.nodes["a"].requests, found.nodes["a"].entered) == (1, 2)
    assert found.nodes["a"].share == pytest.approx(110 / 150)
    assert found.nodes["b"].hit_rate == pytest.approx(0.9)
    assert found.imbalance == pytest.approx(110 / 75)


def test_nothing_answered_is_no_division_by_zero() -> None:
    found = figures(RESULTS[3:], ["a"], 0)
    assert (found.failed, found.hit_rate, found.imbalance) == (1, 0.0, 1.0)


@pytest.mark.parametrize("suffix", [".png", ".svg"])
def test_a_picture_is_written(tmp_path: Path, suffix: str) -> None:
    path = tmp_path / f"run{suffix}"
    check_path(path)
    plot({"cost": RESULTS, "local": RESULTS[:1]}, {"a": "node a", "b": "node b"}, "a title", path)
    content = path.read_bytes()
    assert content.startswith(b"\x89PNG" if suffix == ".png" else b"<?xml")


def test_another_kind_of_picture_is_refused() -> None:
    with pytest.raises(PlanError, match="svg"):
        check_path(Path("run.jpg"))
