"""What `Engine.generate` makes of one prompt."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from engine.errors import InvalidSamplingError
from engine.interface import FinishReason, TokenOutput
from engine.stop_strings import StopStrings
from engine.tokenizer import IncrementalDecoder, Tokenizer


@dataclass(frozen=True, slots=True)
class Answer:
    """A finished answer; `token_ids` are all that were generated, `text` ends before a stop string."""

    text: str
    token_ids: tuple[int, ...]
    cached_tokens: int
    finish_reason: FinishReason


class AnswerWriter:
    """Gathers one answer from its outputs. Raises InvalidSamplingError for an empty stop string."""

    def __init__(self, tokenizer: Tokenizer, stop: str | Sequence[str] = ()) -> None:
        stops = (stop,) if isinstance(stop, str) else tuple(stop)
        if not all(stops):
            raise InvalidSamplingError("a stop string must have at least one character")
        self._decoder = IncrementalDecoder(tokenizer)
        self._stops = StopStrings(stops)
        self._text = ""
        self._token_ids: list[int] = []
        self._cached_tokens = 0
        self._reason: FinishReason | None = None

    def add(self, output: TokenOutput) -> bool:
        """Adds an output; True when the answer is complete, by its own end or a stop string."""
        self._token_ids += output.token_ids
        self._cached_tokens = output.cached_tokens
        self._text += self._stops.push(self._decoder.push(output.token_ids))
        self._reason = output.finish_reason
        if self._reason is not None:
            self._text += self._stops.push(self._decoder.flush())
        if self._stops.found:
            self._reason = FinishReason.STOP
        elif self._reason is not None:
            self._text += self._stops.flush()
        return self._reason is not None

    def answer(self) -> Answer:
        """The complete answer; only once `add` has said so."""
        if self._reason is None:
            raise AssertionError("the answer is not complete")
        return Answer(self._text, tuple(self._token_ids), self._cached_tokens, self._reason)
