"""`rumormill drain`"""

from __future__ import annotations

import json

import click

from node.cli.options import Target, json_option, node_options


@click.command(short_help="Stop a node once its requests have finished.")
@node_options
@json_option
def drain(target: Target, as_json: bool) -> None:
    """Stop a node gently: it takes no new work, tells its peers, finishes what runs, and ends."""
    from certs.roles import Role

    with target.client(Role.OPERATOR) as client:
        running = client.drain()
    if as_json:
        click.echo(json.dumps({"running": running}))
    else:
        click.echo(f"{target.node} stops after {running} running requests")
