"""Everything that can be checked of a machine before or while it runs a node."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import asdict, dataclass

import grpc

from certs.credentials import Credentials
from certs.doctor import check_credentials
from engine.errors import EngineError
from engine.model_source import resolve_model
from node.addresses import advertised_addresses, parse_address
from node.client import Client, ClientError
from overlay.net.doctor import check_network

NODE_SECONDS = 2.0
"""How long a node of this machine may take to answer; one that isn't there is no problem."""


@dataclass(frozen=True, slots=True)
class Check:
    """What one check found: severity is "ok", "warning" or "problem"."""

    name: str
    severity: str
    detail: str
    remedy: str = ""

    def as_object(self) -> dict[str, str]:
        return asdict(self)


async def examine(
    credentials: Credentials,
    listen: str,
    port: int,
    *,
    own_certificate: bool,
    model: str,
    peers: Sequence[str],
    mdns: bool,
) -> list[Check]:
    """All checks, in the order a node would meet their subjects; raises StartupError for a bad address.

    `own_certificate` says that the leaf is one somebody issued, so that it can run out.
    """
    addresses = advertised_addresses(listen, port, ())
    seeds = [parse_address(peer) for peer in peers]
    findings = [
        *(check_credentials(credentials) if own_certificate else ()),
        *await check_network(credentials, addresses, seeds, mdns=mdns),
    ]
    return [_check_model(model), *(Check(f.check, f.severity.value, f.detail, f.remedy) for f in findings)]


def _check_model(reference: str) -> Check:
    try:
        source = resolve_model(reference)
        source.weight_files()
    except EngineError as error:
        return Check("model", "problem", str(error))
    return Check("model", "ok", f"{source.name} at {source.path}")


def check_node(client: Client) -> Check:
    """The running node, if there is one: what its engine computes with, and whether its cache is in order."""
    try:
        client.wait_ready(NODE_SECONDS)
    except ClientError:
        return Check("node", "ok", f"none of this mesh runs at {client.address}")
    try:
        status, problem = client.status(), client.check_cache()
    except ClientError as error:
        if error.code is grpc.StatusCode.PERMISSION_DENIED:
            return Check("node", "ok", f"one answers at {client.address}; an operator could see its engine")
        return Check("node", "problem", str(error), "see the node's log")
    if problem:
        return Check("node", "problem", problem, "restart it, and report this as a bug")
    what = f"{status.model.name} on the {status.model.backend} backend"
    return Check("node", "ok", f"{what}; {status.cached_blocks} cached blocks in order")
