"""One generation as the pipeline sees it: what is asked, and the events of its answer."""

from __future__ import annotations

from dataclasses import dataclass

from engine.block_hash import Namespace
from engine.interface import FinishReason, SamplingParams, TokenLogprobs
from overlay.core.routing import Decision
from overlay.core.types import NodeId


@dataclass(frozen=True, slots=True)
class Request:
    """A validated request: exact token ids, complete sampling, the caller's namespace."""

    id: str
    token_ids: tuple[int, ...]
    sampling: SamplingParams
    namespace: Namespace
    stop: tuple[str, ...] = ()
    policy: str = ""
    resumed_tokens: int = 0  # of token_ids, how many an interrupted answer had delivered
    traceparent: str = ""  # the caller's W3C trace context, if there is one
    client: str = ""  # whom engines count its work for
    priority: int = 0


@dataclass(frozen=True, slots=True)
class Route:
    """Which node answers, and why; a request that moves gets a new one."""

    request_id: str
    entry_node: NodeId
    node: NodeId
    decision: Decision
    predicted_cached_tokens: int


@dataclass(frozen=True, slots=True)
class Chunk:
    """Text and tokens that are new since the last chunk; text may lag behind tokens.

    `logprobs` are those of `token_ids`, if they were asked for.
    """

    text: str
    token_ids: tuple[int, ...]
    first_index: int
    logprobs: tuple[TokenLogprobs, ...] = ()


@dataclass(frozen=True, slots=True)
class Usage:
    """What a finished request used, in tokens; `cached_tokens` were found in the answering node's cache."""

    prompt_tokens: int
    completion_tokens: int
    cached_tokens: int


@dataclass(frozen=True, slots=True)
class Done:
    """The end of an answer."""

    reason: FinishReason
    usage: Usage
    route: Route


@dataclass(frozen=True, slots=True)
class PromptScored:
    """The log-probabilities of the prompt's second token and on, once, before the first Chunk."""

    logprobs: tuple[TokenLogprobs, ...]


Event = Route | PromptScored | Chunk | Done
