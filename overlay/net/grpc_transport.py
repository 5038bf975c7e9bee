"""Gossip streams over gRPC with mutual TLS, each on a channel of its own."""

from __future__ import annotations

import asyncio
import ssl
from collections.abc import AsyncIterator, Callable, Iterable, Mapping
from contextlib import suppress
from typing import Any, Protocol

import grpc
import grpc.aio
from google.protobuf.message import DecodeError

from overlay.core.types import Address, NodeId
from overlay.net.channels import gossip_channel
from overlay.net.errors import (
    DialError,
    MalformedFrameError,
    NoAnswerError,
    SelfDialError,
    StreamLostError,
    TwinError,
    WrongMeshError,
)
from overlay.net.first_contact import Contact, first_contact
from overlay.net.security import TransportSecurity
from overlay.net.transport import Accept, Frames
from rumormill.v1 import overlay_pb2 as pb
from rumormill.v1 import overlay_pb2_grpc

OPEN_TIMEOUT_S = 4.0
"""From the first contact to the peer's acceptance of the stream."""

_CERTIFICATE_PROPERTY = "x509_pem_cert"
_REFUSALS = (grpc.StatusCode.UNAUTHENTICATED, grpc.StatusCode.PERMISSION_DENIED)


class GossipContext(Protocol):
    """The part of a servicer's context that a stream needs."""

    def auth_context(self) -> Mapping[str, Iterable[bytes]]: ...

    async def abort(self, code: grpc.StatusCode, details: str = "") -> Any: ...

    async def send_initial_metadata(self, initial_metadata: Any) -> None: ...

    def add_done_callback(self, callback: Any) -> None: ...


class GrpcTransport:
    """Dials gossip streams; `on_contact` hears of every node met on the way."""

    def __init__(self, security: TransportSecurity, on_contact: Callable[[Contact], None]) -> None:
        self._security = security
        self._on_contact = on_contact
        self._streams: set[DialledStream] = set()

    async def dial(self, address: Address, node_id: NodeId | None, outgoing: Frames) -> DialledStream:
        contact = await first_contact(address, node_id, self._security)
        if contact.node_id == self._security.node_id:
            raise _self_or_twin(address, contact, self._security)
        channel = gossip_channel(contact, self._security)
        try:
            call = overlay_pb2_grpc.OverlayStub(channel).Gossip(outgoing)
            await _opened(call, address)
        except BaseException:
            await channel.close()
            raise
        self._on_contact(contact)
        stream = DialledStream(contact, channel, call, self._streams.discard)
        self._streams.add(stream)
        return stream

    async def close(self) -> None:
        await asyncio.gather(*(stream.close() for stream in list(self._streams)))


class DialledStream:
    """The calling end of a gossip stream."""

    def __init__(
        self,
        contact: Contact,
        channel: grpc.aio.Channel,
        call: grpc.aio.StreamStreamCall[pb.Frame, pb.Frame],
        on_closed: Callable[[DialledStream], None],
    ) -> None:
        self.peer = contact.node_id
        self.certificate = contact.leaf
        self._channel = channel
        self._call = call
        self._on_closed = on_closed

    async def frames(self) -> Frames:
        try:
            async for frame in self._call:
                yield frame
        except DecodeError as error:
            raise MalformedFrameError(str(error)) from error
        except grpc.aio.AioRpcError as error:
            raise StreamLostError(f"{error.code().name}: {error.details()}") from error
        finally:
            await self.close()

    def abort(self) -> None:
        self._call.cancel()

    async def close(self) -> None:
        self._on_closed(self)
        await self._channel.close()


class AcceptedStream:
    """The serving end of a gossip stream; made by the task that handles the call."""

    def __init__(
        self, peer: NodeId, certificate: bytes, requests: AsyncIterator[pb.Frame], context: GossipContext
    ) -> None:
        self.peer = peer
        self.certificate = certificate
        self._requests = requests
        self._handler = asyncio.current_task()
        self._context = context
        self._aborting: asyncio.Task[None] | None = None

    async def frames(self) -> Frames:
        try:
            async for frame in self._requests:
                yield frame
        except DecodeError as error:
            raise MalformedFrameError(str(error)) from error
        except (grpc.aio.UsageError, grpc.aio.InternalError, grpc.aio.AbortError) as error:
            # The call ended while its next frame was awaited: by the peer, or by this node's own door.
            raise StreamLostError(str(error)) from error

    def abort(self) -> None:
        if self._aborting is None:
            self._aborting = asyncio.ensure_future(self._abort())

    async def _abort(self) -> None:
        # The peer isn't told of a handler that is merely cancelled.
        if self._handler is not None:
            self._handler.cancel()
        with suppress(grpc.aio.AbortError, grpc.aio.UsageError, grpc.aio.InternalError):
            await self._context.abort(grpc.StatusCode.CANCELLED, "the node ended this stream")


async def serve_stream(
    requests: AsyncIterator[pb.Frame], context: GossipContext, security: TransportSecurity, accept: Accept
) -> Frames:
    """The server side of Overlay.Gossip; refuses callers that are not nodes of the mesh."""
    certificate = next(iter(context.auth_context().get(_CERTIFICATE_PROPERTY, ())), b"")
    try:
        identity = security.identify(certificate)
    except ValueError as error:
        await context.abort(grpc.StatusCode.UNAUTHENTICATED, str(error))
        return
    if not identity.is_node:
        await context.abort(grpc.StatusCode.PERMISSION_DENIED, "only nodes gossip; use a node certificate")
        return
    # The dialler waits for this to know that it was let in.
    await context.send_initial_metadata(())
    stream = AcceptedStream(NodeId(identity.node_id), certificate, requests, context)
    outgoing = accept(stream)
    try:
        async for frame in outgoing:
            yield frame
    finally:
        await outgoing.aclose()


def _self_or_twin(address: Address, contact: Contact, security: TransportSecurity) -> DialError:
    """A copy of a node that issues its own leaves shows another one."""
    if ssl.PEM_cert_to_DER_cert(contact.leaf.decode("ascii")) == security.leaf():
        return SelfDialError(f"{address} leads to this node itself")
    return TwinError(
        f"the node at {address} is a copy of this one: delete node.key in the state folder of one of them"
    )


async def _opened(call: grpc.aio.StreamStreamCall[pb.Frame, pb.Frame], address: Address) -> None:
    """Waits until the peer has let the stream in; raises a DialError."""
    try:
        async with asyncio.timeout(OPEN_TIMEOUT_S):
            await call.initial_metadata()
            if not call.done():
                return
            code, details = await call.code(), await call.details()
    except TimeoutError:
        raise NoAnswerError(f"{address} doesn't accept the stream within {OPEN_TIMEOUT_S:g} s") from None
    if code in _REFUSALS:
        raise WrongMeshError(f"peer {address} refuses this node: {details}")
    raise DialError(f"peer {address} didn't accept the stream: {code.name}: {details}")
