"""Whether others could dial this machine, and who listens where a node would."""

from __future__ import annotations

import asyncio
import errno
import socket

import ifaddr

from node.doctor.check import Check, ok, problem, warning
from overlay.core.types import Address, short_id
from overlay.net.errors import DialError, NotRumormillError, RefusedError, WrongMeshError
from overlay.net.first_contact import first_contact
from overlay.net.security import TransportSecurity
from overlay.net.targets import is_ip, is_link_local

CONNECT_S = 2.0


def check_interfaces() -> Check:
    """Which addresses other machines could dial."""
    pairs = [
        (adapter.nice_name, str(ip.ip if ip.is_IPv4 else ip.ip[0]))
        for adapter in ifaddr.get_adapters()
        for ip in adapter.ips
    ]
    outside = [(name, host) for name, host in pairs if not host.startswith("127.") and host != "::1"]
    wide = [f"{name} {host}" for name, host in outside if not is_link_local(host)]
    if wide:
        return ok("interfaces", ", ".join(wide))
    if outside:
        found = ", ".join(f"{name} {host}" for name, host in outside)
        return ok("interfaces", f"{found}: enough for machines on the same link")
    remedy = "connect this machine to a network if other machines are to join"
    return warning("interfaces", "only loopback", remedy)


async def check_port(kind: str, address: Address, security: TransportSecurity | None = None) -> Check:
    """Whether a node listens at an address of this machine, or could; `security` tells nodes apart."""
    name = f"{kind} port {address}"
    try:
        _, writer = await asyncio.wait_for(asyncio.open_connection(address.host, address.port), CONNECT_S)
    except (OSError, TimeoutError):
        return _check_bindable(kind, name, address)
    writer.transport.abort()
    if security is None:
        return ok(name, "something listens there")
    try:
        contact = await first_contact(address, None, security)
    except NotRumormillError as error:
        return problem(name, f"another program listens there: {error}", _elsewhere(kind))
    except WrongMeshError as error:
        return warning(name, f"a node listens there, but {error}", f"is it yours? else {_elsewhere(kind)}")
    except (RefusedError, DialError) as error:
        return warning(name, str(error), "restart the node if it stays so")
    return ok(name, f"node {short_id(contact.node_id)} of this mesh listens there")


def _check_bindable(kind: str, name: str, address: Address) -> Check:
    if not is_ip(address.host):
        return warning(name, "nobody answers", "start the node, or mend --advertise")
    family = socket.AF_INET6 if ":" in address.host else socket.AF_INET
    with socket.socket(family, socket.SOCK_STREAM) as probe:
        probe.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        try:
            probe.bind((address.host, address.port))
        except OSError as error:
            remedy = "choose an address of this machine with --listen"
            if error.errno != errno.EADDRNOTAVAIL:
                remedy = _elsewhere(kind)
            return problem(name, f"it can't be listened at: {error.strerror}", remedy)
    return ok(name, "free")


def _elsewhere(kind: str) -> str:
    return f"choose another with --{kind.lower()}-port"
