"""Checks of the network that a node's overlay needs, each with what to do about it.

Run by `rumormill doctor`, on a machine where a node may or may not be running.
"""

from __future__ import annotations

import asyncio
import ipaddress
import socket
import struct
import time
from collections.abc import Sequence
from dataclasses import dataclass
from enum import Enum

import ifaddr

from overlay.core.types import Address, NodeId, short_id
from overlay.net.bootstrap import resolve
from overlay.net.discovery import Discovery
from overlay.net.errors import DialError
from overlay.net.first_contact import first_contact
from overlay.net.security import TransportSecurity
from overlay.net.targets import is_ip

MDNS_GROUP, MDNS_PORT = "224.0.0.251", 5353
DISCOVERY_S = 3.0
MULTICAST_S = 1.0


class Severity(Enum):
    """How bad a finding is."""

    OK = "ok"
    WARNING = "warning"
    PROBLEM = "problem"


@dataclass(frozen=True, slots=True)
class Finding:
    """What one check found; `remedy` is empty where nothing is to be done."""

    check: str
    severity: Severity
    detail: str
    remedy: str = ""


async def check_network(
    security: TransportSecurity, listen: Sequence[Address], seeds: Sequence[Address], *, mdns: bool = True
) -> list[Finding]:
    """Every check of this module."""
    findings = check_interfaces()
    for address in listen:
        findings.append(await check_listening(address))
    if mdns:
        findings.append(await check_multicast())
        findings += await check_discovery(security, listen)
    for seed in seeds:
        findings += await check_peer(seed, security)
    return findings


def check_interfaces() -> list[Finding]:
    """Which addresses other machines could dial."""
    usable = [
        f"{adapter.nice_name} {ip.ip if ip.is_IPv4 else ip.ip[0]}"
        for adapter in ifaddr.get_adapters()
        for ip in adapter.ips
        if _is_dialable(str(ip.ip if ip.is_IPv4 else ip.ip[0]))
    ]
    if usable:
        return [Finding("interfaces", Severity.OK, ", ".join(usable))]
    return [
        Finding(
            "interfaces",
            Severity.WARNING,
            "only loopback and link-local addresses",
            "connect this machine to a network if other machines are to join",
        )
    ]


async def check_listening(address: Address) -> Finding:
    """Whether a node listens at an address of this machine, or could."""
    check = f"port {address}"
    try:
        _, writer = await asyncio.wait_for(asyncio.open_connection(address.host, address.port), 2.0)
    except (OSError, TimeoutError):
        return _check_bindable(check, address)
    writer.transport.abort()
    return Finding(check, Severity.OK, "something listens there")


def _check_bindable(check: str, address: Address) -> Finding:
    if not is_ip(address.host):
        return Finding(check, Severity.WARNING, "nobody answers", "start the node, or mend --advertise")
    family = socket.AF_INET6 if ":" in address.host else socket.AF_INET
    with socket.socket(family, socket.SOCK_STREAM) as probe:
        try:
            probe.bind((address.host, address.port))
        except OSError as error:
            return Finding(
                check,
                Severity.PROBLEM,
                f"it can't be listened at: {error.strerror}",
                "choose another with --grpc-port or --listen",
            )
    return Finding(check, Severity.OK, "free")


async def check_multicast() -> Finding:
    """Whether this machine hears its own multicast, on a port beside mDNS's so as to disturb nobody."""
    probe = f"rumormill doctor {time.time_ns()}".encode()
    receiver = socket.socket(socket.AF_INET, socket.SOCK_DGRAM)
    sender = socket.socket(socket.AF_INET, socket.SOCK_DGRAM)
    try:
        with receiver, sender:
            receiver.bind(("", 0))
            membership = struct.pack("4s4s", socket.inet_aton(MDNS_GROUP), socket.inet_aton("0.0.0.0"))  # noqa: S104
            receiver.setsockopt(socket.IPPROTO_IP, socket.IP_ADD_MEMBERSHIP, membership)
            receiver.setblocking(False)
            sender.setsockopt(socket.IPPROTO_IP, socket.IP_MULTICAST_TTL, 1)
            sender.sendto(probe, (MDNS_GROUP, receiver.getsockname()[1]))
            async with asyncio.timeout(MULTICAST_S):
                while await asyncio.get_running_loop().sock_recv(receiver, 1024) != probe:
                    continue
    except TimeoutError:
        return _no_multicast("this machine doesn't hear its own multicast")
    except OSError as error:
        return _no_multicast(f"multicast fails: {error.strerror}")
    return Finding("multicast", Severity.OK, "this machine hears its own")


def _no_multicast(detail: str) -> Finding:
    return Finding(
        "multicast",
        Severity.WARNING,
        detail,
        f"let UDP port {MDNS_PORT} to {MDNS_GROUP} through the firewall, or use --peer HOST:PORT",
    )


async def check_discovery(security: TransportSecurity, listen: Sequence[Address]) -> list[Finding]:
    """Whom mDNS finds within three seconds, and whether they can be dialled."""
    found: set[Address] = set()
    discovery = Discovery(
        NodeId(security.node_id),
        listen,
        lambda: security.discovery_tags,
        lambda hint: found.add(hint.address),
        announce=False,
    )
    discovery.start()
    await asyncio.sleep(DISCOVERY_S)
    await discovery.stop()
    if not found:
        return [
            Finding(
                "discovery",
                Severity.WARNING,
                f"mDNS finds no other node of this mesh in {DISCOVERY_S:g} s",
                "start one with the same token; where multicast doesn't reach, use --peer HOST:PORT",
            )
        ]
    findings = []
    for address in sorted(found):
        findings += await check_peer(address, security)
    return findings


async def check_peer(address: Address, security: TransportSecurity) -> list[Finding]:
    """Whether a node of this mesh answers at every address behind a seed."""
    resolved = (address,) if is_ip(address.host) else await resolve(address.host, address.port)
    if not resolved:
        remedy = "correct the name, or give the address itself"
        return [Finding(f"peer {address}", Severity.PROBLEM, "the name doesn't resolve", remedy)]
    return list(await asyncio.gather(*(_check_address(each, security) for each in resolved)))


async def _check_address(address: Address, security: TransportSecurity) -> Finding:
    started = time.monotonic()
    try:
        contact = await first_contact(address, None, security)
    except DialError as error:
        cause, _, remedy = str(error).partition("; ")
        return Finding(f"peer {address}", Severity.PROBLEM, cause, remedy or "start a node there, or drop it")
    elapsed_ms = (time.monotonic() - started) * 1000
    detail = f"node {short_id(contact.node_id)} answers in {elapsed_ms:.0f} ms"
    return Finding(f"peer {address}", Severity.OK, detail)


def _is_dialable(host: str) -> bool:
    address = ipaddress.ip_address(host)
    return not (address.is_loopback or address.is_link_local)
