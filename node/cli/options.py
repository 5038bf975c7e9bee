"""Options that several commands share: which node to call, and as whom."""

from __future__ import annotations

import functools
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from node.addresses import parse_address
from node.config import DEFAULT_GRPC_PORT, ENVIRONMENT_PREFIX, default_state_dir
from node.errors import StartupError
from node.state import StateDir

if TYPE_CHECKING:
    from certs.credentials import Credentials
    from certs.roles import Role
    from node.client import Client

INTERRUPTED = 130
"""Exit status after Ctrl-C: 128 and the signal's number, as a shell has it."""

json_option = click.option("--json", "as_json", is_flag=True, help="Print one JSON object, for programs.")

_OPTIONS = (
    click.option(
        "--node",
        metavar="HOST:PORT",
        envvar=ENVIRONMENT_PREFIX + "NODE",
        default=f"127.0.0.1:{DEFAULT_GRPC_PORT}",
        show_default=True,
        callback=lambda context, option, value: str(parse_address(value)),
        help="The node to call.",
    ),
    click.option(
        "--token",
        envvar=ENVIRONMENT_PREFIX + "TOKEN",
        help="Mesh token. Default: that of the node of this user on the same port.",
    ),
    click.option(
        "--certs",
        type=click.Path(path_type=Path),
        envvar=ENVIRONMENT_PREFIX + "CERTS",
        help="Folder with tls.crt, tls.key and ca.crt, in a mesh with certificates of its own.",
    ),
    click.option(
        "--state-dir",
        type=click.Path(path_type=Path),
        envvar=ENVIRONMENT_PREFIX + "STATE_DIR",
        help="State folder of the node, to take its token from.",
    ),
)


@dataclass(frozen=True, slots=True)
class Target:
    """A node, and where the caller's credentials come from."""

    node: str
    token: str | None
    certs: Path | None
    state_dir: Path | None

    def client(self, role: Role) -> Client:
        """A client of the node that is known to answer.

        Raises StartupError, a CertsError or ClientError.
        """
        from node.client import Client

        client = Client(self.node, self.credentials(role))
        try:
            client.wait_ready()
        except BaseException:
            client.close()
            raise
        return client

    def credentials(self, role: Role) -> Credentials:
        """Those in --certs, or of the mesh's token; raises StartupError or a CertsError."""
        from certs.directory_source import directory_credentials
        from certs.token import MeshToken
        from certs.token_source import caller_credentials

        if self.certs is not None:
            return directory_credentials(self.certs)
        return caller_credentials(MeshToken.parse(self.find_token()), role)

    def find_token(self) -> str:
        """The given token, or the one that a node of this user keeps; raises StartupError."""
        if self.token:
            return self.token
        port = self.node.rpartition(":")[2]
        folder = self.state_dir or default_state_dir(int(port) if port.isdigit() else DEFAULT_GRPC_PORT)
        if stored := StateDir(folder).read_token():
            return stored
        raise StartupError(
            f"no mesh token: start a node with `rumormill up`, or give --token (looked in {folder})"
        )


def node_options(command: Callable[..., Any]) -> Callable[..., Any]:
    """Adds --node, --token, --certs and --state-dir, and hands them over as `target`."""

    @functools.wraps(command)
    def with_target(
        *, node: str, token: str | None, certs: Path | None, state_dir: Path | None, **rest: Any
    ) -> Any:
        return command(target=Target(node, token, certs, state_dir), **rest)

    for option in reversed(_OPTIONS):
        with_target = option(with_target)
    return with_target
