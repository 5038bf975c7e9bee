"""How one choice of an answer is written: as a chat's message or as text, in one piece or in parts."""

from __future__ import annotations

from typing import Any, Protocol

from engine.interface import TokenLogprobs
from node.http.logprobs import TextLogprobs, TokenBytes, chat_logprobs
from node.http.openai import FINISH_REASONS
from node.http.tools import ToolReader
from node.request import Chunk, Done, Event, PromptScored, Request


class Writer(Protocol):
    """Writes one choice. `parts` are what a stream sends, `whole` what an answer in one piece has."""

    def begin(self) -> list[dict[str, Any]]:
        """The parts that a stream begins with."""

    def parts(self, event: Event) -> list[dict[str, Any]]:
        """The parts that an event brings, each a choice without its index."""

    def whole(self) -> dict[str, Any]:
        """All that the events brought, once they have ended."""


class ChatWriter:
    """A chat's message."""

    def __init__(self, token_bytes: TokenBytes, tools: ToolReader | None, *, logprobs: bool) -> None:
        self._token_bytes = token_bytes
        self._tools = tools
        self._wants_logprobs = logprobs
        self._content = ""
        self._calls: list[dict[str, Any]] = []
        self._token_ids: list[int] = []
        self._logprobs: list[TokenLogprobs] = []
        self._reason: str | None = None

    def begin(self) -> list[dict[str, Any]]:
        return [_delta({"role": "assistant", "content": ""})]

    def parts(self, event: Event) -> list[dict[str, Any]]:
        if isinstance(event, Chunk):
            return self._chunk(event)
        return self._done(event) if isinstance(event, Done) else []

    def whole(self) -> dict[str, Any]:
        message: dict[str, Any] = {"role": "assistant", "content": self._content, "refusal": None}
        if self._calls:
            message["content"] = self._content or None
            message["tool_calls"] = self._calls
        logprobs = self._shown_logprobs(self._token_ids, self._logprobs)
        return {"message": message, "finish_reason": self._reason, "logprobs": logprobs}

    def _chunk(self, chunk: Chunk) -> list[dict[str, Any]]:
        self._token_ids += chunk.token_ids
        self._logprobs += chunk.logprobs
        text, calls = self._read(chunk.text)
        parts = []
        if text or (self._wants_logprobs and chunk.token_ids):
            logprobs = self._shown_logprobs(list(chunk.token_ids), list(chunk.logprobs))
            parts.append(_delta({"content": text}, logprobs))
        return parts + calls

    def _done(self, done: Done) -> list[dict[str, Any]]:
        parts = []
        if self._tools is not None and (rest := self._tools.flush()):
            self._content += rest
            parts.append(_delta({"content": rest}))
        self._reason = "tool_calls" if self._calls else FINISH_REASONS[done.reason]
        return [*parts, {"delta": {}, "finish_reason": self._reason, "logprobs": None}]

    def _read(self, text: str) -> tuple[str, list[dict[str, Any]]]:
        """What of new text is content, and the parts of the calls that it completes."""
        calls: list[dict[str, Any]] = []
        if self._tools is not None:
            text, calls = self._tools.push(text)
        self._content += text
        first = len(self._calls)
        self._calls += calls
        return text, [
            _delta({"tool_calls": [{"index": first + index, **call}]}) for index, call in enumerate(calls)
        ]

    def _shown_logprobs(self, token_ids: list[int], logprobs: list[TokenLogprobs]) -> dict[str, Any] | None:
        return chat_logprobs(token_ids, logprobs, self._token_bytes) if self._wants_logprobs else None


class TextWriter:
    """A text, after the prompt's own if `echo` is that; without `shown` nothing comes after it."""

    def __init__(
        self, request: Request, token_bytes: TokenBytes, echo: str | None = None, *, shown: bool = True
    ) -> None:
        self._request = request
        self._echo = echo
        self._shown = shown
        self._lists = None if request.sampling.logprobs is None else TextLogprobs(token_bytes)
        self._text = ""
        self._logprobs: dict[str, Any] = {}
        self._reason: str | None = None

    def begin(self) -> list[dict[str, Any]]:
        """An echo without log-probabilities; one with them waits until they are known."""
        if self._echo is None or self._lists is not None:
            return []
        return [self._part(self._echo)]

    def parts(self, event: Event) -> list[dict[str, Any]]:
        if isinstance(event, PromptScored) and self._lists is not None and self._echo is not None:
            logprobs = self._lists.part(self._request.token_ids, (None, *event.logprobs))
            return [self._part(self._echo, logprobs)]
        if isinstance(event, Chunk) and self._shown and (event.text or (self._lists and event.token_ids)):
            new = self._lists.part(event.token_ids, event.logprobs) if self._lists else None
            return [self._part(event.text, new)]
        if isinstance(event, Done):
            self._reason = FINISH_REASONS[event.reason]
            return [{"text": "", "finish_reason": self._reason, "logprobs": None}]
        return []

    def whole(self) -> dict[str, Any]:
        return {"text": self._text, "finish_reason": self._reason, "logprobs": self._logprobs or None}

    def _part(self, text: str, logprobs: dict[str, Any] | None = None) -> dict[str, Any]:
        self._text += text
        for name, values in (logprobs or {}).items():
            self._logprobs.setdefault(name, []).extend(values)
        return {"text": text, "finish_reason": None, "logprobs": logprobs}


def _delta(delta: dict[str, Any], logprobs: dict[str, Any] | None = None) -> dict[str, Any]:
    return {"delta": delta, "finish_reason": None, "logprobs": logprobs}
