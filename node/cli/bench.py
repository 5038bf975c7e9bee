"""`rumormill bench`"""

from __future__ import annotations

import asyncio
import json
import os
from collections.abc import Iterator
from contextlib import contextmanager, nullcontext
from dataclasses import asdict
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from node.cli.engine_options import EngineOptions, engine_options
from node.cli.options import Target, json_option, node_options
from node.cli.stages import stages
from overlay.core.routing import POLICIES

if TYPE_CHECKING:
    from node.bench.run import Plan, Run, Tell

WORKLOADS = ("mmlu", "mooncake-conversation", "mooncake-synthetic", "tau-bench", "shared-prefix", "unshared")


@click.command(short_help="Measure a mesh that runs, or this machine's engine.")
@click.option("--workload", type=click.Choice(WORKLOADS), default="mmlu", show_default=True)
@click.option(
    "--data",
    type=click.Path(path_type=Path, exists=True, file_okay=False),
    help="Folder with mmlu/, mooncake/ and tau_bench/; without it mmlu is a small sample.",
)
@click.option("--requests", type=click.IntRange(1, 1_000_000), default=100, show_default=True)
@click.option(
    "--concurrency",
    type=click.IntRange(1, 4096),
    default=8,
    show_default=True,
    help="Closed loop: sessions at a time.",
)
@click.option(
    "--rate", type=click.FloatRange(0, min_open=True), help="Open loop: requests a second, come what may."
)
@click.option(
    "--skew",
    type=click.FloatRange(0),
    default=1.0,
    show_default=True,
    help="Zipf exponent of what is popular.",
)
@click.option(
    "--answer-tokens", type=click.IntRange(1, 65536), help="Length of an answer; each workload has its own."
)
@click.option("--seed", type=int, default=0, show_default=True, help="Same seed, same requests.")
@click.option(
    "--policy",
    "policies",
    type=click.Choice(list(POLICIES)),
    multiple=True,
    help="Routing policy; several are compared on the same requests, from empty caches.",
)
@click.option("--cold", is_flag=True, help="Empty all caches of the mesh first.")
@click.option(
    "--one-entry", is_flag=True, help="Send everything to the named node, not to all nodes in turn."
)
@click.option(
    "--timeout", type=click.FloatRange(0, min_open=True), default=120.0, help="Seconds a request has."
)
@click.option(
    "--start", type=click.IntRange(1, 16), help="Start so many nodes here, and end them afterwards."
)
@click.option(
    "--plot", type=click.Path(path_type=Path, dir_okay=False), help="Picture to write: .png, .svg or .pdf."
)
@click.option(
    "--records",
    type=click.Path(path_type=Path, dir_okay=False),
    help="File to write every request to, a JSON object a line.",
)
@click.option(
    "--calibrate",
    type=click.Path(path_type=Path, dir_okay=False),
    help="Measure this machine's engine instead, and write the file that `sim routing --calibration` reads.",
)
@engine_options
@node_options
@json_option
def bench(
    workload: str,
    data: Path | None,
    requests: int,
    concurrency: int,
    rate: float | None,
    skew: float,
    answer_tokens: int | None,
    seed: int,
    policies: tuple[str, ...],
    cold: bool,
    one_entry: bool,
    timeout: float,
    start: int | None,
    plot: Path | None,
    records: Path | None,
    calibrate: Path | None,
    engine: EngineOptions,
    target: Target,
    as_json: bool,
) -> None:
    """Measure time to first token, time between tokens, throughput and cache hits of a mesh that runs.

    Prompts enter at all its nodes in turn. Answers have a fixed length. The model options are for nodes and
    engines that this command starts itself, with --start and --calibrate.

    Exit status 1 when a request failed.
    """
    from node.bench.run import Plan
    from node.bench.workloads import PlanError

    if calibrate is not None:
        _calibrate(engine, calibrate, as_json=as_json)
        return
    plan = Plan(
        workload=workload,
        requests=requests,
        skew=skew,
        seed=seed,
        answer_tokens=answer_tokens or 0,
        data=data,
        concurrency=concurrency,
        rate=rate or 0.0,
        policies=policies or ("",),
        cold=cold or len(policies) > 1,
        timeout_s=timeout,
        one_entry=one_entry,
    )
    try:
        if plot is not None:
            from node.bench.plot import check_path

            check_path(plot)
        with _progress() as tell:
            runs = _measure(plan, target, start, engine, tell)
    except PlanError as error:
        raise click.UsageError(str(error)) from None
    if records is not None:
        _write_records(records, runs)
    if plot is not None:
        _plot(plot, plan, runs)
    if as_json:
        click.echo(json.dumps(_as_object(plan, runs)))
    else:
        _print(plan, runs)
    if any(run.figures.failed for run in runs):
        raise SystemExit(1)


def _measure(plan: Plan, target: Target, start: int | None, engine: EngineOptions, tell: Tell) -> list[Run]:
    from certs.roles import Role
    from node.bench.run import bench as run_bench
    from node.demo.local_mesh import LocalMesh

    options = engine.arguments(threads=engine.threads or max((os.cpu_count() or 1) // (start or 1), 1))
    mesh = LocalMesh(start, options, report=lambda text: tell(text, 0, 0)) if start else nullcontext()
    with mesh as local:
        if local is not None:
            target = Target(local.nodes[0].grpc, local.token, None, None)
        return asyncio.run(run_bench(plan, target.node, target.credentials(Role.OPERATOR), tell))


@contextmanager
def _progress() -> Iterator[Tell]:
    """Progress on standard error, where that is a terminal."""
    from rich.console import Console
    from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeElapsedColumn

    console = Console(stderr=True, markup=False, highlight=False)
    columns = TextColumn("{task.description}", markup=False), BarColumn(), MofNCompleteColumn()
    with Progress(*columns, TimeElapsedColumn(), console=console, transient=True) as progress:
        task = progress.add_task("", total=None)
        yield lambda text, done, total: progress.update(
            task, description=text, completed=done, total=total or None
        )


def _calibrate(options: EngineOptions, path: Path, *, as_json: bool) -> None:
    from node.bench.calibrate import calibrate

    with stages(lambda stage: click.echo(stage, err=True)) as tell:
        calibration = asyncio.run(calibrate(options.config(os.urandom(32)), tell))
    path.write_text(calibration.to_json() + "\n")
    if as_json:
        click.echo(json.dumps({"file": str(path), **asdict(calibration)}))
        return
    rows = [("prefill", f"{1 / calibration.seconds_per_prefill_token:.0f} tokens/s")]
    rows += [
        (f"decode, {streams} at a time", f"{streams / (calibration.step_overhead_s + seconds):.0f} tokens/s")
        for streams, seconds in calibration.decode_steps
    ]
    rows.append(("KV capacity", f"{calibration.kv_blocks} blocks"))
    _print_rows("figure", rows)
    click.echo(f"written to {path}; use it with: rumormill sim routing --calibration {path} --data DIR")


def _print_rows(heading: str, rows: list[tuple[str, str]]) -> None:
    from node.cli.table import plain_table, print_table

    table = plain_table(heading, ">value")
    for row in rows:
        table.add_row(*row)
    print_table(table)


def _write_records(path: Path, runs: list[Run]) -> None:
    with path.open("w") as file:
        for run in runs:
            for result in run.results:
                file.write(json.dumps(asdict(result)) + "\n")


def _names(runs: list[Run]) -> dict[str, str]:
    """What people are shown of each node's id."""
    return {node: node[:8] for run in runs for node in run.nodes}


def _plot(path: Path, plan: Plan, runs: list[Run]) -> None:
    from node.bench.plot import plot

    title = f"{plan.workload}: {plan.requests} requests, {_load(plan)}"
    plot({run.policy: run.results for run in runs}, _names(runs), title, path)


def _load(plan: Plan) -> str:
    return f"{plan.rate:g} requests/s" if plan.rate else f"{plan.concurrency} at a time"


def _as_object(plan: Plan, runs: list[Run]) -> dict[str, Any]:
    return {
        "workload": plan.workload,
        "requests": plan.requests,
        "seed": plan.seed,
        "skew": plan.skew,
        "concurrency": None if plan.rate else plan.concurrency,
        "rate": plan.rate or None,
        "policies": {run.policy: run.figures.to_dict() for run in runs},
        "errors": sorted({result.error for run in runs for result in run.results if result.error}),
    }


def _print(plan: Plan, runs: list[Run]) -> None:
    from node.cli.table import plain_table, print_table, terminal

    terminal().print(
        f"{plan.workload}: {plan.requests} requests, {_load(plan)}, seed {plan.seed}; times in ms"
    )
    table = plain_table("policy", "", ">mean", ">p50", ">p90", ">p95", ">p99")
    for run in runs:
        for number, (title, spread) in enumerate(
            (
                ("first token", run.figures.ttft),
                ("next token", run.figures.itl),
                ("answer", run.figures.latency),
            )
        ):
            values = (spread.mean, spread.p50, spread.p90, spread.p95, spread.p99)
            table.add_row("" if number else run.policy, title, *(f"{value:,.1f}" for value in values))
    print_table(table)
    click.echo()
    table = plain_table(
        "policy", ">reqs/s", ">tokens/s", ">hits", ">predicted", ">forwarded", ">imbalance", ">failed"
    )
    for run in runs:
        each = run.figures
        table.add_row(
            run.policy,
            f"{each.requests_per_s:.2f}",
            f"{each.output_tokens_per_s:.1f}",
            f"{each.hit_rate:.1%}",
            f"{each.predicted_hit_rate:.1%}",
            str(each.forwarded),
            f"{each.imbalance:.2f}",
            str(each.failed),
        )
    print_table(table)
    click.echo()
    table = plain_table("policy", "node", ">entered", ">answered", ">share", ">hits")
    for run in runs:
        for number, (node, part) in enumerate(run.figures.nodes.items()):
            cells = str(part.entered), str(part.requests), f"{part.share:.0%}", f"{part.hit_rate:.0%}"
            table.add_row("" if number else run.policy, node[:8], *cells)
    print_table(table)
    for error in sorted({result.error for run in runs for result in run.results if result.error}):
        click.echo(f"failed: {error}", err=True)
