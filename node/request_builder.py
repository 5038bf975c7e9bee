"""Turns what a door was given into a validated Request; every refusal names the remedy."""

from __future__ import annotations

import json
import secrets
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, fields, replace
from typing import Any

from engine.block_hash import Namespace
from engine.errors import InvalidSamplingError
from engine.grammar import json_grammar
from engine.interface import HIGHEST_PRIORITY, LOWEST_PRIORITY, EngineInfo, SamplingParams
from engine.sampling import check_sampling
from engine.tokenizer import Tokenizer
from node.errors import InvalidRequestError, UnknownModelError
from node.request import Request
from node.tenants import NOBODY, Caller
from overlay.core.routing import POLICIES

MAX_STOP_STRINGS = 16
MAX_STOP_CHARACTERS = 256
MAX_PROMPT_CHARACTERS_PER_TOKEN = 64
"""A prompt longer than context x this can't fit, whatever its tokens: refused before tokenizing."""

DEFAULT_MAX_TOKENS = 256
ROLES = ("system", "user", "assistant", "tool")

Prompt = str | Sequence[int] | Sequence[Mapping[str, Any]]
"""Text to complete, token ids, or chat messages with `role` and `content`."""


@dataclass(frozen=True, slots=True)
class SamplingOptions:
    """Sampling as asked for; None takes the default."""

    max_tokens: int | None = None
    temperature: float | None = None
    top_p: float | None = None
    top_k: int | None = None
    seed: int | None = None
    min_p: float | None = None
    repetition_penalty: float | None = None
    presence_penalty: float | None = None
    frequency_penalty: float | None = None
    logprobs: int | None = None
    prompt_logprobs: int | None = None
    stop: tuple[str, ...] = ()
    ignore_eos: bool = False
    logit_bias: tuple[tuple[int, float], ...] = ()
    stop_token_ids: tuple[int, ...] = ()
    grammar: str = ""


NUMBERS = tuple(each.name for each in fields(SamplingOptions) if each.default is None)
"""Options with a default of the engine's, except for the two that are decided here."""


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
        caller: Caller = NOBODY,
        priority: int = 0,
        traceparent: str = "",
        tools: Sequence[Mapping[str, Any]] = (),
    ) -> Request:
        """Raises InvalidRequestError or UnknownModelError."""
        self.check_model(model)
        if not LOWEST_PRIORITY <= priority <= HIGHEST_PRIORITY:
            raise InvalidRequestError(
                f"priority must be from {LOWEST_PRIORITY} to {HIGHEST_PRIORITY}", "priority"
            )
        if policy and policy not in POLICIES:
            raise InvalidRequestError(
                f"unknown routing policy {policy!r}; choose one of {', '.join(POLICIES)}", "policy"
            )
        token_ids = self.tokenize(prompt, tools)
        context = self._info.context_tokens
        if len(token_ids) >= context:
            raise InvalidRequestError(
                f"the prompt has {len(token_ids)} tokens and the model's context {context}; "
                "shorten the prompt so that an answer fits too",
                "prompt",
            )
        return Request(
            id=secrets.token_hex(8),
            token_ids=token_ids,
            sampling=self._sampling(options, context - len(token_ids)),
            namespace=Namespace(self._info.namespace.model, caller.salt),
            stop=options.stop,
            policy=policy,
            traceparent=traceparent,
            client=caller.client,
            priority=priority,
        )

    def check_model(self, model: str) -> None:
        """Raises UnknownModelError unless `model` is empty or a name of the served one."""
        if model and model.lower() not in self._names:
            raise UnknownModelError(model, self._info.model_name)

    def tokenize(self, prompt: Prompt, tools: Sequence[Mapping[str, Any]] = ()) -> tuple[int, ...]:
        """The exact ids of a prompt; raises InvalidRequestError for an empty or malformed one."""
        if isinstance(prompt, str):
            token_ids = self._text(prompt)
        elif prompt and isinstance(prompt[0], Mapping):
            token_ids = self._chat([message for message in prompt if isinstance(message, Mapping)], tools)
        else:
            token_ids = self._ids([item for item in prompt if isinstance(item, int)])
        if not token_ids:
            raise InvalidRequestError("the prompt is empty; send at least one token of text", "prompt")
        return tuple(token_ids)

    def _text(self, text: str) -> Sequence[int]:
        self._bound(len(text))
        return self._tokenizer.encode(text)

    def _chat(
        self, messages: Sequence[Mapping[str, Any]], tools: Sequence[Mapping[str, Any]]
    ) -> Sequence[int]:
        for message in messages:
            if message.get("role") not in ROLES:
                raise InvalidRequestError(
                    f"unknown chat role {message.get('role')!r}; use one of {', '.join(ROLES)}", "messages"
                )
        if not any(message["content"] for message in messages):
            raise InvalidRequestError(
                "the chat has no text; send at least one message with content", "messages"
            )
        if tools and not (self._tokenizer.chat_takes_tools and self._tokenizer.writes_tool_calls):
            raise InvalidRequestError(
                f"the chat template of {self._info.model_name} has no tools, or calls them in a form that is "
                "not known here; leave them out",
                "tools",
            )
        self._bound(sum(len(message["content"]) for message in messages) + len(json.dumps(tools)))
        return self._tokenizer.encode_chat(messages, tools)

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
        if len(options.stop) > MAX_STOP_STRINGS:
            raise InvalidRequestError(f"at most {MAX_STOP_STRINGS} stop strings are allowed", "stop")
        if any(not 0 < len(stop) <= MAX_STOP_CHARACTERS for stop in options.stop):
            raise InvalidRequestError(f"a stop string has 1 to {MAX_STOP_CHARACTERS} characters", "stop")
        asked = {name: value for name in NUMBERS if (value := getattr(options, name)) is not None}
        sampling = SamplingParams(
            **{"max_tokens": DEFAULT_MAX_TOKENS, "seed": secrets.randbits(63), **asked},
            ignore_eos=options.ignore_eos,
            logit_bias=tuple(sorted(options.logit_bias)),
            stop_token_ids=frozenset(options.stop_token_ids),
            grammar=options.grammar,
        )
        try:
            check_sampling(sampling, self._info.vocabulary_size)
            if options.grammar:
                self._tokenizer.grammars.check(options.grammar)
        except InvalidSamplingError as error:
            raise InvalidRequestError(str(error), _parameter(str(error))) from None
        return replace(sampling, max_tokens=min(sampling.max_tokens, room))


def schema_grammar(text: str) -> str:
    """The grammar of a JSON schema given as a text; raises InvalidRequestError."""
    try:
        schema = json.loads(text)
    except (ValueError, RecursionError):
        schema = None
    if not isinstance(schema, dict):
        raise InvalidRequestError("json_schema must be a JSON object with a schema", "json_schema")
    return json_grammar(schema)


def _parameter(message: str) -> str | None:
    """The option that a refusal of the engine is about: the first that it names."""
    return next((word for word in message.split() if word in SamplingParams.__dataclass_fields__), None)
