"""What the clients of a node share: how a channel behaves, what requests say, what a failure means."""

from __future__ import annotations

import json
from collections.abc import Sequence
from typing import Any, Final, TypeVar, cast

import grpc

from certs.credentials import Credentials
from node.errors import NodeError
from node.grpc_errors import ERROR_TRAILER
from rumormill.v1 import admin_pb2, inference_pb2

CONNECT_SECONDS: Final = 5.0
ANSWER_SECONDS: Final = 10.0

ATTEMPTS: Final = 3
"""Of a call that got no answer; a stream that has begun is not begun again."""

_RETRIES: Final = {
    "methodConfig": [
        {
            "name": [{"service": f"rumormill.v1.{service}"} for service in ("Inference", "Admin")],
            "retryPolicy": {
                "maxAttempts": ATTEMPTS,
                "initialBackoff": "0.2s",
                "maxBackoff": "2s",
                "backoffMultiplier": 2,
                "retryableStatusCodes": ["UNAVAILABLE", "RESOURCE_EXHAUSTED"],
            },
        }
    ]
}
"""gRPC's own retries; a full node's answer says when, in the trailer `grpc-retry-pushback-ms`."""

_NEVER_CONNECTED: Final = ("failed to connect", "DNS resolution failed", "empty address list")

Prompt = str | Sequence[int] | Sequence[inference_pb2.ChatMessage]
"""A text to complete, token ids, or a chat's messages."""

Message = TypeVar(
    "Message",
    inference_pb2.GenerateRequest,
    inference_pb2.TokenizeRequest,
    admin_pb2.ExplainRouteRequest,
)


class ClientError(NodeError):
    """A call failed; `code` is its gRPC status."""

    def __init__(self, message: str, code: grpc.StatusCode) -> None:
        super().__init__(message)
        self.code = code


def channel_options(credentials: Credentials) -> tuple[tuple[str, Any], ...]:
    """Any node of the mesh will do, and what got no answer is asked again."""
    return (
        ("grpc.ssl_target_name_override", credentials.any_node_name),
        ("grpc.service_config", json.dumps(_RETRIES)),
    )


def with_prompt(message: Message, prompt: Prompt) -> Message:
    """The message, asking for that prompt."""
    if isinstance(prompt, str):
        message.prompt = prompt
    elif prompt and isinstance(prompt[0], inference_pb2.ChatMessage):
        message.chat.messages.extend(cast(Sequence[inference_pb2.ChatMessage], prompt))
    elif isinstance(message, inference_pb2.GenerateRequest):
        message.token_ids.ids.extend(cast(Sequence[int], prompt))
    else:
        raise TypeError("token ids can only be continued")
    return message


def failure(address: str, error: grpc.RpcError) -> ClientError:
    """What a failed call says to a person: the node's own words, or what became of the connection."""
    call = cast(grpc.Call, error)  # what a channel raises is both
    code, details = call.code(), call.details() or call.code().name
    trailers = {key for key, _ in call.trailing_metadata() or ()}
    if code is grpc.StatusCode.UNAVAILABLE and ERROR_TRAILER not in trailers:
        if details.startswith(_NEVER_CONNECTED):
            details = f"the node at {address} can't be reached: {details}"
        else:
            details = f"the connection to the node at {address} broke: {details}"
    return ClientError(details, code)


def not_ready(address: str) -> ClientError:
    """No mesh node answers there."""
    return ClientError(
        f"no node of this mesh answers at {address}: is one running there "
        "(`rumormill up`), and is it of the same mesh (--token)?",
        grpc.StatusCode.UNAVAILABLE,
    )
