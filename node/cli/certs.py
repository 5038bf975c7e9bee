"""`rumormill certs`"""

from __future__ import annotations

import json
from datetime import timedelta
from pathlib import Path

import click

from node.cli.options import find_token, json_option, node_options


@click.group(short_help="Certificates for gRPC programs.")
def certs() -> None:
    """Certificates for programs that speak gRPC to the mesh by themselves."""


@certs.command()
@click.option("--role", type=click.Choice(["client", "operator"]), default="client", show_default=True)
@click.option(
    "--days", type=click.IntRange(1, 365), default=30, show_default=True, help="How long it is valid."
)
@click.option(
    "--out",
    type=click.Path(path_type=Path, file_okay=False),
    default=Path(),
    help="Folder; this one by default.",
)
@node_options
@json_option
def issue(
    role: str, days: int, out: Path, node: str, token: str | None, state_dir: Path | None, as_json: bool
) -> None:
    """Write cert.pem, key.pem and ca.pem, and show how grpcurl uses them."""
    from cryptography.hazmat.primitives.asymmetric import ec

    from certs.files import write_atomically
    from certs.node_key import private_pem
    from certs.roles import Role
    from certs.token import MeshToken
    from certs.token_source import TokenSource
    from certs.trust import Denylist

    mesh_token = MeshToken.parse(find_token(node, token, state_dir))
    key = ec.generate_private_key(ec.SECP256R1())
    material = TokenSource((mesh_token,), Role(role), key, Denylist(None), timedelta(days=days)).current()
    out.mkdir(parents=True, exist_ok=True)
    write_atomically(out / "cert.pem", material.chains[0])
    write_atomically(out / "key.pem", private_pem(key))
    write_atomically(out / "ca.pem", material.trust.pem(Role.NODE))
    server_name = f"node.{mesh_token.mesh_id}"
    if as_json:
        click.echo(json.dumps({"folder": str(out), "role": role, "server_name": server_name}))
        return
    click.echo(f"wrote cert.pem, key.pem and ca.pem to {out.resolve()}; for example:")
    click.echo(
        f"  grpcurl -cacert {out / 'ca.pem'} -cert {out / 'cert.pem'} -key {out / 'key.pem'} \\\n"
        f"    -servername {server_name} {node} list"
    )
