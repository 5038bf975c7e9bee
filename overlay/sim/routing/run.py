"""Runs cells of the evaluation: one, or a grid of them over processes."""

from __future__ import annotations

import itertools
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import ProcessPoolExecutor
from functools import partial
from pathlib import Path

from overlay.core.routing import POLICIES, UnknownPolicyError
from overlay.sim.routing.calibration import Calibration
from overlay.sim.routing.mesh import MeshOptions, RoutingMesh, Served
from overlay.sim.routing.report import Cell, PolicyFigures, RoutingReport
from overlay.sim.routing.workloads import (
    WORKLOADS,
    Workload,
    WorkloadError,
    WorkloadOptions,
    make_workload,
)

RIVALS = ("local", "least-loaded", "longest-prefix", "random")
"""What the policy `cost` must never lose to."""


def run_cell(
    cell: Cell,
    data: Path,
    policies: Sequence[str] = ("cost", *RIVALS),
    calibration: Calibration | None = None,
) -> RoutingReport:
    """Plays one cell's requests under each policy; same arguments, same figures.

    `data` is the folder with the workloads' files. Raises WorkloadError, UnknownPolicyError.
    """
    for policy in policies:
        if policy not in POLICIES:
            raise UnknownPolicyError(policy)
    engine = calibration_of(cell, calibration)
    workload = workload_of(cell, data, engine)
    oracle_hit_rate = workload.oracle_hit_rate(cell.skipped)
    figures = {}
    for policy in policies:
        served = play(cell, workload, engine, policy)[cell.skipped :]
        figures[policy] = PolicyFigures.of(served, cell.nodes, oracle_hit_rate)
    return RoutingReport(cell, figures)


def run_routing(
    workload: str,
    data: Path,
    *,
    nodes: int = 4,
    delay_ms: float = 1.0,
    skew: float = 0.0,
    load: float = 0.6,
    seed: int = 0,
    requests: int = 400,
    gossip_s: float = 1.0,
    entry_skew: float = 0.0,
    kv_blocks: int = 0,
    warmup: float = 0.25,
    policies: Sequence[str] = ("cost", *RIVALS),
    calibration: Calibration | None = None,
) -> RoutingReport:
    """`run_cell` with the cell's fields as keywords."""
    cell = Cell(
        workload=workload,
        nodes=nodes,
        delay_ms=delay_ms,
        skew=skew,
        load=load,
        seed=seed,
        requests=requests,
        gossip_s=gossip_s,
        entry_skew=entry_skew,
        kv_blocks=kv_blocks,
        warmup=warmup,
    )
    return run_cell(cell, data, policies, calibration)


def calibration_of(cell: Cell, calibration: Calibration | None) -> Calibration:
    """The engine of a cell: the one given, or the one its workload is meant for."""
    if cell.workload not in WORKLOADS:
        raise WorkloadError(f"unknown workload {cell.workload!r}; choose one of {', '.join(WORKLOADS)}")
    engine = calibration or WORKLOADS[cell.workload].calibration()
    return engine.with_kv_blocks(cell.kv_blocks) if cell.kv_blocks else engine


def workload_of(cell: Cell, data: Path, calibration: Calibration) -> Workload:
    """The requests of a cell."""
    options = WorkloadOptions(cell.nodes, cell.requests, cell.load, cell.skew, cell.entry_skew, cell.seed)
    return make_workload(cell.workload, data, options, calibration)


def play(cell: Cell, workload: Workload, calibration: Calibration, policy: str) -> list[Served]:
    """One policy on one cell's requests; how each of them went, in order."""
    options = MeshOptions(
        cell.nodes, policy, delay_s=cell.delay_ms / 1000, gossip_s=cell.gossip_s, seed=cell.seed
    )
    return RoutingMesh(options, calibration, workload.block_tokens).run(workload)


def grid(
    workloads: Sequence[str],
    *,
    delays_ms: Sequence[float] = (1.0,),
    skews: Sequence[float] = (0.0,),
    loads: Sequence[float] = (0.6,),
    nodes: Sequence[int] = (4,),
    seeds: Sequence[int] = (0,),
    requests: int = 400,
    gossip_s: Sequence[float] = (1.0,),
) -> list[Cell]:
    """Every combination."""
    combinations = itertools.product(workloads, nodes, delays_ms, skews, loads, seeds, gossip_s)
    return [
        Cell(workload, count, delay_ms, skew, load, seed, requests, period)
        for workload, count, delay_ms, skew, load, seed, period in combinations
    ]


def run_grid(
    cells: Sequence[Cell],
    data: Path,
    policies: Sequence[str] = ("cost", *RIVALS),
    calibration: Calibration | None = None,
    *,
    processes: int = 2,
    progress: Callable[[int, int], None] = lambda done, total: None,
) -> list[RoutingReport]:
    """All cells' reports, in order; `progress` hears of (cells done, cells in all)."""
    one = partial(run_cell, data=data, policies=policies, calibration=calibration)
    reports = []
    for report in _spread(one, cells, processes):
        reports.append(report)
        progress(len(reports), len(cells))
    return reports


def _spread(
    one: Callable[[Cell], RoutingReport], cells: Sequence[Cell], processes: int
) -> Iterator[RoutingReport]:
    if processes <= 1 or len(cells) <= 1:
        yield from map(one, cells)
        return
    with ProcessPoolExecutor(processes) as pool:
        yield from pool.map(one, cells)
