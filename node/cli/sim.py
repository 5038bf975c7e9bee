"""`rumormill sim`"""

from __future__ import annotations

import json
from dataclasses import asdict
from pathlib import Path
from typing import TYPE_CHECKING

import click

from node.cli.options import json_option

if TYPE_CHECKING:
    from overlay.sim.report import OverlayReport
    from overlay.sim.routing.report import RoutingReport


@click.group(short_help="Simulate a mesh: the shipped code under a virtual clock.")
def sim() -> None:
    """Simulate a mesh: the shipped protocol core under a virtual clock. Same seed, same run."""


@sim.command()
@click.option("--nodes", type=click.IntRange(2, 4096), default=32, show_default=True)
@click.option("--seed", type=int, default=0, show_default=True)
@click.option("--loss", type=click.FloatRange(0, 1, max_open=True), default=0.0, show_default=True)
@click.option(
    "--blocks", type=click.IntRange(0, 1_000_000), default=1000, show_default=True, help="Cached by each."
)
@click.option(
    "--steady", type=click.FloatRange(0), default=60.0, show_default=True, help="Seconds of steady state."
)
@click.option(
    "--churn", type=click.FloatRange(0), default=0.0, help="Share of nodes that restart in an hour."
)
@click.option("--changes", type=click.FloatRange(0), default=0.0, help="Blocks replaced per node and second.")
@json_option
def overlay(
    nodes: int,
    seed: int,
    loss: float,
    blocks: int,
    steady: float,
    churn: float,
    changes: float,
    as_json: bool,
) -> None:
    """Membership and gossip: how soon replicas converge, a crash is seen, and what it all costs.

    A mesh meets, changes its caches until all replicas equal their origins, runs on for a while, and
    loses a node.
    """
    from overlay.sim.report import Workload, run_overlay

    def show(stage: str) -> None:
        if not as_json:
            click.echo(f"\r\033[K{stage}", nl=False, err=True)

    report = run_overlay(nodes, seed, loss, workload=Workload(blocks, steady, churn, changes), progress=show)
    show("")
    if as_json:
        click.echo(json.dumps(asdict(report)))
    else:
        _print(report)


def _print(report: OverlayReport) -> None:
    from node.cli.table import plain_table, print_table, terminal

    def seconds(value: float | None) -> str:
        return "never" if value is None else f"{value:.1f} s"

    rounds = "never" if report.converged_rounds is None else f"{report.converged_rounds:.1f} rounds"
    table = plain_table("figure", ">value")
    for name, value in (
        ("all nodes met after", seconds(report.met_s)),
        ("replicas converged after", rounds),
        ("a crash was known to all neighbours after", seconds(report.detection_s)),
        ("healthy nodes declared dead", str(report.false_deaths)),
        ("bytes per node and second", f"{report.bytes_per_node_per_s:,.0f}"),
        ("most bytes one node sent in a second", f"{report.peak_bytes:,}"),
        ("memory per node, at most", f"{report.memory_bytes_per_node / 1e6:.1f} MB"),
        ("links per node", f"{report.links_per_node:.1f}"),
    ):
        table.add_row(name, value)
    console = terminal()
    console.print(f"{report.nodes} nodes, loss {report.loss:.0%}, seed {report.seed}")
    print_table(table)


@sim.command()
@click.option("--workload", default="mmlu", show_default=True, help="One, or several with commas between.")
@click.option(
    "--data",
    type=click.Path(path_type=Path, exists=True, file_okay=False),
    required=True,
    help="Folder with mmlu/, mooncake/ and tau_bench/.",
)
@click.option("--nodes", type=click.IntRange(1, 1024), default=4, show_default=True)
@click.option("--delay-ms", type=click.FloatRange(0), default=1.0, show_default=True, help="One way.")
@click.option("--skew", type=click.FloatRange(0), default=0.0, show_default=True, help="Zipf exponent.")
@click.option("--load", type=click.FloatRange(0, min_open=True), default=0.6, help="Share of capacity.")
@click.option("--requests", type=click.IntRange(2, 100_000), default=400, show_default=True)
@click.option(
    "--calibration",
    type=click.Path(path_type=Path, exists=True, dir_okay=False),
    help="File of `bench --calibrate`; by default the engine that each workload is meant for.",
)
@click.option("--gossip-s", type=click.FloatRange(0), default=1.0, show_default=True, help="Age of hearsay.")
@click.option("--seed", type=int, default=0, show_default=True)
@json_option
def routing(
    workload: str,
    data: Path,
    nodes: int,
    delay_ms: float,
    skew: float,
    load: float,
    requests: int,
    calibration: Path | None,
    gossip_s: float,
    seed: int,
    as_json: bool,
) -> None:
    """Routing policies on the same requests: time to first token, hit rate, balance.

    The shipped router decides; the engine is a model of the real one. The first quarter of the requests
    warms the mesh up, and doesn't count.
    """
    from overlay.sim.routing.calibration import Calibration, CalibrationError
    from overlay.sim.routing.run import run_routing
    from overlay.sim.routing.workloads import WorkloadError

    try:
        engine = Calibration.from_json(calibration) if calibration else None
    except CalibrationError as error:
        raise click.UsageError(str(error)) from None
    reports = []
    for name in workload.split(","):
        try:
            reports.append(
                run_routing(
                    name.strip(),
                    data,
                    nodes=nodes,
                    delay_ms=delay_ms,
                    skew=skew,
                    load=load,
                    requests=requests,
                    gossip_s=gossip_s,
                    seed=seed,
                    calibration=engine,
                )
            )
        except WorkloadError as error:
            raise click.UsageError(str(error)) from None
        if not as_json:
            _print_routing(reports[-1])
    if as_json:
        objects = [report.to_dict() for report in reports]
        click.echo(json.dumps(objects[0] if len(objects) == 1 else {"workloads": objects}))


def _print_routing(report: RoutingReport) -> None:
    from node.cli.table import plain_table, print_table, terminal
    from overlay.sim.routing.report import ROW_TITLES

    table = plain_table(ROW_TITLES[0], *(f">{title}" for title in ROW_TITLES[1:]))
    for row in report.rows():
        table.add_row(*row)
    console = terminal()
    cell = report.cell
    console.print(f"\n{cell.workload}: {cell.nodes} nodes, {cell.delay_ms:g} ms, load {cell.load:.0%}")
    print_table(table)
