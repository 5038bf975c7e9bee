"""What OpenAI's answers have in common: errors, usage, and the headers that say where an answer came from."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from engine.interface import FinishReason
from node.errors import RequestError
from node.request import Route, Usage

FINISH_REASONS = {
    FinishReason.STOP: "stop",
    FinishReason.LENGTH: "length",
    FinishReason.CANCELLED: "stop",
    FinishReason.DEADLINE: "length",
}


def usage_object(prompts: Sequence[Usage], completion_tokens: int) -> dict[str, Any]:
    """`prompts` has each prompt once, however many answers it got."""
    prompt_tokens = sum(usage.prompt_tokens for usage in prompts)
    return {
        "prompt_tokens": prompt_tokens,
        "completion_tokens": completion_tokens,
        "total_tokens": prompt_tokens + completion_tokens,
        "prompt_tokens_details": {"cached_tokens": sum(usage.cached_tokens for usage in prompts)},
    }


def route_headers(route: Route, usage: Usage | None = None) -> dict[str, str]:
    """Which node answers and why; the cached tokens are those expected until the answer is complete."""
    cached = route.predicted_cached_tokens if usage is None else usage.cached_tokens
    return {
        "x-request-id": route.request_id,
        "x-rumormill-node": route.node,
        "x-rumormill-cached-tokens": str(cached),
        "x-rumormill-route": f"{route.decision.policy}: {route.decision.reason}",
    }


def error_object(error: RequestError) -> dict[str, Any]:
    return {
        "error": {
            "message": str(error),
            "type": error.http_type,
            "param": getattr(error, "parameter", None),
            "code": None,
        }
    }
