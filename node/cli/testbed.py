"""`rumormill testbed`"""

from __future__ import annotations

import functools
import json
from collections.abc import Callable
from typing import TYPE_CHECKING, Any

import click

from node.cli.options import json_option

if TYPE_CHECKING:
    from node.testbed.faults import Fault
    from node.testbed.report import FaultReport
    from node.testbed.testbed import Load

_LOAD_OPTIONS = (
    click.option(
        "--rate", type=click.FloatRange(0.01, 100), default=2.0, show_default=True, help="A second."
    ),
    click.option("--seed", type=int, default=1, show_default=True, help="Same seed, same prompts."),
    json_option,
)


def _load_options(command: Callable[..., Any]) -> Callable[..., Any]:
    """Adds --rate, --seed and --json; hands the first two over as `load`."""

    @functools.wraps(command)
    def with_load(*, rate: float, seed: int, **rest: Any) -> Any:
        from node.testbed.testbed import Load

        return command(load=Load(rate, seed), **rest)

    for option in reversed(_LOAD_OPTIONS):
        with_load = option(with_load)
    return with_load


def _fault_options(command: Callable[..., Any]) -> Callable[..., Any]:
    command = click.option("--keep", is_flag=True, help="Leave it so; `heal` undoes it.")(command)
    seconds = click.option("--for", "seconds", type=click.FloatRange(0), help="Seconds that it lasts.")
    names = click.argument("names", nargs=-1, metavar="[NODE]...")
    return names(seconds(_load_options(command)))


@click.group(short_help="A mesh in containers, and faults under load.")
def testbed() -> None:
    """Start a mesh in containers, and break it while it works.

    From a checkout of the repository, on a machine with Docker and its compose. The faults ask the mesh
    questions all the while, and tell what became of them; exit status 1 when a request failed that had
    entered at a living node. NODE is a name that `testbed nodes` shows; without one the last are struck.
    """


@testbed.command()
@click.option(
    "--kind",
    type=click.Choice(["names", "lan", "wan"]),
    default="names",
    show_default=True,
    help="How nodes find one another: by a DNS name, by mDNS, or across three regions by long links.",
)
@click.option("--build", is_flag=True, help="Build the image anew, not only if there is none.")
@click.option("--image", envvar="TESTBED_IMAGE", default="rumormill", show_default=True)
@click.option("--base-image", envvar="TESTBED_BASE_IMAGE", default="", help="BASE_IMAGE of the Dockerfile.")
@click.option(
    "--build-image", envvar="TESTBED_BUILD_IMAGE", default="", help="BUILD_IMAGE of the Dockerfile."
)
@json_option
def up(kind: str, build: bool, image: str, base_image: str, build_image: str, as_json: bool) -> None:
    """Start four nodes, and wait until all see one another."""
    from node.testbed.lifecycle import start

    started = start(kind, image, base_image, build_image, build=build, progress=_progress(as_json))
    _print_started(started.to_dict(), as_json)


@testbed.command()
def down() -> None:
    """End every container of the testbed, and delete what it stored."""
    from node.testbed.lifecycle import stop

    stop()


@testbed.command(name="secrets")
def make_secrets() -> None:
    """Make docker/secrets, for those who start the compose files by themselves."""
    from node.testbed import containers
    from node.testbed.secrets import container_user
    from node.testbed.secrets import make_secrets as make

    make(containers.FOLDER / "secrets")
    click.echo(f"TESTBED_USER={container_user()}")


@testbed.command()
@json_option
def nodes(as_json: bool) -> None:
    """The nodes, how they are, and where to ask them."""
    from dataclasses import asdict

    from node.cli.table import plain_table, print_table
    from node.testbed.testbed import Testbed

    bed = Testbed()
    rows = [asdict(node) | {"peers": bed.seen_by(node) if node.is_healthy else 0} for node in bed.nodes()]
    if as_json:
        click.echo(json.dumps({"nodes": rows}))
        return
    table = plain_table("node", "state", "gRPC", "HTTP", ">peers")
    for row in rows:
        state = "paused" if row["paused"] else row["health"] if row["running"] else "stopped"
        table.add_row(row["name"], state, row["grpc"], row["http"], str(row["peers"]))
    print_table(table)


def _fault_command(fault_name: str, count: int, help_text: str) -> click.Command:
    """The command of a fault that strikes `count` nodes where none is named."""

    def strike(names: tuple[str, ...], seconds: float | None, keep: bool, load: Load, as_json: bool) -> None:
        from node.testbed import faults
        from node.testbed.testbed import Testbed

        fault: Fault = getattr(faults, fault_name)
        bed = Testbed()
        report = faults.run_fault(
            bed,
            fault,
            bed.pick(names, count),
            load,
            seconds=fault.seconds if seconds is None else seconds,
            keep=keep,
            progress=_progress(as_json),
        )
        _print(report, as_json)

    strike.__doc__ = help_text
    name = fault_name.lower().replace("_", "-")
    return testbed.command(name=name, short_help=help_text)(_fault_options(strike))


_fault_command("KILL", 1, "Kill nodes; start them again after 20 s.")
_fault_command("PAUSE", 1, "Freeze nodes for 30 s.")
_fault_command("PARTITION", 2, "Part nodes from all others for 60 s.")
_fault_command("SLOW", 1, "Give nodes a tenth of a CPU for 30 s.")


@testbed.command(name="rolling-restart")
@_load_options
def rolling_restart(load: Load, as_json: bool) -> None:
    """Drain and restart one node after the other, as for an upgrade."""
    from node.testbed import faults
    from node.testbed.testbed import Testbed

    bed = Testbed()
    report = faults.run_fault(
        bed, faults.ROLLING_RESTART, bed.nodes(), load, seconds=0, progress=_progress(as_json)
    )
    _print(report, as_json)


@testbed.command(name="load")
@click.option("--for", "seconds", type=click.FloatRange(1), default=30.0, show_default=True)
@_load_options
def calm(seconds: float, load: Load, as_json: bool) -> None:
    """Ask the mesh without doing anything to it."""
    from node.testbed import faults
    from node.testbed.testbed import Testbed

    report = faults.run_fault(Testbed(), faults.CALM, (), load, seconds=seconds, progress=_progress(as_json))
    _print(report, as_json)


@testbed.command()
@click.argument("count", type=click.IntRange(2, 8))
@_load_options
def scale(count: int, load: Load, as_json: bool) -> None:
    """Have COUNT nodes; those that are too many drain first."""
    from node.testbed.faults import run_scale
    from node.testbed.testbed import Testbed

    _print(run_scale(Testbed(), count, load, progress=_progress(as_json)), as_json)


@testbed.command(name="heal")
@json_option
def heal_all(as_json: bool) -> None:
    """Undo every fault that was kept, and wait until all nodes see one another."""
    from node.testbed.faults import heal
    from node.testbed.testbed import Testbed

    whole_again_s = heal(Testbed())
    if as_json:
        click.echo(json.dumps({"whole_again_s": whole_again_s}))
    else:
        click.echo(f"all nodes see one another, {whole_again_s:.1f} s after the last fault was undone")


def _progress(as_json: bool) -> Callable[[str], None]:
    return (lambda text: None) if as_json else (lambda text: click.echo(f"{text} ...", err=True))


def _print(report: FaultReport, as_json: bool) -> None:
    from node.cli.table import plain_table, print_table, terminal
    from node.testbed.report import COLUMNS

    if as_json:
        click.echo(json.dumps(report.to_dict()))
    else:
        table = plain_table("phase", *(f">{column}" for column in COLUMNS))
        for name, figures in report.phases.items():
            table.add_row(name, *figures.row())
        console = terminal()
        lasted = f" for {report.seconds:.0f} s" if report.seconds else ""
        console.print(f"{report.fault} {', '.join(report.targets)}{lasted}")
        print_table(table)
        if report.whole_again_s is not None:
            console.print(f"all nodes saw one another again {report.whole_again_s:.1f} s after it was mended")
        for error in report.total.errors:
            console.print(f"failed: {error}")
    if report.total.failed:
        raise SystemExit(1)


def _print_started(started: dict[str, Any], as_json: bool) -> None:
    from node.cli.table import plain_table, print_table, terminal

    if as_json:
        click.echo(json.dumps(started))
        return
    table = plain_table("node", "gRPC", "HTTP", ">serving s", ">healthy s")
    for node in started["nodes"]:
        healthy = "-" if node["healthy_after_s"] is None else f"{node['healthy_after_s']:.1f}"
        serving = "-" if node["serving_after_s"] is None else f"{node['serving_after_s']:.1f}"
        table.add_row(node["name"], node["grpc"], f"https://{node['http']}", serving, healthy)
    print_table(table)
    console = terminal()
    console.print(
        f"image {started['image']}: {started['image_bytes'] / 1e6:,.0f} MB; all nodes saw one another "
        f"{started['whole_after_s']:.1f} s after the first command"
    )
    console.print(f"ask it: RUMORMILL_TOKEN=$(cat {started['operator_token']}) rumormill peers --node ...")
