"""Addresses in the forms that sockets and gRPC take."""

from __future__ import annotations

import ipaddress

from overlay.core.types import Address
from overlay.net.errors import SeedError

DEFAULT_PORT = 7070


def parse_seed(text: str) -> Address:
    """HOST, HOST:PORT, [IPv6]:PORT or a bare IPv6 literal; raises SeedError."""
    text = text.strip()
    if is_ip(text):
        return Address(text, DEFAULT_PORT)
    host, separator, port = text.rpartition(":")
    if not separator:
        host, port = text, str(DEFAULT_PORT)
    host = host.removeprefix("[").removesuffix("]")
    if not host or not port.isdecimal() or not 0 < int(port) < 65536:
        raise SeedError(f"{text!r} is no address; write HOST:PORT, or [IPV6]:PORT")
    return Address(host, int(port))


def is_ip(host: str) -> bool:
    try:
        ipaddress.ip_address(host)
    except ValueError:
        return False
    return True


def is_link_local(host: str) -> bool:
    """Whether an address means something on one link alone: elsewhere it leads astray."""
    return is_ip(host) and ipaddress.ip_address(host).is_link_local


def grpc_target(ip: str, port: int) -> str:
    """The gRPC name of a socket address; an IPv6 zone is percent-encoded (RFC 6874)."""
    if ":" in ip:
        return f"ipv6:[{ip.replace('%', '%25')}]:{port}"
    return f"ipv4:{ip}:{port}"
