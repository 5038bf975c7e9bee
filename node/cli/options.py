"""Options that several commands share: which node to call, and with which token."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any, TypeVar

import click

from node.config import DEFAULT_GRPC_PORT, ENVIRONMENT_PREFIX, default_state_dir
from node.errors import StartupError
from node.state import StateDir

Command = TypeVar("Command", bound=Callable[..., Any])

json_option = click.option("--json", "as_json", is_flag=True, help="Print one JSON object, for programs.")

_OPTIONS = (
    click.option(
        "--node",
        metavar="HOST:PORT",
        envvar=ENVIRONMENT_PREFIX + "NODE",
        default=f"127.0.0.1:{DEFAULT_GRPC_PORT}",
        show_default=True,
        help="The node to call.",
    ),
    click.option(
        "--token",
        envvar=ENVIRONMENT_PREFIX + "TOKEN",
        help="Mesh token. Default: that of the node of this user on the same port.",
    ),
    click.option(
        "--state-dir",
        type=click.Path(path_type=Path),
        envvar=ENVIRONMENT_PREFIX + "STATE_DIR",
        help="State folder of the node, to take its token from.",
    ),
)


def node_options(command: Command) -> Command:
    """Adds --node, --token and --state-dir."""
    for option in reversed(_OPTIONS):
        command = option(command)
    return command


def find_token(node: str, token: str | None, state_dir: Path | None) -> str:
    """The given token, or the one that a node of this user keeps; raises StartupError."""
    if token:
        return token
    port = node.rpartition(":")[2]
    folder = state_dir or default_state_dir(int(port) if port.isdigit() else DEFAULT_GRPC_PORT)
    if stored := StateDir(folder).read_token():
        return stored
    raise StartupError(
        f"no mesh token: start a node with `rumormill up`, or give --token (looked in {folder})"
    )
