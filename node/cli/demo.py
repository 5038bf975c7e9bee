"""`rumormill demo`"""

from __future__ import annotations

import json
import os
import signal
from types import FrameType
from typing import NoReturn

import click

from node.cli.options import json_option

POLICIES_SHOWN = ("cost", "local", "random")


@click.command(short_help="Three nodes here, policies compared on real prompts.")
@click.option("--nodes", type=click.IntRange(2, 8), default=3, show_default=True)
@click.option("--requests", type=click.IntRange(1, 10_000), default=48, show_default=True)
@click.option(
    "--concurrency", type=click.IntRange(1, 64), default=4, show_default=True, help="Requests at a time."
)
@click.option(
    "--max-tokens", type=click.IntRange(1, 256), default=4, show_default=True, help="Length of an answer."
)
@click.option(
    "--policy",
    "policies",
    multiple=True,
    default=POLICIES_SHOWN,
    show_default=True,
    help="Policies to compare on the same requests; may be repeated.",
)
@click.option("--seed", type=int, default=1, show_default=True, help="Same seed, same requests.")
@click.option("--model", default="smollm2", show_default=True, help="As for `rumormill up`.")
@json_option
def demo(
    nodes: int,
    requests: int,
    concurrency: int,
    max_tokens: int,
    policies: tuple[str, ...],
    seed: int,
    model: str,
    as_json: bool,
) -> None:
    """Start three nodes here, send them MMLU questions, and compare routing policies.

    The nodes are separate processes with their own ports and caches. Questions of a subject share a
    few-shot prefix; where that is cached, the first token comes sooner. Everything ends with the command.
    """
    from rich.console import Console
    from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeElapsedColumn

    from node.cli.table import terminal
    from node.demo.local_mesh import LocalMesh
    from node.demo.report import as_object, print_requests, print_summary
    from node.demo.runner import Runner
    from node.demo.workload import load_subjects, make_workload
    from overlay.core.routing import POLICIES, UnknownPolicyError

    for policy in policies:
        if policy not in POLICIES:
            raise click.BadParameter(str(UnknownPolicyError(policy)), param_hint="--policy")
    signal.signal(signal.SIGTERM, _raise_interrupt)
    # The cores are shared out, so that a policy gains nothing by using a node twice.
    threads = max((os.cpu_count() or 1) // nodes, 1)
    workload = make_workload(load_subjects(), requests, nodes, seed)
    progress = Progress(
        TextColumn("{task.description}"),
        BarColumn(),
        MofNCompleteColumn(),
        TimeElapsedColumn(),
        console=Console(stderr=True),
        transient=True,
    )
    console = terminal()
    with progress:
        start = progress.add_task("", total=None)
        options = ["--threads", str(threads), "--model", model]
        with LocalMesh(nodes, options, report=lambda text: progress.update(start, description=text)) as mesh:
            progress.remove_task(start)
            task = progress.add_task("", total=len(workload))
            runner = Runner(mesh, concurrency, on_result=lambda result: progress.advance(task))
            try:
                runner.warm_up(workload[0].prompt)
                runs = []
                for policy in policies:
                    progress.reset(task, description=f"policy {policy}")
                    runs.append(runner.run(policy, workload, max_tokens))
            finally:
                runner.close()
            names = {node.node_id: f"node {number}" for number, node in enumerate(mesh.nodes, 1)}
            progress.update(task, description="stopping the nodes")
    if as_json:
        click.echo(json.dumps(as_object(runs)))
    else:
        for run in runs:
            print_requests(console, run, names)
        print_summary(console, runs)
    if any(run.failed for run in runs):
        raise SystemExit(1)


def _raise_interrupt(number: int, frame: FrameType | None) -> NoReturn:
    """SIGTERM unwinds like Ctrl-C, so that the nodes are stopped."""
    raise KeyboardInterrupt
