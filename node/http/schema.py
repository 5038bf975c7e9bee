"""OpenAI's request bodies, as far as this node serves them; anything else in a body is refused by name.

docs/openai.md says of every parameter of OpenAI's what becomes of it; a test holds the two together.
"""

from __future__ import annotations

import json
from dataclasses import replace
from typing import Annotated, Any, Literal

from pydantic import BaseModel, ConfigDict, Field

from engine.grammar import json_grammar
from engine.interface import HIGHEST_PRIORITY, LOWEST_PRIORITY
from node.errors import InvalidRequestError
from node.request_builder import SamplingOptions

MAX_CHOICES = 128
"""Of one request: prompts times `n`. As many as OpenAI's `n` goes to."""

COMPLETION_TOKENS = 16
"""OpenAI's default for text completions."""

MOST_TOKENS = (1 << 31) - 1
"""More than any context has."""

_IGNORED = "Accepted and ignored: "

Ids = list[Annotated[int, Field(strict=True)]]


class _Body(BaseModel):
    model_config = ConfigDict(extra="forbid")


class StreamOptions(_Body):
    include_usage: bool = False
    include_obfuscation: bool = Field(False, description=_IGNORED + "nothing is padded here.")


class GenerationBody(_Body):
    """What chat and text completions share."""

    model: str = Field("", description="The served model's name, or nothing.")
    max_tokens: int | None = Field(None, description="Most tokens of the answer; never past the context.")
    temperature: float | None = Field(None, description="0 is greedy; 1 when absent.")
    top_p: float | None = None
    n: int = Field(1, ge=1, le=MAX_CHOICES, description="Answers to each prompt; a seed counts up with them.")
    stop: str | list[str] | None = Field(None, description="Up to 16 texts that end the answer.")
    seed: int | None = Field(None, description="Equal seeds give equal answers, on whichever node.")
    presence_penalty: float | None = None
    frequency_penalty: float | None = None
    logit_bias: dict[int, float] | None = Field(None, description="Token id to bias, -100 to 100.")
    stream: bool = False
    stream_options: StreamOptions | None = None
    user: str | None = Field(None, description=_IGNORED + "who calls is who holds the API key.")
    top_k: int | None = Field(None, description="Not OpenAI's. 0 is all.")
    min_p: float | None = Field(None, description="Not OpenAI's. Least share of the likeliest token.")
    repetition_penalty: float | None = Field(None, description="Not OpenAI's. Counts the prompt too.")
    stop_token_ids: Ids | None = Field(None, description="Not OpenAI's. Tokens that end the answer.")
    ignore_eos: bool = Field(False, description="Not OpenAI's. For benchmarks: goes on past the end.")
    priority: int = Field(
        0,
        ge=LOWEST_PRIORITY,
        le=HIGHEST_PRIORITY,
        description="Not OpenAI's. The higher goes first among the caller's requests.",
    )
    timeout_s: float | None = Field(
        None, gt=0, allow_inf_nan=False, description="Not OpenAI's. The answer ends as it then is."
    )

    def sampling(self) -> SamplingOptions:
        """OpenAI's defaults for what is absent."""
        stop = (self.stop,) if isinstance(self.stop, str) else tuple(self.stop or ())
        return SamplingOptions(
            max_tokens=self.max_tokens,
            temperature=1.0 if self.temperature is None else self.temperature,
            top_p=self.top_p,
            top_k=self.top_k,
            seed=None if self.seed is None else self.seed % (1 << 64),
            min_p=self.min_p,
            repetition_penalty=self.repetition_penalty,
            presence_penalty=self.presence_penalty,
            frequency_penalty=self.frequency_penalty,
            stop=stop,
            ignore_eos=self.ignore_eos,
            logit_bias=tuple((self.logit_bias or {}).items()),
            stop_token_ids=tuple(self.stop_token_ids or ()),
        )

    @property
    def include_usage(self) -> bool:
        return self.stream_options is not None and self.stream_options.include_usage


class TextPart(_Body):
    type: Literal["text"]
    text: str


class FunctionCall(_Body):
    name: str
    arguments: str


class ToolCall(_Body):
    id: str
    type: Literal["function"] = "function"
    function: FunctionCall


class ChatMessage(_Body):
    """`name` and `refusal` are OpenAI's and go unread: no chat template has a place for them."""

    role: str
    content: str | list[TextPart] | None = None
    name: str | None = None
    refusal: None = None
    tool_calls: list[ToolCall] | None = None
    tool_call_id: str | None = None

    def plain(self) -> dict[str, Any]:
        """The message as chat templates take it: one text, and the arguments of calls as objects."""
        content = self.content or ""
        text = content if isinstance(content, str) else "".join(part.text for part in content)
        message: dict[str, Any] = {"role": self.role, "content": text}
        if self.tool_calls:
            message["tool_calls"] = [_plain_call(call) for call in self.tool_calls]
        if self.tool_call_id is not None:
            message["tool_call_id"] = self.tool_call_id
        return message


def _plain_call(call: ToolCall) -> dict[str, Any]:
    try:
        arguments = json.loads(call.function.arguments or "{}")
    except ValueError:
        raise InvalidRequestError("the arguments of a tool call must be JSON", "messages") from None
    function = {"name": call.function.name, "arguments": arguments}
    return {"id": call.id, "type": "function", "function": function}


class FunctionDefinition(_Body):
    name: Annotated[str, Field(pattern=r"^[A-Za-z0-9_.-]{1,64}$")]
    description: str | None = None
    parameters: dict[str, Any] | None = None
    strict: bool | None = Field(None, description=_IGNORED + "a forced call always matches its schema.")


class Tool(_Body):
    type: Literal["function"]
    function: FunctionDefinition


class FunctionName(_Body):
    name: str


class NamedTool(_Body):
    type: Literal["function"]
    function: FunctionName


class JsonSchema(_Body):
    name: str
    description: str | None = None
    schema_: dict[str, Any] = Field({}, alias="schema")
    strict: bool | None = Field(None, description=_IGNORED + "every answer matches its schema.")


class ResponseFormat(_Body):
    type: Literal["text", "json_object", "json_schema"]
    json_schema: JsonSchema | None = None

    def grammar(self) -> str:
        """What the answer must match; empty is anything. Raises InvalidRequestError."""
        if (self.type == "json_schema") != (self.json_schema is not None):
            raise InvalidRequestError(
                "response_format.json_schema belongs to the type json_schema, and it to that",
                "response_format",
            )
        if self.json_schema is not None:
            return json_grammar(self.json_schema.schema_)
        return json_grammar({"type": "object"}) if self.type == "json_object" else ""


class ChatBody(GenerationBody):
    """POST /v1/chat/completions."""

    messages: Annotated[list[ChatMessage], Field(min_length=1, max_length=4096)]
    max_completion_tokens: int | None = Field(None, description="The same as max_tokens; this one counts.")
    logprobs: bool = Field(False, description="Log-probabilities of the answer's tokens.")
    top_logprobs: int | None = Field(None, description="And of this many likeliest ones, up to 20.")
    response_format: ResponseFormat | None = None
    tools: Annotated[list[Tool], Field(max_length=128)] = Field(
        default=[], description="Where the model's chat template has them."
    )
    tool_choice: Literal["none", "auto", "required"] | NamedTool = "auto"
    parallel_tool_calls: bool = Field(True, description="False: the first call alone.")
    modalities: list[Literal["text"]] | None = None
    store: Literal[False] | None = None
    metadata: dict[str, str] | None = Field(None, description=_IGNORED + "nothing is stored.")
    safety_identifier: str | None = Field(None, description=_IGNORED + "see user.")
    service_tier: str | None = Field(None, description=_IGNORED + "there is one tier.")
    prompt_cache_key: str | None = Field(None, description=_IGNORED + "the prompt itself is the key.")
    prompt_cache_retention: str | None = Field(None, description=_IGNORED + "see prompt_cache_key.")
    prediction: dict[str, Any] | None = Field(None, description=_IGNORED + "it would change speed alone.")

    def sampling(self) -> SamplingOptions:
        """Without a limit, the answer may go on to the context's end."""
        if self.top_logprobs is not None and not self.logprobs:
            raise InvalidRequestError("top_logprobs needs logprobs to be true", "top_logprobs")
        limits = (self.max_completion_tokens, self.max_tokens, MOST_TOKENS)
        return replace(
            super().sampling(),
            max_tokens=next(limit for limit in limits if limit is not None),
            logprobs=(self.top_logprobs or 0) if self.logprobs else None,
            grammar=self.response_format.grammar() if self.response_format else "",
        )


class CompletionBody(GenerationBody):
    """POST /v1/completions."""

    prompt: str | Ids | list[str] | list[Ids] = Field(
        description="A text or token ids, or up to 128 of either."
    )
    echo: bool = Field(False, description="The answer begins with the prompt, and so do its logprobs.")
    logprobs: int | None = Field(None, description="Log-probabilities, and as many likeliest, up to 20.")
    best_of: int | None = Field(None, description="Must be n: answers aren't ranked here.")

    def prompts(self) -> list[str | Ids]:
        """One or many; raises InvalidRequestError."""
        if self.best_of is not None and self.best_of != self.n:
            raise InvalidRequestError("best_of is not supported unless it equals n; leave it out", "best_of")
        prompt = self.prompt
        if isinstance(prompt, str):
            return [prompt]
        many = [each for each in prompt if isinstance(each, str | list)]
        prompts: list[str | Ids] = many or [[each for each in prompt if isinstance(each, int)]]
        if len(prompts) * self.n > MAX_CHOICES:
            raise InvalidRequestError(f"at most {MAX_CHOICES} answers at once: prompts times n", "prompt")
        return prompts

    def sampling(self) -> SamplingOptions:
        max_tokens = COMPLETION_TOKENS if self.max_tokens is None else self.max_tokens
        return replace(
            super().sampling(),
            max_tokens=max_tokens if self.shows_answer else 1,  # an engine gives no fewer
            logprobs=self.logprobs,
            prompt_logprobs=self.logprobs if self.echo else None,
        )

    @property
    def shows_answer(self) -> bool:
        """Not with `max_tokens` 0, which OpenAI has for those who want the prompt's logprobs alone."""
        return not (self.echo and self.max_tokens == 0)
