"""`rumormill token`"""

from __future__ import annotations

import json

import click

from node.cli.options import json_option


@click.command(short_help="Make a mesh token.")
@click.option(
    "--role",
    type=click.Choice(["operator", "node", "client"]),
    default="operator",
    show_default=True,
    help="Whom the token is for: an operator may do everything, a node may join and serve, a client may ask.",
)
@click.option(
    "--from", "parent", metavar="TOKEN", help="Derive from this token of the same mesh, not a new one."
)
@json_option
def token(role: str, parent: str | None, as_json: bool) -> None:
    """Make a mesh token: nodes started with the same one find each other and form a mesh.

    A token is a secret. From an operator token (the default) every certificate of the mesh derives;
    hand out node and client tokens where less will do:

      rumormill token --role client --from rumormill_...
    """
    from certs.roles import Role
    from certs.token import MeshToken

    mesh_token = (MeshToken.parse(parent) if parent else MeshToken.make()).for_role(Role(role))
    if as_json:
        click.echo(json.dumps({"token": str(mesh_token), "mesh_id": mesh_token.mesh_id, "role": role}))
    else:
        click.echo(str(mesh_token))
