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
    return {
        "node_id": peer.node_id,
        "is_self": False,
        "state": state_of(peer),
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


def state_of(peer: admin_pb2.Peer) -> str:
    """What the asked node believes of a peer."""
    from rumormill.v1 import overlay_pb2

    state = overlay_pb2.MemberState.Name(peer.state).removeprefix("MEMBER_STATE_").lower()
    return "candidate" if state == "unspecified" else state


def _print(mesh_id: str, rows: list[dict[str, Any]]) -> None:
    from node.cli.table import plain_table, print_table, terminal

    models = {row["model"] for row in rows if row["model"]}
    headings = ["node", "state", "address", ">rtt ms", ">reqs", ">queued", ">ms/token", ">blocks"]
    table = plain_table(*headings, *(["model"] if len(models) > 1 else []))
    for row in rows:
        cells = [
            row["node_id"][:8] + ("*" if row["is_self"] else ""),
            row["state"] if row["connected"] else f"{row['state']}, apart",
            _addresses(row["addresses"]),
            "-" if row["is_self"] else f"{row['rtt_ms']:.1f}",
            str(row["running"] + row["waiting"]),
            str(row["queued_prefill_tokens"]),
            f"{row['ms_per_prefill_token']:.2f}",
            str(row["cached_blocks"]),
        ]
        table.add_row(*cells, *([row["model"]] if len(models) > 1 else []))
    console = terminal()
    model = f" serves {models.pop()}" if len(models) == 1 else ""
    console.print(f"mesh {mesh_id}{model}; * is the node that was asked")
    print_table(table)
    if len(rows) == 1:
        console.print(
            "No peers yet. On each other machine run `rumormill up --token ...` with this mesh's token; "
            "where multicast doesn't reach, add `--peer HOST:PORT`."
        )


def _addresses(addresses: list[str]) -> str:
    """The first one, and how many more there are."""
    more = f" +{len(addresses) - 1}" if len(addresses) > 1 else ""
    return f"{addresses[0]}{more}" if addresses else "-"
