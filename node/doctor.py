"""Everything that can be checked of a machine before or while it runs a node."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import asdict, dataclass

from certs.credentials import Credentials
from certs.doctor import check_credentials
from engine.errors import EngineError
from engine.model_source import resolve_model
from node.addresses import advertised_addresses, parse_address
from overlay.net.doctor import check_network


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
