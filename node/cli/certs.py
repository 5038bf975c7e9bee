"""`rumormill certs`"""

from __future__ import annotations

import json
from datetime import timedelta
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from node.cli.options import Target, json_option, node_options

if TYPE_CHECKING:
    from certs.pki import CertificateSummary

ROLES = ("client", "node", "operator")


@click.group(short_help="Certificates, for gRPC tools and for meshes with a PKI of their own.")
def certs() -> None:
    """Certificates: for gRPC tools in a mesh made by token, and for a mesh with its own authority.

    \b
    With a token:      rumormill certs issue --out DIR
    Own authority:     rumormill certs init ca --mesh my.mesh
                       rumormill certs issue --authority ca --role node --out node1
                       rumormill up --certs node1 --peer other:7070
    """


@certs.command(short_help="Make an authority.")
@click.argument("folder", type=click.Path(path_type=Path))
@click.option("--mesh", required=True, help="The mesh's name; it becomes part of every certificate.")
@json_option
def init(folder: Path, mesh: str, as_json: bool) -> None:
    """Make an authority for a new mesh in FOLDER. Its ca.key never leaves it: keep it offline."""
    from certs import pki

    pki.init(folder, mesh)
    if as_json:
        click.echo(json.dumps({"folder": str(folder), "mesh_id": mesh}))
    else:
        click.echo(f"made {mesh}'s authority in {folder}; next: rumormill certs issue --authority {folder}")


@certs.command(short_help="Issue a certificate.")
@click.option("--role", type=click.Choice(ROLES), default="client", show_default=True)
@click.option("--out", type=click.Path(path_type=Path, file_okay=False), required=True, help="To fill.")
@click.option("--authority", type=click.Path(path_type=Path), help="Folder of `certs init`.")
@click.option("--name", help="Whom it is for; a key's own id by default.")
@click.option("--days", type=click.IntRange(1, 3650), default=30, show_default=True, help="Valid for.")
@node_options
@json_option
def issue(
    role: str, out: Path, authority: Path | None, name: str | None, days: int, target: Target, as_json: bool
) -> None:
    """Fill a folder with tls.crt, tls.key and ca.crt: for --certs, grpcurl or any gRPC program.

    A key that is there already is kept, so that a node keeps its id.
    """
    from certs import pki
    from certs.roles import Role

    lifetime = timedelta(days=days)
    if authority is not None:
        mesh_id = pki.issue(authority, Role(role), out, name, lifetime).mesh_id
    else:
        mesh_id = _issue_from_token(target, role, name, out, lifetime)
    if as_json:
        click.echo(json.dumps({"folder": str(out), "role": role, "server_name": f"node.{mesh_id}"}))
        return
    click.echo(f"filled {out}; for example:")
    click.echo(
        f"  grpcurl -cacert {out / 'ca.crt'} -cert {out / 'tls.crt'} -key {out / 'tls.key'} \\\n"
        f"    -servername node.{mesh_id} {target.node} list"
    )


def _issue_from_token(target: Target, role: str, name: str | None, out: Path, lifetime: timedelta) -> str:
    """Writes a leaf that the mesh's token vouches for; the mesh's id."""
    from cryptography.hazmat.primitives.asymmetric import ec

    from certs.directory_source import AUTHORITIES_FILE, CERTIFICATE_FILE, KEY_FILE
    from certs.files import write_atomically
    from certs.node_key import private_pem
    from certs.roles import Role
    from certs.token import MeshToken
    from certs.token_source import TokenSource
    from certs.trust import Denylist

    if name is not None:
        raise click.UsageError("--name needs --authority; a certificate from a token is named by its key")
    if role == Role.NODE.value:
        raise click.UsageError("a node makes its own certificate from the token: rumormill up --token ...")
    token = MeshToken.parse(target.find_token())
    key = ec.generate_private_key(ec.SECP256R1())
    material = TokenSource((token,), Role(role), key, Denylist(None), lifetime).current()
    out.mkdir(mode=0o700, parents=True, exist_ok=True)
    write_atomically(out / CERTIFICATE_FILE, material.chains[0], 0o644)
    write_atomically(out / KEY_FILE, private_pem(key))
    write_atomically(out / AUTHORITIES_FILE, material.trust.pem(Role.NODE), 0o644)
    return token.mesh_id


@certs.command(short_help="Show certificates.")
@click.argument("path", type=click.Path(path_type=Path))
@json_option
def show(path: Path, as_json: bool) -> None:
    """Show who the certificates in a file or folder are for, and until when."""
    from certs import pki

    rows = [_row(summary) for summary in pki.show(path)]
    if as_json:
        click.echo(json.dumps({"certificates": rows}))
        return
    from node.cli.table import plain_table, print_table

    table = plain_table("for", "serial", "from", "until")
    for row in rows:
        table.add_row(row["for"], row["serial"], row["not_before"], row["not_after"])
    print_table(table)


def _row(summary: CertificateSummary) -> dict[str, Any]:
    return {
        "for": str(summary.identity) if summary.identity else f"authority {summary.subject}",
        "serial": summary.serial,
        "not_before": f"{summary.not_before:%F %R}Z",
        "not_after": f"{summary.not_after:%F %R}Z",
    }


@certs.command(short_help="Deny a certificate from now on.")
@click.argument("folder", type=click.Path(path_type=Path))
@click.argument("entry")
@json_option
def revoke(folder: Path, entry: str, as_json: bool) -> None:
    """Put ENTRY (a name, node id, serial:<hex>, or certificate file) on the denylist in FOLDER.

    FOLDER is the one given to `up --certs`, or a node's state folder; running nodes follow within a second,
    on open connections too.
    """
    from certs import pki

    pki.revoke(folder, entry)
    click.echo(json.dumps({"revoked": entry}) if as_json else f"{entry} is denied by nodes that use {folder}")
