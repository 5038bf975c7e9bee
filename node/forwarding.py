"""Sending a whole request to the peer that will answer it: the client side of Overlay.Forward."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncGenerator
from typing import Protocol

import grpc
import grpc.aio
from google.protobuf.message import DecodeError

from engine.interface import TokenOutput
from node import wire
from node.request import Request
from node.tracing import TRACEPARENT
from overlay.core.types import Load, NodeId, short_id
from overlay.net.codec import decode_load, node_id_bytes
from overlay.net.errors import MalformedFrameError, PeerUnreachableError
from rumormill.v1 import overlay_pb2, overlay_pb2_grpc

BUSY_TRAILER = "rumormill-busy-bin"
MAX_HOPS = 1


class PeerFailedError(Exception):
    """The peer did not answer, or stopped in the middle."""


class PeerRefusedError(PeerFailedError):
    """The peer says that the request itself is wrong there, which says nothing against the peer."""


class PeerBusyError(Exception):
    """The peer won't take the request now."""

    def __init__(self, retry_after_s: float) -> None:
        super().__init__(f"busy, retry after {retry_after_s:.1f} s")
        self.retry_after_s = retry_after_s


class Accepted:
    """The peer has queued the request, and its load now covers it."""


class DataPlane(Protocol):
    """What forwarding asks of the overlay."""

    @property
    def node_id(self) -> NodeId: ...

    def channel(self, node_id: NodeId) -> grpc.aio.Channel: ...

    def observe_load(self, node_id: NodeId, load: Load) -> None: ...


class Forwarder:
    """Forwards requests over pinned channels; every answer's load report is passed on to the overlay."""

    def __init__(self, plane: DataPlane, vocabulary_size: int) -> None:
        self._plane = plane
        self._vocabulary_size = vocabulary_size

    async def stream(
        self,
        node_id: NodeId,
        request: Request,
        *,
        first_token_s: float,
        token_gap_s: float,
        timeout_s: float | None,
    ) -> AsyncGenerator[Accepted | TokenOutput, None]:
        """The peer's answer; closing it cancels the call on the peer.

        The peer is given up when it is silent for `first_token_s`, or later for `token_gap_s`.

        Raises PeerBusyError, PeerRefusedError or PeerFailedError.
        """
        message = overlay_pb2.ForwardRequest(
            request_id=request.id,
            entry_node=node_id_bytes(self._plane.node_id),
            hops=MAX_HOPS,
            namespace=wire.namespace_to_pb(request.namespace),
            prompt=wire.token_ids_to_pb(request.token_ids),
            sampling=wire.sampling_to_pb(request.sampling),
            delivered=request.resumed_tokens,
            client=request.client,
            priority=request.priority,
        )
        try:
            stub = overlay_pb2_grpc.OverlayStub(self._plane.channel(node_id))
        except PeerUnreachableError as error:
            raise PeerFailedError(str(error)) from error
        metadata = ((TRACEPARENT, request.traceparent),) if request.traceparent else ()
        call = stub.Forward(message, timeout=timeout_s, metadata=metadata)
        patience = first_token_s
        try:
            while True:
                async with asyncio.timeout(patience):
                    response: overlay_pb2.ForwardResponse | object = await call.read()
                if not isinstance(response, overlay_pb2.ForwardResponse):
                    raise PeerFailedError(f"{short_id(node_id)} ended the answer without finishing it")
                kind = response.WhichOneof("event")
                if kind == "accepted":
                    self._observe(node_id, response.accepted.load)
                    yield Accepted()
                elif kind == "tokens":
                    patience = token_gap_s
                    yield self._checked(node_id, wire.tokens_from_pb(request.id, response.tokens))
                elif kind == "finished":
                    self._observe(node_id, response.finished.load)
                    if response.finished.reason not in wire.FINISH_REASON_FROM_PB:
                        raise PeerFailedError(f"{short_id(node_id)} ended the answer for no known reason")
                    yield wire.finished_from_pb(request.id, response.finished)
                    return
        except TimeoutError:
            raise PeerFailedError(f"{short_id(node_id)} was silent for {patience:.1f} s") from None
        except MalformedFrameError as error:
            raise PeerFailedError(f"{short_id(node_id)} sent a malformed answer: {error}") from error
        except grpc.aio.AioRpcError as error:
            raise self._failure(node_id, error) from None
        finally:
            call.cancel()

    def _checked(self, node_id: NodeId, output: TokenOutput) -> TokenOutput:
        tops = (token for each in (*output.logprobs, *output.prompt_logprobs) for token, _ in each.top)
        if any(token >= self._vocabulary_size for token in (*output.token_ids, *tops)):
            raise PeerFailedError(f"{short_id(node_id)} sent a token id outside the vocabulary")
        return output

    def _observe(self, node_id: NodeId, message: overlay_pb2.Load) -> None:
        self._plane.observe_load(node_id, decode_load(message))

    def _failure(self, node_id: NodeId, error: grpc.aio.AioRpcError) -> Exception:
        if error.code() is grpc.StatusCode.RESOURCE_EXHAUSTED:
            for key, value in error.trailing_metadata() or ():
                if key == BUSY_TRAILER and isinstance(value, bytes):
                    return self._busy(node_id, value)
        kind = PeerRefusedError if error.code() is grpc.StatusCode.INVALID_ARGUMENT else PeerFailedError
        return kind(f"{short_id(node_id)}: {error.code().name}: {error.details()}")

    def _busy(self, node_id: NodeId, trailer: bytes) -> Exception:
        try:
            busy = overlay_pb2.Busy.FromString(trailer)
            self._observe(node_id, busy.load)
        except (DecodeError, MalformedFrameError) as error:
            return PeerFailedError(f"{short_id(node_id)} sent a malformed BUSY: {error}")
        return PeerBusyError(busy.retry_after_ms / 1000)
