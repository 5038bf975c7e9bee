"""What is asked of a mesh: sessions of one or more turns, each with a prompt made from those before it."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Protocol

from rumormill.v1 import inference_pb2


class History(Protocol):
    """A session's prompts, one after the other."""

    def request(self, turn: int, previous_answer: str) -> inference_pb2.GenerateRequest:
        """The request of a turn, given what the turn before was answered."""


@dataclass(frozen=True, slots=True)
class Session:
    """One user's turns, all through one entry node.

    `at` is when it begins, in mean pauses between two requests; `answer_tokens` has the length of each
    turn's answer; `group` is what its prompts share with others of the same name.
    """

    group: str
    entry: int
    at: float
    answer_tokens: Sequence[int]
    history: History


@dataclass(frozen=True, slots=True)
class TextPrompt:
    """One turn of plain text."""

    text: str

    def request(self, turn: int, previous_answer: str) -> inference_pb2.GenerateRequest:
        return inference_pb2.GenerateRequest(prompt=self.text)


@dataclass(frozen=True, slots=True)
class TokenPrompt:
    """One turn of exact tokens."""

    token_ids: Sequence[int]

    def request(self, turn: int, previous_answer: str) -> inference_pb2.GenerateRequest:
        return inference_pb2.GenerateRequest(token_ids=inference_pb2.TokenIds(ids=self.token_ids))


class Dialogue:
    """A chat under a system prompt: what the user says is given, what the assistant says is the mesh's."""

    def __init__(self, system: str, said: Sequence[str]) -> None:
        self._said = said
        self._messages = [inference_pb2.ChatMessage(role="system", content=system)]

    def request(self, turn: int, previous_answer: str) -> inference_pb2.GenerateRequest:
        if turn:
            self._messages.append(inference_pb2.ChatMessage(role="assistant", content=previous_answer))
        else:
            del self._messages[1:]  # the same dialogue may be asked anew, of another policy
        self._messages.append(inference_pb2.ChatMessage(role="user", content=self._said[turn]))
        return inference_pb2.GenerateRequest(chat=inference_pb2.Chat(messages=self._messages))
