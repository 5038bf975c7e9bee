"""Whether other nodes are found, can be dialled, and have the time that this machine has."""

from __future__ import annotations

import asyncio
import time
from dataclasses import dataclass

import grpc.aio

from node.client import Client
from node.doctor.check import Check, ok, problem, warning
from overlay.core.types import Address, NodeId, short_id
from overlay.net.bootstrap import resolve
from overlay.net.channels import gossip_channel
from overlay.net.clocks import FAR_S, describe_skew
from overlay.net.discovery import Discovery
from overlay.net.errors import DialError
from overlay.net.first_contact import Contact, first_contact
from overlay.net.security import TransportSecurity
from overlay.net.targets import is_ip
from rumormill.v1 import overlay_pb2, overlay_pb2_grpc

DISCOVERY_S = 3.0
GREETING_S = 3.0
MAX_PEERS = 32
"""Of a running node, looked at one by one."""


async def check_discovery(security: TransportSecurity, listen: tuple[Address, ...]) -> list[Check]:
    """Whom mDNS finds within three seconds, and whether they can be dialled."""
    found: set[NodeId] = set()

    discovery = Discovery(
        NodeId(security.node_id),
        listen,
        lambda: security.discovery_tags,
        lambda hint: found.add(hint.node_id) if hint.node_id is not None else None,
        announce=False,
    )
    discovery.start()
    await asyncio.sleep(DISCOVERY_S)
    heard = {node_id: discovery.heard(node_id) for node_id in sorted(found)[:MAX_PEERS]}
    await discovery.stop()
    if not heard:
        return [
            warning(
                "discovery",
                f"mDNS finds no other node of this mesh in {DISCOVERY_S:g} s",
                "start one with the same token; where multicast doesn't reach, use --peer HOST:PORT",
            )
        ]
    return [await _check_node(node_id, addresses, security) for node_id, addresses in heard.items()]


async def check_peer(address: Address, security: TransportSecurity) -> list[Check]:
    """Whether a node of this mesh answers at every address behind a seed."""
    resolved = (address,) if is_ip(address.host) else await resolve(address.host, address.port)
    if not resolved:
        remedy = "correct the name, or give the address itself"
        return [problem(f"peer {address}", "the name doesn't resolve", remedy)]
    return [_check(f"peer {each}", await _meet(each, None, security)) for each in resolved]


async def check_peers_of(client: Client, security: TransportSecurity) -> list[Check]:
    """Whether the peers that a running node is connected to can be dialled from here; raises ClientError."""
    checks = []
    for peer in (await asyncio.to_thread(client.peers))[:MAX_PEERS]:
        addresses = tuple(Address(told.host, told.port) for told in peer.addresses)
        if peer.connected and addresses:
            checks.append(await _check_node(NodeId(peer.node_id), addresses, security))
    return checks


async def _check_node(node_id: NodeId, addresses: tuple[Address, ...], security: TransportSecurity) -> Check:
    """One way to a node is enough; the first failure is told where there is none."""
    name = f"node {short_id(node_id)}"
    meetings = [await _meet(address, node_id, security) for address in addresses]
    return _check(name, next((met for met in meetings if isinstance(met, _Met)), meetings[0]))


@dataclass(frozen=True, slots=True)
class _Met:
    contact: Contact
    address: Address
    elapsed_s: float
    ahead_s: float | None
    """Of this machine's clock; None where the peer doesn't say."""


async def _meet(address: Address, node_id: NodeId | None, security: TransportSecurity) -> _Met | DialError:
    started = time.monotonic()
    try:
        contact = await first_contact(address, node_id, security)
    except DialError as error:
        return error
    elapsed_s = time.monotonic() - started
    return _Met(contact, address, elapsed_s, await _clock_ahead(contact, security))


async def _clock_ahead(contact: Contact, security: TransportSecurity) -> float | None:
    """How far the peer's clock is ahead, by its Hello, which it says to whoever opens a stream."""
    async with gossip_channel(contact, security) as channel:
        call = overlay_pb2_grpc.OverlayStub(channel).Gossip()
        try:
            async with asyncio.timeout(GREETING_S):
                frame = await call.read()
        except (TimeoutError, grpc.aio.AioRpcError):
            return None
        finally:
            call.cancel()
    if not isinstance(frame, overlay_pb2.Frame) or not frame.hello.unix_ms:
        return None
    return frame.hello.unix_ms / 1000 - time.time()


def _check(name: str, met: _Met | DialError) -> Check:
    if isinstance(met, DialError):
        cause, _, remedy = str(met).partition("; ")
        return problem(name, cause, remedy or "start a node there, or drop it")
    detail = f"node {short_id(met.contact.node_id)} answers at {met.address} in {met.elapsed_s * 1000:.0f} ms"
    if met.ahead_s is None:
        return ok(name, f"{detail}; it doesn't tell its time to this caller")
    if abs(met.ahead_s) >= FAR_S:
        remedy = "set both clocks by NTP: certificates go by them"
        return warning(name, f"{detail}, but its clock is {describe_skew(met.ahead_s)}", remedy)
    return ok(name, f"{detail}; its clock is right to {max(abs(met.ahead_s), 0.1):.1f} s")
