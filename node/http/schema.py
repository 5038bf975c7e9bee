"""OpenAI's request bodies, as far as this node serves them; anything else in a body is refused by name."""

from __future__ import annotations

from typing import Annotated, Literal

from pydantic import BaseModel, ConfigDict, Field

from engine.interface import HIGHEST_PRIORITY, LOWEST_PRIORITY
from node.request_builder import SamplingOptions


class _Body(BaseModel):
    model_config = ConfigDict(extra="forbid")


class StreamOptions(_Body):
    include_usage: bool = False


class TextPart(_Body):
    type: Literal["text"]
    text: str


class ChatMessage(_Body):
    role: str
    content: str | list[TextPart]

    def text(self) -> str:
        if isinstance(self.content, str):
            return self.content
        return "".join(part.text for part in self.content)


class GenerationBody(_Body):
    """What chat and text completions share."""

    model: str = ""
    max_tokens: int | None = None
    temperature: float | None = None
    top_p: float | None = None
    top_k: int | None = None
    seed: int | None = None
    stop: str | list[str] | None = None
    stream: bool = False
    stream_options: StreamOptions | None = None
    n: Literal[1] = 1
    priority: int = Field(0, ge=LOWEST_PRIORITY, le=HIGHEST_PRIORITY)
    timeout_s: float | None = Field(None, gt=0, allow_inf_nan=False)
    user: str | None = Field(None, description="Accepted for compatibility; identity comes from credentials.")

    def sampling(self) -> SamplingOptions:
        stop = (self.stop,) if isinstance(self.stop, str) else tuple(self.stop or ())
        return SamplingOptions(
            max_tokens=self.max_tokens,
            # OpenAI's default is 1.0; None keeps this node's greedy default for gRPC only.
            temperature=1.0 if self.temperature is None else self.temperature,
            top_p=self.top_p,
            top_k=self.top_k,
            seed=self.seed,
            stop=stop,
        )

    @property
    def include_usage(self) -> bool:
        return self.stream_options is not None and self.stream_options.include_usage


class ChatBody(GenerationBody):
    """POST /v1/chat/completions."""

    messages: Annotated[list[ChatMessage], Field(min_length=1, max_length=4096)]
    max_completion_tokens: int | None = None

    def sampling(self) -> SamplingOptions:
        if self.max_completion_tokens is not None:
            self.max_tokens = self.max_completion_tokens
        return super().sampling()


class CompletionBody(GenerationBody):
    """POST /v1/completions."""

    prompt: str | list[int]
