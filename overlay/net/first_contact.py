"""The first handshake with an address: who answers there, and with which certificate.

gRPC doesn't show a client the server's certificate. So a plain TLS handshake fetches it, and the
channel that follows trusts this one leaf alone: another holder of the mesh token can't take its place.
"""

from __future__ import annotations

import asyncio
import ssl
from dataclasses import dataclass
from typing import Any

from overlay.core.types import Address, NodeId, short_id
from overlay.net.errors import (
    DialError,
    NoAnswerError,
    NotRumormillError,
    RefusedError,
    WrongMeshError,
    WrongPeerError,
)
from overlay.net.security import TransportSecurity
from overlay.net.targets import grpc_target

HANDSHAKE_TIMEOUT_S = 4.0
"""Connection, TLS and the first HTTP/2 frame together; the core gives a dial 10 s in all."""

_FRAME_HEADER_BYTES = 9
_SETTINGS = 4  # HTTP/2 frame type, RFC 9113 6.5; a server sends one first, unasked


@dataclass(frozen=True, slots=True)
class Contact:
    """A node that was met at `target`, and the leaf that its channels are pinned to (PEM)."""

    node_id: NodeId
    target: str
    server_name: str
    leaf: bytes


async def first_contact(
    address: Address,
    expected: NodeId | None,
    security: TransportSecurity,
    timeout_s: float = HANDSHAKE_TIMEOUT_S,
) -> Contact:
    """Raises a DialError that says what answers there instead of a node of this mesh."""
    try:
        async with asyncio.timeout(timeout_s):
            leaf, socket_address = await _handshake(address, security)
    except TimeoutError:
        raise NoAnswerError(
            f"{address} doesn't answer within {timeout_s:g} s; check the address and the firewall"
        ) from None
    return _contact(address, expected, security, leaf, socket_address)


async def _handshake(address: Address, security: TransportSecurity) -> tuple[bytes, tuple[Any, ...]]:
    """The peer's verified leaf (DER), and the socket address it answered at."""
    writer: asyncio.StreamWriter | None = None
    try:
        reader, writer = await asyncio.open_connection(
            address.host, address.port, ssl=security.ssl_context(), server_hostname=security.any_node_name
        )
        # In TLS 1.3 a server refuses a client's certificate only after the client's handshake is
        # done; its first frame proves that it didn't.
        header = await reader.readexactly(_FRAME_HEADER_BYTES)
        if header[3] != _SETTINGS:
            raise NotRumormillError(f"{address} speaks TLS but not HTTP/2; is it another service's port?")
        leaf = writer.get_extra_info("ssl_object").getpeercert(binary_form=True)
        return leaf, writer.get_extra_info("peername")
    except ssl.SSLCertVerificationError as error:
        raise _verification_failure(address, error) from error
    except ssl.SSLError as error:
        if "ALERT" in (error.reason or ""):
            raise _refused_certificate(address) from error
        raise NotRumormillError(f"{address} doesn't speak TLS as a node does ({error.reason})") from error
    except ConnectionRefusedError as error:
        raise RefusedError(f"nobody listens at {address}; is a node running there?") from error
    except (ConnectionResetError, asyncio.IncompleteReadError) as error:
        if writer is None:
            raise NotRumormillError(f"{address} hangs up during the TLS handshake") from error
        raise _refused_certificate(address) from error
    except OSError as error:
        raise NoAnswerError(f"there is no way to {address}: {error.strerror or error}") from error
    finally:
        if writer is not None:
            # gRPC never answers a TLS close, so a polite one would hang.
            writer.transport.abort()


def _verification_failure(address: Address, error: ssl.SSLCertVerificationError) -> DialError:
    reason = error.verify_message
    if "expired" in reason or "not yet valid" in reason:
        return WrongMeshError(f"the certificate of {address} is out of date ({reason}); check both clocks")
    return WrongMeshError(f"peer {address} belongs to another mesh; check --token")


def _refused_certificate(address: Address) -> DialError:
    return WrongMeshError(
        f"peer {address} refuses this node's certificate; check --token there and here, and its denylist"
    )


def _contact(
    address: Address,
    expected: NodeId | None,
    security: TransportSecurity,
    leaf: bytes,
    socket_address: tuple[Any, ...],
) -> Contact:
    try:
        identity = security.identify(leaf)
    except ValueError as error:
        raise WrongMeshError(f"peer {address} isn't trusted: {error}") from error
    if not identity.is_node:
        raise NotRumormillError(f"{address} answers with a certificate that is no node's")
    node_id = NodeId(identity.node_id)
    if expected is not None and node_id != expected:
        raise WrongPeerError(f"node {short_id(node_id)} answers at {address}, not {short_id(expected)}")
    target = grpc_target(_ip(socket_address), int(socket_address[1]))
    return Contact(node_id, target, identity.server_name, ssl.DER_cert_to_PEM_cert(leaf).encode("ascii"))


def _ip(socket_address: tuple[Any, ...]) -> str:
    """The address with its zone: a link-local one leads nowhere without."""
    ip, zone = str(socket_address[0]), socket_address[3] if len(socket_address) == 4 else 0
    return f"{ip}%{zone}" if zone and "%" not in ip else ip
