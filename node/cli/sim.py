"""`rumormill sim`"""

from __future__ import annotations

import json
from dataclasses import asdict
from typing import TYPE_CHECKING

import click

from node.cli.options import json_option

if TYPE_CHECKING:
    from overlay.sim.report import OverlayReport


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
    from node.cli.table import plain_table, terminal

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
    console.print(table)
