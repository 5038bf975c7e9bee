"""Whether mDNS gets out of this machine and into it, interface by interface.

A real question (RFC 6762: which services are there?) is sent from the real port to the real group, so that
firewalls treat it as they treat a node's: heard again by this machine it got out, answered by others it
went both ways.
"""

from __future__ import annotations

import asyncio
import ipaddress
import socket
import struct
import time
from dataclasses import dataclass

import ifaddr

from node.doctor.check import Check, ok, warning

PORT = 5353
GROUP_V4, GROUP_V6 = "224.0.0.251", "ff02::fb"
QUESTION = bytes((0, 0, 0, 0, 0, 1)) + bytes(6) + b"\x09_services\x07_dns-sd\x04_udp\x05local\0\0\x0c\0\x01"
"""One question (RFC 1035, 4.1): PTR records of `_services._dns-sd._udp.local` (RFC 6763, 9)."""

LISTEN_S = 2.0
MAX_PACKET_BYTES = 9000

_IP_MULTICAST_ALL = 49  # Linux: 0 keeps groups joined elsewhere out of a socket


@dataclass(frozen=True, slots=True)
class Interface:
    """One that can speak to others; `ipv4` is empty where it has link-local IPv6 alone."""

    name: str
    index: int
    ipv4: str


@dataclass(slots=True)
class _Heard:
    itself: bool = False
    others: int = 0


async def check_multicast() -> list[Check]:
    """One check for each interface that others could be on."""
    interfaces = usable_interfaces()
    if not interfaces:
        return [warning("multicast", "no interface leads to other machines", "connect this machine")]
    return list(await asyncio.gather(*(_check(interface) for interface in interfaces)))


def usable_interfaces() -> list[Interface]:
    found = []
    for adapter in ifaddr.get_adapters():
        ipv4 = [str(ip.ip) for ip in adapter.ips if ip.is_IPv4]
        loopback = any(ipaddress.ip_address(host).is_loopback for host in ipv4)
        if adapter.ips and adapter.index and not loopback and adapter.nice_name != "lo":
            found.append(Interface(adapter.nice_name, adapter.index, ipv4[0] if ipv4 else ""))
    return found


async def _check(interface: Interface) -> Check:
    name = f"multicast {interface.name}"
    try:
        with _open(interface) as sock:
            heard = await _ask(sock, interface)
    except OSError as error:
        return _blocked(name, f"it fails: {error.strerror}")
    if not heard.itself:
        return _blocked(name, "this machine doesn't hear its own")
    if not heard.others:
        return ok(name, f"gets out; nobody else spoke within {LISTEN_S:g} s to show that it gets in")
    return ok(name, f"gets out and in: {heard.others} packets from other machines")


def _blocked(name: str, detail: str) -> Check:
    remedy = f"let UDP port {PORT} to {GROUP_V4} and {GROUP_V6} through the firewall, or use --peer HOST:PORT"
    return warning(name, detail, remedy)


def _open(interface: Interface) -> socket.socket:
    """Beside whatever else speaks mDNS on this machine."""
    sock = socket.socket(socket.AF_INET if interface.ipv4 else socket.AF_INET6, socket.SOCK_DGRAM)
    try:
        sock.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        sock.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEPORT, 1)
        if interface.ipv4:
            own = socket.inet_aton(interface.ipv4)
            sock.setsockopt(socket.IPPROTO_IP, _IP_MULTICAST_ALL, 0)
            sock.bind((GROUP_V4, PORT))
            sock.setsockopt(socket.IPPROTO_IP, socket.IP_ADD_MEMBERSHIP, socket.inet_aton(GROUP_V4) + own)
            sock.setsockopt(socket.IPPROTO_IP, socket.IP_MULTICAST_IF, own)
            sock.setsockopt(socket.IPPROTO_IP, socket.IP_MULTICAST_TTL, 255)
        else:
            index = struct.pack("@I", interface.index)
            sock.setsockopt(socket.IPPROTO_IPV6, socket.IPV6_V6ONLY, 1)
            sock.bind((GROUP_V6, PORT, 0, interface.index))
            group = socket.inet_pton(socket.AF_INET6, GROUP_V6)
            sock.setsockopt(socket.IPPROTO_IPV6, socket.IPV6_JOIN_GROUP, group + index)
            sock.setsockopt(socket.IPPROTO_IPV6, socket.IPV6_MULTICAST_IF, index)
        sock.setblocking(False)
    except OSError:
        sock.close()
        raise
    return sock


async def _ask(sock: socket.socket, interface: Interface) -> _Heard:
    """Every packet of two seconds, sorted by whose it is."""
    # What answers with unicast needs a port that hears it: asked from the group's port, all hear all.
    group = (GROUP_V4, PORT) if interface.ipv4 else (GROUP_V6, PORT, 0, interface.index)
    own = {str(ip.ip if ip.is_IPv4 else ip.ip[0]) for a in ifaddr.get_adapters() for ip in a.ips}
    loop, heard, until = asyncio.get_running_loop(), _Heard(), time.monotonic() + LISTEN_S
    await loop.sock_sendto(sock, QUESTION, group)
    while (left := until - time.monotonic()) > 0:
        try:
            async with asyncio.timeout(left):
                data, source = await loop.sock_recvfrom(sock, MAX_PACKET_BYTES)
        except TimeoutError:
            break
        if str(source[0]).partition("%")[0] not in own:
            heard.others += 1
        elif data == QUESTION:
            heard.itself = True
    return heard
