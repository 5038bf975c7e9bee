"""A mesh member on every interface of one host: run as a process, in a network namespace.

Arguments: state folder, token, then seeds. Prints its id, then the ids it is connected to whenever
they change, one JSON list a line.
"""

from __future__ import annotations

import asyncio
import json
import sys
from pathlib import Path

import ifaddr

from certs.token import MeshToken
from overlay.core.timing import Timing
from overlay.core.types import Address, NodeId
from tests.unit.overlay.net.meshes import Member


def addresses(port: int) -> tuple[Address, ...]:
    ips = [ip.ip for adapter in ifaddr.get_adapters() for ip in adapter.ips if ip.is_IPv4]
    return tuple(Address(str(ip), port) for ip in ips if not str(ip).startswith("127."))


async def main(state_dir: str, token: str, *seeds: str) -> None:
    member = Member(
        Path(state_dir),
        token=MeshToken.parse(token),
        seeds=seeds,
        mdns=True,
        bind="0.0.0.0",
        port=7070,
        addresses_now=addresses,
        timing=Timing.lan(),
    )
    async with member:
        print(json.dumps(member.mesh.node_id), flush=True)
        told: list[NodeId] | None = None
        while True:
            peers = sorted(peer.node_id for peer in member.mesh.peers() if peer.connected)
            if peers != told:
                told = peers
                print(json.dumps(peers), flush=True)
            await asyncio.sleep(0.05)


if __name__ == "__main__":
    asyncio.run(main(*sys.argv[1:]))
