"""What every request must satisfy before it may enter the engine."""

from __future__ import annotations

import math
from typing import Final

from engine.errors import (
    EmptyPromptError,
    InvalidSchedulingError,
    InvalidTokenIdsError,
    PromptTooLongError,
)
from engine.interface import HIGHEST_PRIORITY, LOWEST_PRIORITY, EngineInfo, GenerationRequest
from engine.sampling import check_sampling

MAX_CLIENT_CHARACTERS: Final = 128
"""Of the key that says whom a request is for; a digest or a URI fits."""


def most_tokens(info: EngineInfo) -> int:
    """The longest sequence, prompt and answer: the context, or the whole KV cache if that is less."""
    return min(info.context_tokens, info.kv_blocks_total * info.block_size)


def check_request(request: GenerationRequest, info: EngineInfo) -> None:
    """Raises the RequestError that says what is wrong with a request, if anything is."""
    _check_types(request)
    length = len(request.token_ids)
    if not length:
        raise EmptyPromptError("the prompt is empty; send at least one token")
    if length >= most_tokens(info):
        raise PromptTooLongError(
            f"the prompt has {length} tokens; prompt and answer together have at most {most_tokens(info)}"
            " (the context of the model, or the KV cache if that is smaller)"
        )
    if not all(type(token) is int and 0 <= token < info.vocabulary_size for token in request.token_ids):
        raise InvalidTokenIdsError(f"token ids must be from 0 to {info.vocabulary_size - 1}")
    if not 0 <= request.resumed_tokens <= length:
        raise InvalidTokenIdsError(f"resumed_tokens must be from 0 to {length}, not {request.resumed_tokens}")
    if len(request.client) > MAX_CLIENT_CHARACTERS:
        raise InvalidSchedulingError(f"client must have at most {MAX_CLIENT_CHARACTERS} characters")
    if not LOWEST_PRIORITY <= request.priority <= HIGHEST_PRIORITY:
        raise InvalidSchedulingError(
            f"priority must be from {LOWEST_PRIORITY} to {HIGHEST_PRIORITY}, not {request.priority}"
        )
    if request.deadline is not None and math.isnan(request.deadline):
        raise InvalidSchedulingError("deadline must be a time, not NaN")
    check_sampling(request.sampling, info.vocabulary_size)


def _check_types(request: GenerationRequest) -> None:
    """What a caller without a type checker may have given."""
    if not isinstance(request.token_ids, tuple):
        raise InvalidTokenIdsError("token_ids must be a tuple")
    for name in ("resumed_tokens", "priority"):
        if type(getattr(request, name)) is not int:
            raise InvalidSchedulingError(f"{name} must be a whole number, not {getattr(request, name)!r}")
    if not (isinstance(request.client, str) and isinstance(request.request_id, str)):
        raise InvalidSchedulingError("client and request_id must be text")
    if request.deadline is not None and not isinstance(request.deadline, int | float):
        raise InvalidSchedulingError(f"deadline must be a time, not {request.deadline!r}")
