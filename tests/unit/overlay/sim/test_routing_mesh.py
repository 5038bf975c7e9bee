"""Requests through simulated meshes: what must hold of the router that ships."""

from __future__ import annotations

from pathlib import Path
from statistics import fmean

import pytest

from overlay.core.types import BlockHash
from overlay.sim.routing.calibration import Calibration
from overlay.sim.routing.mesh import MeshOptions, RoutingMesh, Served
from overlay.sim.routing.report import Cell, PolicyFigures, RoutingReport
from overlay.sim.routing.run import RIVALS, grid, run_cell, run_grid, run_routing, workload_of
from overlay.sim.routing.workloads import (
    SimRequest,
    Workload,
    WorkloadError,
    WorkloadOptions,
    make_workload,
)

DATA = Path(__file__).parents[5] / "shared" / "data"
needs_data = pytest.mark.skipif(not DATA.is_dir(), reason="needs the workloads' data beside the repository")


def cold(at: float, entry: int, number: int) -> SimRequest:
    """480 tokens that no other request has."""
    hashes = [BlockHash(number * 100 + block) for block in range(1, 31)]
    return SimRequest(at, entry, 480, hashes, hashes, 2)


def unshared(entries: list[int], gap_s: float) -> Workload:
    requests = tuple(cold(number * gap_s, entry, number) for number, entry in enumerate(entries))
    return Workload("made up", 16, requests)


def shares(served: list[Served], nodes: int) -> list[int]:
    return [sum(each.served_by == number for each in served) for number in range(nodes)]


def mean_ms(served: list[Served]) -> float:
    return fmean((each.ttft_s or 0.0) * 1000 for each in served)


@pytest.mark.parametrize("delay_s", [0.0, 0.02])
@pytest.mark.parametrize("entries", [[n % 16 for n in range(256)], [n % 4 for n in range(256)]])
def test_sixteen_entry_nodes_in_one_second_do_not_choose_the_same_peer(
    entries: list[int], delay_s: float
) -> None:
    """A herd: 256 cold prompts in a second, from all nodes or through four of them."""
    imbalances = []
    for seed in range(3):
        options = MeshOptions(16, "cost", delay_s=delay_s, seed=seed)
        served = RoutingMesh(options, Calibration(), 16).run(unshared(entries, 1 / 256))
        imbalances.append(max(shares(served, 16)) / 16)
    assert fmean(imbalances) <= 1.3


def test_sixteen_entry_nodes_do_not_all_choose_the_one_that_was_idle() -> None:
    """All but one are busy; nobody has heard of the others' choice yet."""
    mesh = RoutingMesh(MeshOptions(16, "cost", delay_s=0.02), Calibration(), 16)
    first = unshared([n for n in range(15) for _ in range(2)], 0.01).requests
    herd = unshared(list(range(15)), 0.001).requests
    late = [cold(1.0 + each.at, each.entry, 1_000 + number) for number, each in enumerate(herd)]
    served = mesh.run(Workload("herd", 16, (*first, *late)))
    assert shares(served, 16)[15] <= 3 * 1.3


def test_a_full_peer_is_left_and_everything_is_answered() -> None:
    tight = Calibration(max_queued_tokens=900)
    mesh = RoutingMesh(MeshOptions(3, "random", delay_s=0.2), tight, 16)
    served = mesh.run(unshared([0] * 40, 0.02))
    assert sum(each.busy for each in served) > 0
    assert sum(each.refused for each in served) > 0
    assert not any(each.failed for each in served)
    assert min(shares(served, 3)) > 0


@needs_data
def test_the_same_seed_gives_the_same_figures_and_another_does_not() -> None:
    cell = Cell("mmlu", requests=120, skew=1.0)
    assert run_cell(cell, DATA, ("cost", "random")) == run_cell(cell, DATA, ("cost", "random"))
    assert run_cell(cell, DATA, ("random",)) != run_routing(
        "mmlu", DATA, requests=120, skew=1.0, seed=1, policies=("random",)
    )


@needs_data
@pytest.mark.parametrize(("name", "rate"), [("conversation", 0.366), ("synthetic", 0.640)])
def test_one_cache_without_limits_hits_as_the_traces_are_known_to(name: str, rate: float) -> None:
    options = WorkloadOptions(nodes=4, requests=20_000, load=0.5)
    workload = make_workload(f"mooncake-{name}", DATA, options, Calibration.datacenter())
    assert workload.oracle_hit_rate() == pytest.approx(rate, abs=0.001)


@needs_data
def test_every_workload_is_as_busy_as_it_was_asked_to_be() -> None:
    """At twice the load the same requests come in half the time."""
    for name in ("mmlu", "unshared", "tau-bench", "mooncake-synthetic"):
        half, whole = (
            workload_of(Cell(name, requests=200, load=load), DATA, Calibration()) for load in (0.4, 0.8)
        )
        assert half.requests[-1].at == pytest.approx(2 * whole.requests[-1].at)
        assert [each.hashes for each in half.requests] == [each.hashes for each in whole.requests]


def pooled(name: str, seeds: int, rivals: tuple[str, ...] = RIVALS, **parameters: float) -> dict[str, float]:
    """The excess of `cost` over the best of its rivals, over several seeds, by figure."""
    reports = [
        run_routing(name, DATA, seed=seed, policies=("cost", *rivals), **parameters)  # type: ignore[arg-type]  # numbers by name
        for seed in range(seeds)
    ]

    def worst(figure: str) -> float:
        means = {
            policy: fmean(getattr(report.policies[policy], figure) for report in reports)
            for policy in ("cost", *rivals)
        }
        return means.pop("cost") / min(means.values()) - 1.0

    return {figure: worst(figure) for figure in ("ttft_mean_ms", "ttft_p95_ms")}


@needs_data
@pytest.mark.parametrize(
    ("name", "delay_ms", "skew", "load"),
    [
        ("mmlu", 0.0, 0.0, 0.9),
        ("mmlu", 1.0, 1.0, 0.6),
        ("mmlu", 1000.0, 1.4, 0.3),
        ("unshared", 1.0, 0.0, 0.6),
        ("unshared", 200.0, 1.4, 0.9),
    ],
)
def test_routing_never_loses(name: str, delay_ms: float, skew: float, load: float) -> None:
    """Invariant 10 at a few points; the whole grid is in the evaluation."""
    excess = pooled(name, 2, delay_ms=delay_ms, skew=skew, load=load, requests=400)
    assert excess["ttft_mean_ms"] <= 0.02
    assert excess["ttft_p95_ms"] <= 0.05  # of 600 samples, 2 % more or less is chance


@needs_data
def test_dialogues_stay_where_they_are_and_still_gain() -> None:
    excess = pooled("tau-bench", 2, ("local",), delay_ms=1.0, load=0.6, requests=800)
    assert excess["ttft_mean_ms"] <= 0.02


@needs_data
def test_a_peer_that_begins_to_lie_loses_its_share_and_costs_little() -> None:
    """It claims every prompt and has nothing; the measure is a mesh where it has as little and says so."""
    lying: list[float] = []
    honest: list[float] = []
    for seed in range(4):
        cell = Cell("mmlu", requests=800, skew=1.0, load=0.3, seed=seed)
        workload = workload_of(cell, DATA, Calibration())
        for lies_from_s, means in ((workload.requests[300].at, lying), (1e9, honest)):
            options = MeshOptions(4, "cost", 0.001, seed=seed, liars=frozenset({3}), lies_from_s=lies_from_s)
            served = RoutingMesh(options, Calibration(), 16).run(workload)[300:]
            means.append(mean_ms(served))
            drawn = [each.served_by == 3 and each.request.entry != 3 for each in served]
            assert sum(drawn[20:]) < 0.1 * len(drawn)
    assert fmean(lying) < 1.05 * fmean(honest)


@needs_data
def test_conversations_are_found_where_they_were_without_overloading_anyone() -> None:
    """Trees 10 s old, caches without limits: at random about half as many blocks are found."""
    report = run_routing(
        "mooncake-conversation",
        DATA,
        load=0.1,
        requests=2_000,
        gossip_s=10.0,
        warmup=0.0,
        policies=("cost", "random"),
    )
    cost, other = report.policies["cost"], report.policies["random"]
    assert cost.hit_rate > 0.95 * cost.oracle_hit_rate
    assert cost.imbalance < 1.10
    assert other.hit_rate < 0.7 * other.oracle_hit_rate


@needs_data
def test_a_grid_reports_every_cell_in_order_and_its_progress() -> None:
    cells = grid(["mmlu"], delays_ms=[1.0, 100.0], loads=[0.3, 0.6], requests=40)
    seen: list[tuple[int, int]] = []
    reports = run_grid(cells, DATA, ("cost", "local"), progress=lambda *step: seen.append(step), processes=1)
    assert [report.cell for report in reports] == cells
    assert seen == [(done, 4) for done in range(1, 5)]
    assert reports == run_grid(cells, DATA, ("cost", "local"), processes=2)


def test_what_cannot_be_simulated_is_refused(tmp_path_factory: pytest.TempPathFactory) -> None:
    with pytest.raises(WorkloadError, match="tau-bench"):
        run_routing("weather", DATA)
    with pytest.raises(WorkloadError, match="can't be read"):
        run_routing("mmlu", tmp_path_factory.mktemp("nothing"))
    with pytest.raises(WorkloadError, match="load"):
        WorkloadOptions(4, 10, 0.0)
    with pytest.raises(ValueError, match="warm-up"):
        Cell("mmlu", warmup=1.0)


def test_a_report_is_data_and_rows() -> None:
    figures = PolicyFigures(1.0, 1.0, 2.0, 0.5, 0.6, 1.1, 3, 0, 0, 0)
    slower = PolicyFigures(2.0, 2.0, 2.5, 0.5, 0.6, 1.1, 3, 0, 0, 0)
    report = RoutingReport(Cell("mmlu"), {"cost": slower, "local": figures})
    assert report.excess() == (1.0, 0.25)
    data = report.to_dict()
    assert data["policies"]["cost"]["ttft_p95_ms"] == 2.5
    assert set(data["policies"]["local"]) >= {
        "ttft_mean_ms",
        "ttft_p95_ms",
        "hit_rate",
        "oracle_hit_rate",
        "imbalance",
        "forwarded",
        "busy",
        "failed",
    }
    assert len(report.rows()) == 2
