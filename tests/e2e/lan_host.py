"""A mesh member on every interface of one host: run as a process, in a network namespace.

Arguments: state folder, token, then seeds, `--no-mdns` among them if it is to be without. Prints its id, then
whom it is connected to, whom it can send requests to and whom it believes dead, whenever that changes, one
JSON value a line.
"""

from __future__ import annotations

import asyncio
import json
import sys
from pathlib import Path

from certs.token import MeshToken
from node.addresses import advertised_addresses
from overlay.core.timing import Timing
from overlay.core.types import Address, NodeId
from overlay.core.views import PeerState
from tests.unit.overlay.net.meshes import Member

NO_MDNS = "--no-mdns"


def addresses(port: int) -> tuple[Address, ...]:
    return advertised_addresses("0.0.0.0", port, ())


async def main(state_dir: str, token: str, *seeds: str) -> None:
    member = Member(
        Path(state_dir),
        token=MeshToken.parse(token),
        seeds=tuple(seed for seed in seeds if seed != NO_MDNS),
        mdns=NO_MDNS not in seeds,
        bind="0.0.0.0",
        port=7070,
        addresses_now=addresses,
        timing=Timing.lan(),
    )
    async with member:
        print(json.dumps(member.mesh.node_id), flush=True)
        told: list[list[NodeId]] = []
        while True:
            peers = [peer.node_id for peer in member.mesh.peers() if peer.connected]
            dead = [peer.node_id for peer in member.mesh.peers() if peer.state is PeerState.DEAD]
            now = [sorted(peers), sorted(filter(member.mesh.is_reachable, peers)), sorted(dead)]
            if now != told:
                told = now
                print(json.dumps(now), flush=True)
            await asyncio.sleep(0.05)


if __name__ == "__main__":
    asyncio.run(main(*sys.argv[1:]))
