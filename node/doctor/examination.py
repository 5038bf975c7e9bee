"""Every check, in the order in which a node would meet what is checked."""

from __future__ import annotations

from collections.abc import Sequence

from certs.credentials import Credentials
from node.addresses import advertised_addresses
from node.doctor.check import Check
from node.doctor.local import check_certificate, check_clock, check_model
from node.doctor.multicast import check_multicast
from node.doctor.peers import check_discovery, check_peer
from node.doctor.ports import check_interfaces, check_port
from overlay.core.types import Address
from overlay.net.bootstrap import Seeds
from overlay.net.targets import is_link_local


async def examine(
    credentials: Credentials,
    listen: str,
    grpc_port: int,
    http_port: int,
    *,
    known_mesh: bool,
    own_certificate: bool,
    model: str,
    peers: Sequence[str],
    mdns: bool,
) -> list[Check]:
    """Raises SeedError for a peer that is no address.

    `known_mesh` says that the credentials are of a mesh that others may be in, `own_certificate` that the
    leaf is one somebody issued, so that it can run out.
    """
    seeds = Seeds(peers)
    announced = advertised_addresses(listen, grpc_port, ())
    addresses = [address for address in announced if not is_link_local(address.host)]
    checks = [check_model(model), check_clock()]
    if own_certificate:
        checks.append(check_certificate(credentials))
    checks.append(check_interfaces())
    checks += [await check_port("gRPC", address, credentials) for address in addresses]
    checks.append(await check_port("HTTP", Address("127.0.0.1", http_port)))
    if mdns:
        checks += await check_multicast()
    if mdns and known_mesh:
        checks += await check_discovery(credentials, announced)
    for seed in seeds.all:
        checks += await check_peer(seed, credentials)
    return checks
