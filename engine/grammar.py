"""Answers that must match a grammar: which tokens may come next, by llguidance (Earley parsing over bytes).

A grammar is a text in llguidance's dialect of Lark, in which `%json {...}` stands for a JSON schema. Its
state is a pure function of the tokens so far, so another engine goes on where one stopped.
"""

from __future__ import annotations

import json
from collections.abc import Collection, Mapping, Sequence
from functools import cached_property
from typing import Any, Final

import llguidance
import llguidance.numpy
import numpy as np
import numpy.typing as npt

from engine.errors import InvalidSamplingError, ModelUnsupportedError
from engine.model_files import ModelFiles

MAX_GRAMMAR_CHARACTERS: Final = 64 << 10

_MAX_LEXER_STATES: Final = 20_000
"""About 2 kB each; a live request may not take more memory than that."""

_SILENT: Final = 0
_WHITESPACE: Final = r"[\x20\x0A\x0D\x09]{1,20}"
"""Between JSON's tokens; bounded, since small models like to indent for ever."""

Allowed = npt.NDArray[np.bool_]


def json_grammar(schema: Mapping[str, Any]) -> str:
    """The grammar of the JSON texts that a JSON schema admits."""
    return f"start: {json_rule(schema)}"


def json_rule(schema: Mapping[str, Any]) -> str:
    """The same as a part of a larger grammar's rule."""
    return "%json " + json.dumps({**schema, "x-guidance": {"whitespace_pattern": _WHITESPACE}})


class Grammars:
    """Reads grammars for one model's vocabulary."""

    def __init__(self, files: ModelFiles) -> None:
        self._path = str(files.folder / "tokenizer.json")
        self._vocabulary_size = files.config.vocabulary_size
        self._eos_token_ids = sorted(files.config.eos_token_ids)

    def check(self, text: str) -> None:
        """Raises InvalidSamplingError for what is no grammar, or too large a one."""
        self.constraint(text)

    def constraint(self, text: str, answer: Sequence[int] = ()) -> Constraint:
        """The state after an answer's tokens so far.

        Raises InvalidSamplingError for what is no grammar, and for an answer that doesn't match it.
        """
        if not isinstance(text, str) or not _is_unicode(text):
            raise InvalidSamplingError("a grammar must be Unicode text")
        if len(text) > MAX_GRAMMAR_CHARACTERS:
            raise InvalidSamplingError(f"a grammar may have at most {MAX_GRAMMAR_CHARACTERS} characters")
        limits = llguidance.LLParserLimits(max_lexer_states=_MAX_LEXER_STATES, verbose_errors=False)
        matcher = llguidance.LLMatcher(self._tokenizer, text, log_level=_SILENT, limits=limits)
        if matcher.is_error():
            raise InvalidSamplingError(f"the grammar can't be used: {matcher.get_error().splitlines()[0]}")
        constraint = Constraint(matcher, self._vocabulary_size, self._eos_token_ids)
        for token in answer:
            constraint.accept(token)
        if constraint.failed:
            raise InvalidSamplingError("the answer so far does not match the grammar")
        return constraint

    def token_bytes(self, token: int) -> bytes:
        """What a token says: half a character, perhaps."""
        return self._tokenizer.decode_bytes([token])

    @cached_property
    def _tokenizer(self) -> llguidance.LLTokenizer:
        """Takes half a second to make, so only who needs it pays."""
        try:
            return llguidance.LLTokenizer(
                self._path, n_vocab=self._vocabulary_size, eos_token=self._eos_token_ids or None
            )
        except ValueError as error:
            raise ModelUnsupportedError(f"llguidance can't read this model's tokenizer: {error}") from error


class Constraint:
    """One answer's place in its grammar."""

    def __init__(
        self, matcher: llguidance.LLMatcher, vocabulary_size: int, eos_token_ids: Collection[int]
    ) -> None:
        self._matcher = matcher
        self._eos_token_ids = eos_token_ids
        self._size = vocabulary_size
        self._mask = llguidance.numpy.allocate_token_bitmask(1, vocabulary_size)

    @property
    def failed(self) -> bool:
        """Whether the tokens don't match, or the grammar takes more work than there may be."""
        return self._matcher.is_error()

    def allowed(self) -> Allowed:
        """Which tokens of the vocabulary may come next; the end alone once all is said or it failed."""
        llguidance.numpy.fill_next_token_bitmask(self._matcher, self._mask)
        bits = np.unpackbits(self._mask[0].view(np.uint8), bitorder="little")
        return bits[: self._size].view(np.bool_)

    def accept(self, token: int) -> None:
        """Goes on past a token; the end may come again and again."""
        if not (self._matcher.is_stopped() and token in self._eos_token_ids):
            self._matcher.consume_token(token)


def _is_unicode(text: str) -> bool:
    """Whether it can be encoded: lone surrogates can't."""
    return not any("\ud800" <= character <= "\udfff" for character in text)
