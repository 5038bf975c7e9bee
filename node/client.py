"""A small client of one node, over gRPC with mutual TLS."""

from __future__ import annotations

from collections.abc import Generator, Sequence
from types import TracebackType

import grpc

from certs.credentials import Credentials
from certs.roles import Role
from certs.token import MeshToken
from certs.token_source import caller_credentials
from node.client_calls import (
    ANSWER_SECONDS,
    CONNECT_SECONDS,
    ClientError,
    Prompt,
    channel_options,
    failure,
    not_ready,
    with_prompt,
)
from rumormill.v1 import admin_pb2, admin_pb2_grpc, inference_pb2, inference_pb2_grpc

__all__ = ["ANSWER_SECONDS", "CONNECT_SECONDS", "Client", "ClientError", "Prompt"]


class Client:
    """Calls one node. Answers are the protobuf messages of `rumormill.v1`.

    Every method raises ClientError. As an operator, a client may also look at the node and steer it.
    """

    def __init__(self, address: str, credentials: Credentials) -> None:
        """Connects lazily."""
        self.address = address
        self._channel = grpc.secure_channel(
            address,
            credentials.channel_credentials(),
            options=channel_options(credentials),
        )
        self._inference = inference_pb2_grpc.InferenceStub(self._channel)
        self._admin = admin_pb2_grpc.AdminStub(self._channel)

    @classmethod
    def from_token(cls, address: str, token: str, role: Role = Role.CLIENT) -> Client:
        """A client with credentials from a mesh token; raises a CertsError for one that can't be used."""
        return cls(address, caller_credentials(MeshToken.parse(token), role))

    def __enter__(self) -> Client:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()

    def close(self) -> None:
        self._channel.close()

    def wait_ready(self, seconds: float = CONNECT_SECONDS) -> None:
        """Raises ClientError when no mesh node answers in time."""
        try:
            grpc.channel_ready_future(self._channel).result(timeout=seconds)
        except grpc.FutureTimeoutError:
            raise not_ready(self.address) from None

    def generate(
        self,
        prompt: Prompt,
        sampling: inference_pb2.Sampling | None = None,
        *,
        policy: str = "",
        timeout_s: float | None = None,
    ) -> Generator[inference_pb2.GenerateResponse, None, None]:
        """Streams an answer; closing the iterator cancels it."""
        request = with_prompt(inference_pb2.GenerateRequest(sampling=sampling, policy=policy), prompt)
        call = self._inference.Generate(request, timeout=timeout_s)
        try:
            yield from call
        except grpc.RpcError as error:
            raise failure(self.address, error) from None
        finally:
            call.cancel()

    def models(self) -> list[inference_pb2.Model]:
        request = inference_pb2.ListModelsRequest()
        try:
            return list(self._inference.ListModels(request, timeout=ANSWER_SECONDS).models)
        except grpc.RpcError as error:
            raise failure(self.address, error) from None

    def tokenize(self, prompt: str | Sequence[inference_pb2.ChatMessage]) -> list[int]:
        request = with_prompt(inference_pb2.TokenizeRequest(), prompt)
        try:
            return list(self._inference.Tokenize(request, timeout=ANSWER_SECONDS).token_ids.ids)
        except grpc.RpcError as error:
            raise failure(self.address, error) from None

    def status(self) -> admin_pb2.GetStatusResponse:
        try:
            return self._admin.GetStatus(admin_pb2.GetStatusRequest(), timeout=ANSWER_SECONDS)
        except grpc.RpcError as error:
            raise failure(self.address, error) from None

    def peers(self) -> list[admin_pb2.Peer]:
        try:
            return list(self._admin.ListPeers(admin_pb2.ListPeersRequest(), timeout=ANSWER_SECONDS).peers)
        except grpc.RpcError as error:
            raise failure(self.address, error) from None

    def explain(
        self, prompt: str | Sequence[inference_pb2.ChatMessage], policy: str = ""
    ) -> admin_pb2.ExplainRouteResponse:
        request = with_prompt(admin_pb2.ExplainRouteRequest(policy=policy), prompt)
        try:
            return self._admin.ExplainRoute(request, timeout=ANSWER_SECONDS)
        except grpc.RpcError as error:
            raise failure(self.address, error) from None

    def drain(self) -> int:
        """Asks the node to stop once its requests have finished; how many those are."""
        try:
            return self._admin.Drain(admin_pb2.DrainRequest(), timeout=ANSWER_SECONDS).running
        except grpc.RpcError as error:
            raise failure(self.address, error) from None

    def flush_cache(self) -> None:
        try:
            self._admin.FlushCache(admin_pb2.FlushCacheRequest(), timeout=ANSWER_SECONDS)
        except grpc.RpcError as error:
            raise failure(self.address, error) from None

    def check_cache(self) -> str:
        """What is wrong with the books of the node's prefix cache; empty when nothing is."""
        try:
            return self._admin.CheckCache(admin_pb2.CheckCacheRequest(), timeout=ANSWER_SECONDS).problem
        except grpc.RpcError as error:
            raise failure(self.address, error) from None
