"""The client for programs that run an event loop: the same calls, for asyncio."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncGenerator, Sequence
from types import TracebackType

import grpc
import grpc.aio

from certs.credentials import Credentials
from certs.roles import Role
from certs.token import MeshToken
from certs.token_source import caller_credentials
from node.client_calls import (
    ANSWER_SECONDS,
    CONNECT_SECONDS,
    Prompt,
    channel_options,
    failure,
    not_ready,
    with_prompt,
)
from rumormill.v1 import inference_pb2, inference_pb2_grpc


class AsyncClient:
    """Calls one node, within one event loop. Every method raises ClientError."""

    def __init__(self, address: str, credentials: Credentials) -> None:
        """Connects lazily."""
        self.address = address
        self._channel = grpc.aio.secure_channel(
            address, credentials.channel_credentials(), options=channel_options(credentials)
        )
        self._inference = inference_pb2_grpc.InferenceStub(self._channel)

    @classmethod
    def from_token(cls, address: str, token: str, role: Role = Role.CLIENT) -> AsyncClient:
        """A client with credentials from a mesh token; raises a CertsError for one that can't be used."""
        return cls(address, caller_credentials(MeshToken.parse(token), role))

    async def __aenter__(self) -> AsyncClient:
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        await self.close()

    async def close(self) -> None:
        await self._channel.close()

    async def wait_ready(self, seconds: float = CONNECT_SECONDS) -> None:
        """Raises ClientError when no mesh node answers in time."""
        try:
            await asyncio.wait_for(self._channel.channel_ready(), seconds)
        except TimeoutError:
            raise not_ready(self.address) from None

    async def generate(
        self,
        prompt: Prompt,
        sampling: inference_pb2.Sampling | None = None,
        *,
        policy: str = "",
        timeout_s: float | None = None,
    ) -> AsyncGenerator[inference_pb2.GenerateResponse, None]:
        """Streams an answer; closing the generator cancels it."""
        request = with_prompt(inference_pb2.GenerateRequest(sampling=sampling, policy=policy), prompt)
        call = self._inference.Generate(request, timeout=timeout_s)
        try:
            async for response in call:
                yield response
        except grpc.aio.AioRpcError as error:
            raise failure(self.address, error) from None
        finally:
            call.cancel()

    async def models(self) -> list[inference_pb2.Model]:
        request = inference_pb2.ListModelsRequest()
        try:
            return list((await self._inference.ListModels(request, timeout=ANSWER_SECONDS)).models)
        except grpc.aio.AioRpcError as error:
            raise failure(self.address, error) from None

    async def tokenize(self, prompt: str | Sequence[inference_pb2.ChatMessage]) -> list[int]:
        request = with_prompt(inference_pb2.TokenizeRequest(), prompt)
        try:
            return list((await self._inference.Tokenize(request, timeout=ANSWER_SECONDS)).token_ids.ids)
        except grpc.aio.AioRpcError as error:
            raise failure(self.address, error) from None
