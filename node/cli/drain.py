"""`rumormill drain`"""

from __future__ import annotations

import json
from pathlib import Path

import click

from node.cli.options import find_token, json_option, node_options


@click.command(short_help="Stop a node once its requests have finished.")
@node_options
@json_option
def drain(node: str, token: str | None, state_dir: Path | None, as_json: bool) -> None:
    """Stop a node gently: it takes no new work, tells its peers, finishes what runs, and ends."""
    from certs.roles import Role
    from node.client import Client

    with Client(node, find_token(node, token, state_dir), Role.OPERATOR) as client:
        client.wait_ready()
        running = client.drain()
    if as_json:
        click.echo(json.dumps({"running": running}))
    else:
        click.echo(f"{node} stops after {running} running requests")
