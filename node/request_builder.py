"""Turns what a door was given into a validated Request; every refusal names the remedy."""

from __future__ import annotations

import math
import secrets
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from engine.interface import EngineInfo, SamplingParams
from engine.tokenizer import Tokenizer
from node.errors import InvalidRequestError, UnknownModelError
from node.request import Request
from overlay.core.routing import POLICIES

MAX_STOP_STRINGS = 16
MAX_STOP_CHARACTERS = 256
MAX_PROMPT_CHARACTERS_PER_TOKEN = 64
"""A prompt longer than context x this can't fit, whatever its tokens: refused before tokenizing."""

DEFAULT_MAX_TOKENS = 256
ROLES = ("system", "user", "assistant")

Prompt = str | Sequence[int] | Sequence[Mapping[str, str]]
"""Text to complete, token ids, or chat messages with `role` and `content`."""


@dataclass(frozen=True, slots=True)
class SamplingOptions:
    """Sampling as asked for; None takes the default."""

    max_tokens: int | None = None
    temperature: float | None = None
    top_p: float | None = None
    top_k: int | None = None
    seed: int | None = None
    stop: tuple[str, ...] = ()
    ignore_eos: bool = False


class RequestBuilder:
    """Validates and tokenizes for one model."""

    def __init__(self, tokenizer: Tokenizer, info: EngineInfo, alias: str = "") -> None:
        """`alias` is what the operator called the model; clients may call it so too."""
        self._tokenizer = tokenizer
        self._info = info
        self._names = {info.model_name.lower(), alias.lower()}

    def build(
        self,
        prompt: Prompt,
        options: SamplingOptions,
        *,
        model: str = "",
        policy: str = "",
        salt: bytes = b"",
    ) -> Request:
        """Raises InvalidRequestError or UnknownModelError."""
        self.check_model(model)
        if policy and policy not in POLICIES:
            raise InvalidRequestError(
                f"unknown routing policy {policy!r}; choose one of {', '.join(POLICIES)}", "policy"
            )
        token_ids = self.tokenize(prompt)
        context = self._info.context_tokens
        if len(token_ids) >= context:
            raise InvalidRequestError(
                f"the prompt has {len(token_ids)} tokens and the model's context {context}; "
                "shorten the prompt so that an answer fits too",
                "prompt",
            )
        namespace = self._info.namespace
        return Request(
            id=secrets.token_hex(8),
            token_ids=token_ids,
            sampling=self._sampling(options, context - len(token_ids)),
            namespace=type(namespace)(namespace.model, salt),
            stop=options.stop,
            policy=policy,
        )

    def check_model(self, model: str) -> None:
        """Raises UnknownModelError unless `model` is empty or a name of the served one."""
        if model and model.lower() not in self._names:
            raise UnknownModelError(model, self._info.model_name)

    def tokenize(self, prompt: Prompt) -> tuple[int, ...]:
        """The exact ids of a prompt; raises InvalidRequestError for an empty or malformed one."""
        if isinstance(prompt, str):
            token_ids = self._text(prompt)
        elif prompt and isinstance(prompt[0], Mapping):
            token_ids = self._chat([message for message in prompt if isinstance(message, Mapping)])
        else:
            token_ids = self._ids([item for item in prompt if isinstance(item, int)])
        if not token_ids:
            raise InvalidRequestError("the prompt is empty; send at least one token of text", "prompt")
        return tuple(token_ids)

    def _text(self, text: str) -> Sequence[int]:
        self._bound(len(text))
        return self._tokenizer.encode(text)

    def _chat(self, messages: Sequence[Mapping[str, str]]) -> Sequence[int]:
        for message in messages:
            if message.get("role") not in ROLES:
                raise InvalidRequestError(
                    f"unknown chat role {message.get('role')!r}; use one of {', '.join(ROLES)}", "messages"
                )
        if not any(message["content"] for message in messages):
            raise InvalidRequestError(
                "the chat has no text; send at least one message with content", "messages"
            )
        self._bound(sum(len(message["content"]) for message in messages))
        return self._tokenizer.encode_chat(messages)

    def _ids(self, token_ids: Sequence[int]) -> Sequence[int]:
        vocabulary = self._info.vocabulary_size
        for token_id in token_ids:
            if not 0 <= token_id < vocabulary:
                raise InvalidRequestError(
                    f"token id {token_id} is outside the vocabulary of {vocabulary}", "prompt"
                )
        return token_ids

    def _bound(self, characters: int) -> None:
        limit = self._info.context_tokens * MAX_PROMPT_CHARACTERS_PER_TOKEN
        if characters > limit:
            raise InvalidRequestError(
                f"the prompt has {characters} characters and can't fit the model's context of "
                f"{self._info.context_tokens} tokens; shorten it",
                "prompt",
            )

    def _sampling(self, options: SamplingOptions, room: int) -> SamplingParams:
        max_tokens = DEFAULT_MAX_TOKENS if options.max_tokens is None else options.max_tokens
        temperature = 0.0 if options.temperature is None else options.temperature
        top_p = 1.0 if options.top_p is None else options.top_p
        top_k = options.top_k or 0
        if max_tokens < 1:
            raise InvalidRequestError("max_tokens must be at least 1", "max_tokens")
        if not (math.isfinite(temperature) and 0 <= temperature <= 100):
            raise InvalidRequestError("temperature must be between 0 and 100; 0 is greedy", "temperature")
        if not (math.isfinite(top_p) and 0 < top_p <= 1):
            raise InvalidRequestError("top_p must be above 0 and at most 1", "top_p")
        if top_k < 0:
            raise InvalidRequestError("top_k must be 0 (all) or positive", "top_k")
        if len(options.stop) > MAX_STOP_STRINGS:
            raise InvalidRequestError(f"at most {MAX_STOP_STRINGS} stop strings are allowed", "stop")
        if any(not 0 < len(stop) <= MAX_STOP_CHARACTERS for stop in options.stop):
            raise InvalidRequestError(f"a stop string has 1 to {MAX_STOP_CHARACTERS} characters", "stop")
        if options.seed is not None and not 0 <= options.seed < 1 << 64:
            raise InvalidRequestError("seed must fit 64 bits unsigned", "seed")
        return SamplingParams(
            max_tokens=min(max_tokens, room),
            temperature=temperature,
            top_p=top_p,
            top_k=top_k,
            seed=secrets.randbits(63) if options.seed is None else options.seed,
            ignore_eos=options.ignore_eos,
        )
