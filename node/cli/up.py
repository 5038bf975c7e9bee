"""`rumormill up`"""

from __future__ import annotations

import asyncio
import json
import logging
import os
import signal
import sys
from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING, Any, get_args, get_origin

import click
from click.core import ParameterSource
from pydantic.fields import FieldInfo

from node.cli.options import INTERRUPTED, json_option
from node.cli.screen import is_live
from node.cli.stages import Tell, stages
from node.config import ENVIRONMENT_PREFIX, NodeConfig, make_config, option_name, read_config_file
from node.errors import StartupError
from node.logs import setup_logging

if TYPE_CHECKING:
    from node.node import Node

log = logging.getLogger("rumormill.node")


def _config_options(command: Callable[..., Any]) -> Callable[..., Any]:
    """One option for every field of NodeConfig, each with its environment variable."""
    for name, field in reversed(NodeConfig.model_fields.items()):
        command = _option(name, field)(command)
    return command


def _option(name: str, field: FieldInfo) -> Callable[[Callable[..., Any]], Callable[..., Any]]:
    kind = field.annotation
    settings: dict[str, Any] = {
        "help": field.description,
        "envvar": ENVIRONMENT_PREFIX + name.upper(),
        "show_envvar": True,
        "default": field.default,
        "show_default": field.default not in (None, (), ""),
    }
    declaration = option_name(name)
    if kind is bool:
        declaration = f"{declaration}/--no-{name.replace('_', '-')}"
    elif get_origin(kind) is tuple:
        settings["multiple"] = True
    elif kind in (int, float):
        settings["type"] = kind
    elif all(isinstance(choice, str) for choice in get_args(kind)) and get_args(kind):
        settings["type"] = click.Choice(get_args(kind))
    elif Path in get_args(kind):
        settings["type"] = click.Path(path_type=Path)
    return click.option(declaration, name, **settings)


@click.command(short_help="Start a node.")
@click.option(
    "--config",
    "config_file",
    type=click.Path(path_type=Path),
    envvar=ENVIRONMENT_PREFIX + "CONFIG",
    help="TOML file with any of these options; the command line and the environment come first.",
)
@_config_options
@click.option(
    "--until-eof",
    is_flag=True,
    help="End when standard input ends, so that no node outlives what started it.",
)
@json_option
@click.pass_context
def up(
    context: click.Context, /, config_file: Path | None, until_eof: bool, as_json: bool, **given: Any
) -> int:
    """Start a node and serve until Ctrl-C.

    Without --token it makes one, listens on this machine only, and prints the line that lets others join.
    With --token it listens on every interface and finds the mesh's other nodes on the LAN by itself.
    """
    values = read_config_file(config_file) if config_file else {}
    for name, value in given.items():
        if name not in values or context.get_parameter_source(name) is not ParameterSource.DEFAULT:
            values[name] = value
    config = make_config(values)
    quiet = as_json or is_live()
    level = ("warning" if quiet else "info") if config.log_level == "auto" else config.log_level
    setup_logging(level, config.log_format)
    return asyncio.run(_run(config, until_eof=until_eof, as_json=as_json))


async def _run(config: NodeConfig, *, until_eof: bool, as_json: bool) -> int:
    """Starts a node and serves; the exit status."""
    interrupted = asyncio.Event()
    loop = asyncio.get_running_loop()
    for number in (signal.SIGINT, signal.SIGTERM):
        loop.add_signal_handler(number, interrupted.set)
    if until_eof:
        _watch_input(loop, interrupted.set)
    with stages(lambda stage: log.info("starting", extra={"stage": stage})) as tell:
        node = await _start(config, tell, interrupted)
    if node is None:
        return INTERRUPTED
    click.echo(json.dumps(_ready(node)) if as_json else _welcome(node))
    sys.stdout.flush()
    for number in (signal.SIGINT, signal.SIGTERM):
        loop.add_signal_handler(number, _interrupt, node)
    if until_eof:
        _watch_input(loop, node.stop_now)
    if interrupted.is_set():
        node.stop_now()
    await _serve(node, shown=is_live() and not as_json)
    return 0


async def _start(config: NodeConfig, tell: Tell, interrupted: asyncio.Event) -> Node | None:
    """A node that serves, or None if it was interrupted before it did."""
    from node.node import Node

    node = Node(config, tell)
    starting = asyncio.create_task(node.start())
    stop = asyncio.create_task(interrupted.wait())
    await asyncio.wait({starting, stop}, return_when=asyncio.FIRST_COMPLETED)
    if not starting.done():
        starting.cancel()
        await asyncio.gather(starting, return_exceptions=True)
        return None
    stop.cancel()
    await starting
    return node


async def _serve(node: Node, *, shown: bool) -> None:
    """Serves until told to stop, with a live status if it is `shown`."""
    from node.cli.status import show_status

    status = asyncio.create_task(show_status(node)) if shown else None
    try:
        await node.run()
    finally:
        if status is not None:
            status.cancel()
            await asyncio.gather(status, return_exceptions=True)


def _watch_input(loop: asyncio.AbstractEventLoop, stop: Callable[[], None]) -> None:
    """Raises StartupError for an input that can't be watched: a file has its end from the beginning."""
    try:
        loop.add_reader(sys.stdin, _at_end_of_input, loop, stop)
    except OSError:
        raise StartupError("--until-eof needs a pipe or terminal as standard input") from None


def _at_end_of_input(loop: asyncio.AbstractEventLoop, stop: Callable[[], None]) -> None:
    if not os.read(sys.stdin.fileno(), 4096):
        loop.remove_reader(sys.stdin)
        stop()


def _interrupt(node: Node) -> None:
    """First a drain, then, asked again, an end."""
    if node.admission.draining or not node.in_flight.count:
        node.stop_now()
        return
    click.echo(f"finishing {node.in_flight.count} requests; Ctrl-C again stops now", err=True)
    node.begin_drain()


def _ready(node: Node) -> dict[str, Any]:
    return {
        "node_id": node.node_id,
        "mesh_id": node.mesh.mesh_id,
        "grpc": node.grpc_address,
        "http": node.http_url,
        "model": node.engine.info.model_name,
        "state_dir": str(node.state.path),
    }


def _welcome(node: Node) -> str:
    lines = [
        f"node {node.node_id[:8]} of mesh {node.mesh.mesh_id} serves {node.engine.info.model_name}",
        f"  OpenAI API  {node.http_url}/v1",
        f"  gRPC        {node.grpc_address} (mutual TLS)",
        "",
    ]
    return "\n".join(lines + _how_to_join(node))


def _how_to_join(node: Node) -> list[str]:
    if node.token is None:
        return ["Other nodes join with certificates of the same authority: --certs DIR --peer HOST:PORT"]
    join = f"  rumormill up --token {node.token}"
    if not node.is_loopback:
        return ["Other machines on this LAN join with the same token; elsewhere add --peer HOST:PORT.", join]
    ports = f"--grpc-port {node.grpc_server.port + 1} --http-port {node.http_server.port + 1}"
    return [
        "Only this machine can reach it. A second node here joins with",
        f"{join} {ports}",
        "For a mesh on the LAN, stop this node and run on every machine, this one too:",
        join,
    ]
