"""`rumormill doctor`"""

from __future__ import annotations

import asyncio
import json
from typing import TYPE_CHECKING

import click

from node.cli.options import Target, json_option, node_options
from node.config import DEFAULT_GRPC_PORT, DEFAULT_HTTP_PORT, NodeConfig
from node.errors import StartupError

if TYPE_CHECKING:
    from certs.credentials import Credentials
    from node.doctor.check import Check

COLOURS = {"ok": "green", "warning": "yellow", "problem": "red"}


@click.command(short_help="Check this machine, and say what to do.")
@click.option("--peer", "peers", multiple=True, metavar="HOST:PORT", help="A node that should be reachable.")
@click.option("--listen", default="0.0.0.0", show_default=True, help="Address that a node would listen on.")  # noqa: S104
@click.option("--grpc-port", type=click.IntRange(1, 65535), default=DEFAULT_GRPC_PORT, show_default=True)
@click.option("--http-port", type=click.IntRange(1, 65535), default=DEFAULT_HTTP_PORT, show_default=True)
@click.option("--model", default=NodeConfig.model_fields["model"].default, show_default=True)
@click.option("--mdns/--no-mdns", default=True, show_default=True)
@node_options
@json_option
def doctor(
    peers: tuple[str, ...],
    listen: str,
    grpc_port: int,
    http_port: int,
    model: str,
    mdns: bool,
    target: Target,
    as_json: bool,
) -> None:
    """Check model, clock, certificate, interfaces, ports, multicast and peers, with a node running or not.

    Exit status 1 when something is a problem.
    """
    from certs.roles import Role
    from certs.token import MeshToken
    from certs.token_source import caller_credentials
    from node.doctor.check import Severity
    from node.doctor.examination import examine

    known_mesh = True
    try:
        credentials = target.credentials(Role.NODE)
    except StartupError as error:
        click.echo(f"{error}; peers are not looked for", err=True)
        known_mesh, credentials = False, caller_credentials(MeshToken.make(), Role.NODE)
    checks = asyncio.run(
        examine(
            credentials,
            listen,
            grpc_port,
            http_port,
            known_mesh=known_mesh,
            own_certificate=target.certs is not None,
            model=model,
            peers=peers,
            mdns=mdns,
        )
    )
    checks += _node(target, credentials)
    if as_json:
        click.echo(json.dumps({"checks": [check.as_object() for check in checks]}))
    else:
        _print(checks)
    if any(check.severity is Severity.PROBLEM for check in checks):
        raise SystemExit(1)


def _node(target: Target, as_peer: Credentials) -> list[Check]:
    """A look at the running node and the peers it knows, for those who may look."""
    from certs.errors import CertsError
    from certs.roles import Role
    from node.client import Client, ClientError
    from node.doctor.peers import check_peers_of
    from node.doctor.running import check_node

    try:
        credentials = target.credentials(Role.OPERATOR)
    except (StartupError, CertsError):
        return []
    with Client(target.node, credentials) as client:
        checks = [check_node(client)]
        try:
            return checks + asyncio.run(check_peers_of(client, as_peer))
        except ClientError:  # of which the check before has told
            return checks


def _print(checks: list[Check]) -> None:
    from node.cli.table import terminal

    console = terminal()
    for check in checks:
        severity = check.severity.value
        console.print(f"{severity:>8}", style=COLOURS[severity], end="")
        console.print(f"  {check.name}: {check.detail}")
        if check.remedy:
            console.print(f"{'':10}-> {check.remedy}")
