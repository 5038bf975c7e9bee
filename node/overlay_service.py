"""The gRPC door for peers: rumormill.v1.Overlay. Gossip is the mesh's; Forward runs a peer's request here."""

from __future__ import annotations

import asyncio
import time
from collections.abc import AsyncGenerator, AsyncIterator
from contextlib import aclosing

import grpc
import grpc.aio

from engine.interface import EngineClient, FinishReason, GenerationRequest, TokenOutput
from node import wire
from node.admission import Admission
from node.authorization import caller
from node.errors import InvalidRequestError
from node.forwarding import BUSY_TRAILER, MAX_HOPS
from node.grpc_errors import grpc_statuses
from node.in_flight import InFlight
from node.observer import ForwardedHere, Observer
from node.portrait import SelfPortrait, portrait_to_pb
from node.tracing import traceparent_in
from overlay.core.types import NodeId
from overlay.net.codec import encode_load, node_id_bytes, node_id_from_bytes
from overlay.net.mesh import Mesh
from rumormill.v1 import overlay_pb2, overlay_pb2_grpc

MAX_REQUEST_ID_CHARACTERS = 64
MAX_TENANT_LENGTH = 64
"""Of what tells a caller from others; nodes send 16 bytes and 32 characters."""


class OverlayService(overlay_pb2_grpc.OverlayServicer):
    """What peers call."""

    def __init__(
        self,
        mesh: Mesh,
        engine: EngineClient,
        admission: Admission,
        in_flight: InFlight,
        observer: Observer,
        portrait: SelfPortrait,
    ) -> None:
        self._mesh = mesh
        self._engine = engine
        self._admission = admission
        self._in_flight = in_flight
        self._observer = observer
        self._portrait = portrait

    async def Gossip(
        self,
        request_iterator: AsyncIterator[overlay_pb2.Frame],
        context: grpc.aio.ServicerContext[overlay_pb2.Frame, overlay_pb2.Frame],
    ) -> AsyncIterator[overlay_pb2.Frame]:
        async for frame in self._mesh.gossip(request_iterator, context):
            yield frame

    async def Forward(
        self,
        request: overlay_pb2.ForwardRequest,
        context: grpc.aio.ServicerContext[overlay_pb2.ForwardRequest, overlay_pb2.ForwardResponse],
    ) -> AsyncIterator[overlay_pb2.ForwardResponse]:
        if not (self._engine.ready and self._admission.accepts_peers(self._engine.stats)):
            self._observer.refused(request.request_id[:MAX_REQUEST_ID_CHARACTERS])
            await self._abort_busy(context)
        async with grpc_statuses(context):
            generation = self._generation(request, context.time_remaining())
            observed = self._observer.forwarded_here(
                request.request_id,
                node_id_from_bytes(request.entry_node),
                len(generation.token_ids),
                traceparent_in(context.invocation_metadata()),
            )
            with self._in_flight.request(), observed:
                async with aclosing(self._stream(generation, observed)) as responses:
                    async for response in responses:
                        yield response

    async def Describe(
        self,
        request: overlay_pb2.DescribeRequest,
        context: grpc.aio.ServicerContext[overlay_pb2.DescribeRequest, overlay_pb2.DescribeResponse],
    ) -> overlay_pb2.DescribeResponse:
        return portrait_to_pb(await self._portrait.now(), request.runs)

    async def _stream(
        self, generation: GenerationRequest, observed: ForwardedHere
    ) -> AsyncGenerator[overlay_pb2.ForwardResponse, None]:
        async with aclosing(self._engine.submit(generation)) as outputs:
            submitting = asyncio.ensure_future(anext(outputs))
            try:
                await asyncio.sleep(0)  # from its first step on, the load covers the request
                yield overlay_pb2.ForwardResponse(accepted=overlay_pb2.Accepted(load=self._load()))
                output = await submitting
            finally:
                submitting.cancel()
                await asyncio.gather(submitting, return_exceptions=True)
            while True:
                observed.output(output)
                if output.token_ids or output.finish_reason is None:
                    yield overlay_pb2.ForwardResponse(tokens=wire.tokens_to_pb(output))
                if output.finish_reason is not None:
                    yield self._finished(output, output.finish_reason)
                    return
                output = await anext(outputs)

    def _finished(self, output: TokenOutput, reason: FinishReason) -> overlay_pb2.ForwardResponse:
        return overlay_pb2.ForwardResponse(
            finished=overlay_pb2.Finished(
                reason=wire.FINISH_REASON_TO_PB[reason],
                cached_tokens=output.cached_tokens,
                load=self._load(),
            )
        )

    def _generation(
        self, request: overlay_pb2.ForwardRequest, time_left_s: float | None
    ) -> GenerationRequest:
        namespace = wire.namespace_from_pb(request.namespace)
        if request.hops != MAX_HOPS:
            raise InvalidRequestError(f"a forwarded request has made {MAX_HOPS} hop, not {request.hops}")
        if request.entry_node != node_id_bytes(NodeId(caller().node_id)):
            raise InvalidRequestError("entry_node is not the node that calls")
        if not 0 < len(request.request_id) <= MAX_REQUEST_ID_CHARACTERS:
            raise InvalidRequestError(f"request_id must have 1 to {MAX_REQUEST_ID_CHARACTERS} characters")
        if request.delivered > len(request.prompt.ids):
            raise InvalidRequestError("more tokens were delivered than the prompt has")
        if max(len(namespace.salt), len(request.client)) > MAX_TENANT_LENGTH:
            raise InvalidRequestError(f"salt and client have at most {MAX_TENANT_LENGTH} bytes or characters")
        if namespace.model != self._engine.info.namespace.model:
            raise InvalidRequestError("this node serves another model, or other weights under the same name")
        return GenerationRequest(
            request_id=f"{request.entry_node.hex()[:16]}-{request.request_id}",
            token_ids=tuple(request.prompt.ids),
            namespace=namespace,
            sampling=wire.sampling_from_pb(request.sampling),
            resumed_tokens=request.delivered,
            client=request.client,
            priority=request.priority,
            deadline=None if time_left_s is None else time.monotonic() + time_left_s,
        )

    async def _abort_busy(
        self, context: grpc.aio.ServicerContext[overlay_pb2.ForwardRequest, overlay_pb2.ForwardResponse]
    ) -> None:
        retry_after_s = self._admission.retry_after_s(self._engine.stats)
        busy = overlay_pb2.Busy(retry_after_ms=round(retry_after_s * 1000), load=self._load())
        await context.abort(
            grpc.StatusCode.RESOURCE_EXHAUSTED,
            f"busy: retry after {retry_after_s:.1f} s",
            ((BUSY_TRAILER, busy.SerializeToString()),),
        )

    def _load(self) -> overlay_pb2.Load:
        return encode_load(self._mesh.own_load())
