"""The addresses that peers are told to dial."""

from __future__ import annotations

import ipaddress

import ifaddr

from node.errors import StartupError
from overlay.core.types import Address

WILDCARDS = ("0.0.0.0", "::")  # noqa: S104  names them, binds nothing


def is_loopback(host: str) -> bool:
    if host == "localhost":
        return True
    try:
        return ipaddress.ip_address(host).is_loopback
    except ValueError:
        return False


def parse_address(text: str) -> Address:
    """HOST:PORT or [IPV6]:PORT; raises StartupError."""
    host, separator, port = text.rpartition(":")
    host = host.strip("[]")
    if not separator or not host or not port.isdigit() or not 0 < int(port) < 65536:
        raise StartupError(f"{text!r} is not an address; write HOST:PORT, or [IPV6]:PORT")
    return Address(host, int(port))


def advertised_addresses(host: str, port: int, advertise: tuple[str, ...]) -> tuple[Address, ...]:
    """What was told with --advertise, else where this machine listens for others."""
    if advertise:
        return tuple(parse_address(text) for text in advertise)
    if host not in WILDCARDS:
        return (Address(host, port),)
    found = tuple(Address(ip, port) for ip in _interface_addresses())
    return found or (Address("127.0.0.1", port),)


def _interface_addresses() -> list[str]:
    """Addresses others can dial, link-local ones last: on some links there are no others.

    gRPC listens on both address families whichever wildcard it is given.
    """
    found: list[tuple[bool, str]] = []
    for adapter in ifaddr.get_adapters():
        for ip in adapter.ips:
            text = ip.ip[0] if isinstance(ip.ip, tuple) else ip.ip
            address = ipaddress.ip_address(text)
            if not address.is_loopback:
                found.append((address.is_link_local, text))
    return [text for _, text in sorted(found, key=lambda each: each[0])]
