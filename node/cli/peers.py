"""`rumormill peers`"""

from __future__ import annotations

import json
from typing import TYPE_CHECKING, Any

import click

from node.cli.options import Target, json_option, node_options

if TYPE_CHECKING:
    from rumormill.v1 import admin_pb2


@click.command(short_help="The node and the peers it sees.")
@node_options
@json_option
def peers(target: Target, as_json: bool) -> None:
    """Show a node and the peers it sees: who lives, how far away, how busy, how much it has cached."""
    from certs.roles import Role

    with target.client(Role.OPERATOR) as client:
        status, found = client.status(), client.peers()
    rows = [_own_row(status), *(_peer_row(peer) for peer in found)]
    if as_json:
        click.echo(json.dumps({"mesh_id": status.mesh_id, "node_id": status.node_id, "peers": rows}))
    else:
        _print(status.mesh_id, rows)


def _own_row(status: admin_pb2.GetStatusResponse) -> dict[str, Any]:
    return {
        "node_id": status.node_id,
        "is_self": True,
        "state": "alive",
        "connected": True,
        "addresses": [f"{a.host}:{a.port}" for a in status.addresses],
        "model": status.model.name,
        "rtt_ms": 0.0,
        "running": status.load.running,
        "waiting": status.load.waiting,
        "queued_prefill_tokens": status.load.queued_prefill_tokens,
        "ms_per_prefill_token": status.load.seconds_per_prefill_token * 1000,
        "cached_blocks": status.cached_blocks,
        "quarantined_s": 0.0,
    }


def _peer_row(peer: admin_pb2.Peer) -> dict[str, Any]:
    from rumormill.v1 import overlay_pb2

    state = overlay_pb2.MemberState.Name(peer.state).removeprefix("MEMBER_STATE_").lower()
    return {
        "node_id": peer.node_id,
        "is_self": False,
        "state": "candidate" if state == "unspecified" else state,
        "connected": peer.connected,
        "addresses": [f"{a.host}:{a.port}" for a in peer.addresses],
        "model": peer.model,
        "rtt_ms": peer.rtt_s * 1000,
        "running": peer.load.running,
        "waiting": peer.load.waiting,
        "queued_prefill_tokens": peer.load.queued_prefill_tokens,
        "ms_per_prefill_token": peer.load.seconds_per_prefill_token * 1000,
        "cached_blocks": peer.cached_blocks,
        "quarantined_s": peer.quarantined_s,
    }


def _print(mesh_id: str, rows: list[dict[str, Any]]) -> None:

    from node.cli.table import plain_table, terminal

    table = plain_table(
        "node", "state", "address", ">rtt ms", ">requests", ">queued", ">ms/token", ">blocks", "model"
    )
    for row in rows:
        table.add_row(
            row["node_id"][:8] + ("*" if row["is_self"] else ""),
            row["state"] if row["connected"] else f"{row['state']}, apart",
            ", ".join(row["addresses"]),
            "-" if row["is_self"] else f"{row['rtt_ms']:.1f}",
            str(row["running"] + row["waiting"]),
            str(row["queued_prefill_tokens"]),
            f"{row['ms_per_prefill_token']:.2f}",
            str(row["cached_blocks"]),
            row["model"],
        )
    console = terminal()
    console.print(f"mesh {mesh_id}; * is the node that was asked")
    console.print(table)
    if len(rows) == 1:
        console.print(
            "No peers yet. On each other machine run `rumormill up --token ...` with this mesh's token; "
            "where multicast doesn't reach, add `--peer HOST:PORT`."
        )
