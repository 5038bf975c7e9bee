"""Log-probabilities in OpenAI's two shapes: a list of objects for chats, four lists for completions."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

from engine.interface import TokenLogprobs

TokenBytes = Callable[[int], bytes]


def token_text(token: bytes) -> str:
    """A token's text; one with half a character is written as its bytes, as OpenAI does."""
    try:
        return token.decode()
    except UnicodeDecodeError:
        return "bytes:" + "".join(f"\\x{byte:02x}" for byte in token)


def chat_logprobs(
    token_ids: Sequence[int], logprobs: Sequence[TokenLogprobs], token_bytes: TokenBytes
) -> dict[str, Any]:
    """For a choice of a chat completion."""

    def entry(token: int, logprob: float) -> dict[str, Any]:
        raw = token_bytes(token)
        return {"token": token_text(raw), "logprob": logprob, "bytes": list(raw)}

    content = [
        {
            **entry(token, each.logprob),
            "top_logprobs": [entry(other, logprob) for other, logprob in each.top],
        }
        for token, each in zip(token_ids, logprobs, strict=True)
    ]
    return {"content": content, "refusal": None}


class TextLogprobs:
    """For one choice of a text completion; offsets count on from part to part."""

    def __init__(self, token_bytes: TokenBytes) -> None:
        self._token_bytes = token_bytes
        self._offset = 0

    def part(self, token_ids: Sequence[int], logprobs: Sequence[TokenLogprobs | None]) -> dict[str, Any]:
        """None stands for a prompt's first token, which nothing foretells."""
        texts = [token_text(self._token_bytes(token)) for token in token_ids]
        offsets = []
        for text in texts:
            offsets.append(self._offset)
            self._offset += len(text)
        return {
            "tokens": texts,
            "token_logprobs": [each and each.logprob for each in logprobs],
            "top_logprobs": [
                self._top(text, each) if each else None for text, each in zip(texts, logprobs, strict=True)
            ],
            "text_offset": offsets,
        }

    def _top(self, text: str, logprobs: TokenLogprobs) -> dict[str, float]:
        """The likeliest and the token itself, as OpenAI has it; of two with one text the likelier counts."""
        top: dict[str, float] = {}
        for token, logprob in logprobs.top:
            top.setdefault(token_text(self._token_bytes(token)), logprob)
        top.setdefault(text, logprobs.logprob)
        return top
