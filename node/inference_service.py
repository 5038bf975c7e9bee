"""The gRPC door for clients: rumormill.v1.Inference."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Iterator
from contextlib import aclosing

import grpc.aio

from engine.interface import EngineInfo
from node import wire
from node.authorization import caller
from node.grpc_errors import grpc_statuses
from node.pipeline import Pipeline
from node.request import Chunk, Event, PromptScored, Route
from node.request_builder import RequestBuilder
from node.tenants import Tenants
from node.tracing import traceparent_in
from rumormill.v1 import inference_pb2, inference_pb2_grpc

SCORES_PER_MESSAGE = 512
"""Log-probabilities of prompt tokens in one message, with 20 alternatives each 130 kB."""


class InferenceService(inference_pb2_grpc.InferenceServicer):
    """Generate, Tokenize, ListModels."""

    def __init__(
        self, builder: RequestBuilder, pipeline: Pipeline, info: EngineInfo, tenants: Tenants
    ) -> None:
        self._tenants = tenants
        self._builder = builder
        self._pipeline = pipeline
        self._info = info

    async def Generate(
        self,
        request: inference_pb2.GenerateRequest,
        context: grpc.aio.ServicerContext[inference_pb2.GenerateRequest, inference_pb2.GenerateResponse],
    ) -> AsyncIterator[inference_pb2.GenerateResponse]:
        async with grpc_statuses(context):
            built = await asyncio.to_thread(
                self._builder.build,
                wire.prompt_from_pb(request),
                wire.options_from_pb(request.sampling),
                model=request.model,
                policy=request.policy,
                caller=self._tenants.caller(caller().uri),
                priority=request.priority,
                traceparent=traceparent_in(context.invocation_metadata()),
            )
            async with aclosing(self._pipeline.generate(built, context.time_remaining())) as events:
                async for event in events:
                    for response in _responses(event):
                        yield response

    async def Tokenize(
        self,
        request: inference_pb2.TokenizeRequest,
        context: grpc.aio.ServicerContext[inference_pb2.TokenizeRequest, inference_pb2.TokenizeResponse],
    ) -> inference_pb2.TokenizeResponse:
        async with grpc_statuses(context):
            self._builder.check_model(request.model)
            token_ids = await asyncio.to_thread(self._builder.tokenize, wire.prompt_from_pb(request))
            return inference_pb2.TokenizeResponse(token_ids=wire.token_ids_to_pb(token_ids))

    async def ListModels(
        self,
        request: inference_pb2.ListModelsRequest,
        context: grpc.aio.ServicerContext[inference_pb2.ListModelsRequest, inference_pb2.ListModelsResponse],
    ) -> inference_pb2.ListModelsResponse:
        return inference_pb2.ListModelsResponse(models=[wire.model_to_pb(self._info)])


def _responses(event: Event) -> Iterator[inference_pb2.GenerateResponse]:
    if isinstance(event, Route):
        yield inference_pb2.GenerateResponse(route=wire.route_to_pb(event))
    elif isinstance(event, PromptScored):
        for start in range(0, len(event.logprobs), SCORES_PER_MESSAGE):
            part = wire.logprobs_to_pb(event.logprobs[start : start + SCORES_PER_MESSAGE])
            yield inference_pb2.GenerateResponse(prompt_logprobs=part)
    elif isinstance(event, Chunk):
        yield inference_pb2.GenerateResponse(
            text=event.text,
            token_ids=event.token_ids,
            first_index=event.first_index,
            logprobs=wire.logprobs_to_pb(event.logprobs),
        )
    else:
        yield inference_pb2.GenerateResponse(
            finish_reason=wire.FINISH_REASON_TO_PB[event.reason],
            usage=wire.usage_to_pb(event.usage),
            route=wire.route_to_pb(event.route),
        )
