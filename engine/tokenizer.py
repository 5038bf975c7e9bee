"""Text to token ids and back, light enough for a process that never computes: no torch, no transformers.

Conversion is transformers' own (see model_files); what it saved is read with `tokenizers` and jinja2, in the
same sandbox and with the same variables that transformers renders a chat template with.
"""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from datetime import datetime
from functools import cached_property
from pathlib import Path
from typing import Any, Final

import jinja2
import jinja2.meta
import tokenizers
from jinja2.ext import loopcontrols
from jinja2.sandbox import ImmutableSandboxedEnvironment

from engine.errors import ModelDamagedError, RequestError
from engine.grammar import Grammars
from engine.model_files import ModelFiles, open_model

_REPLACEMENT: Final = "\ufffd"
_MAX_PENDING: Final = 64


class Tokenizer:
    """One model's tokenizer and chat template."""

    def __init__(self, files: ModelFiles) -> None:
        try:
            self._tokenizer = tokenizers.Tokenizer.from_file(str(files.folder / "tokenizer.json"))
            self._special_tokens = _special_tokens(files.folder / "tokenizer_config.json")
            template = files.folder / "chat_template.jinja"
            self.chat_template = template.read_text("utf-8") if template.is_file() else None
        except Exception as error:  # tokenizers raises bare Exception on a damaged file
            raise ModelDamagedError(
                f"the converted tokenizer in {files.folder} is damaged; delete that folder"
            ) from error
        self._tokenizer.no_truncation()
        self._tokenizer.no_padding()
        self._files = files
        self.model_name = files.source.name
        self.eos_token_ids = files.config.eos_token_ids
        self.context_tokens = files.config.context_tokens
        self.vocabulary_size = files.config.vocabulary_size
        self.fingerprint = files.tokenizer_fingerprint

    @classmethod
    def load(cls, source: str) -> Tokenizer:
        """The tokenizer of a model by name, folder or GGUF file. Raises a ModelError."""
        return cls(open_model(source))

    def encode(self, text: str) -> list[int]:
        """Token ids of plain text, with the special tokens the model expects around a prompt."""
        # encode_batch, unlike encode, lets other threads run meanwhile
        return list(self._tokenizer.encode_batch([text])[0].ids)

    @cached_property
    def chat_takes_tools(self) -> bool:
        """Whether the chat template has a place for descriptions of tools."""
        template = self.chat_template or ""
        return "tools" in jinja2.meta.find_undeclared_variables(_environment().parse(template))

    @property
    def writes_tool_calls(self) -> bool:
        """Whether the chat template has the model write its calls between <tool_call> tags, as JSON."""
        return "<tool_call>" in (self.chat_template or "")

    def encode_chat(
        self, messages: Sequence[Mapping[str, Any]], tools: Sequence[Mapping[str, Any]] = ()
    ) -> list[int]:
        """Token ids of a conversation, ready for the assistant's answer. Raises RequestError."""
        text = self.render_chat(messages, tools)
        return list(self._tokenizer.encode_batch([text], add_special_tokens=False)[0].ids)

    def render_chat(
        self, messages: Sequence[Mapping[str, Any]], tools: Sequence[Mapping[str, Any]] = ()
    ) -> str:
        """The conversation as the model's chat template writes it. Raises RequestError."""
        try:
            return self._compiled_template.render(
                messages=[dict(message) for message in messages],
                tools=list(tools) or None,
                documents=None,
                add_generation_prompt=True,
                **self._special_tokens,
            )
        except (jinja2.TemplateError, TypeError, KeyError, ValueError) as error:
            raise RequestError(f"the chat template refuses these messages: {error}") from error

    def decode(self, token_ids: Sequence[int]) -> str:
        """The text of tokens, special tokens left out; ids outside the vocabulary are nothing."""
        return str(self._tokenizer.decode(list(token_ids), skip_special_tokens=True))

    @cached_property
    def grammars(self) -> Grammars:
        """What answers can be made to match, in this model's vocabulary."""
        return Grammars(self._files)

    @cached_property
    def _compiled_template(self) -> jinja2.Template:
        if self.chat_template is None:
            raise RequestError(f"{self.model_name} has no chat template; use plain completion")
        return _environment().from_string(self.chat_template)


class IncrementalDecoder:
    """Turns a stream of tokens into a stream of text that never has half a character in it.

    Tokens since the last complete character are decoded together with those before them, since what a
    token says can depend on its neighbours.
    """

    def __init__(self, tokenizer: Tokenizer) -> None:
        self._tokenizer = tokenizer
        self._context: list[int] = []
        self._pending: list[int] = []

    def push(self, token_ids: Sequence[int]) -> str:
        """The text that these tokens complete; may be empty."""
        return "".join(self._push_one(token) for token in token_ids)

    def flush(self) -> str:
        """What is left at the end of a stream, an unfinished character as U+FFFD."""
        text = self._new_text()
        self._context, self._pending = [], []
        return text

    def _push_one(self, token: int) -> str:
        self._pending.append(token)
        text = self._new_text()
        if not text:
            return ""
        if text.endswith(_REPLACEMENT) and len(self._pending) < _MAX_PENDING:
            return ""
        self._context, self._pending = self._pending, []
        return text

    def _new_text(self) -> str:
        """The text of context and pending tokens after that of the context alone."""
        known = self._tokenizer.decode(self._context)
        whole = self._tokenizer.decode(self._context + self._pending)
        return whole[len(known) :] if whole.startswith(known) else ""


def _environment() -> ImmutableSandboxedEnvironment:
    environment = ImmutableSandboxedEnvironment(
        trim_blocks=True, lstrip_blocks=True, extensions=[loopcontrols]
    )
    environment.filters["tojson"] = _to_json
    environment.globals["raise_exception"] = _raise_exception
    environment.globals["strftime_now"] = _strftime_now
    return environment


def _special_tokens(path: Path) -> dict[str, str]:
    """The named special tokens (bos_token, eos_token, ...) that chat templates may use."""
    config = json.loads(path.read_text("utf-8"))
    tokens = {}
    for key, value in config.items():
        if key.endswith("_token") and value is not None:
            content = value.get("content") if isinstance(value, dict) else value
            if isinstance(content, str):
                tokens[key] = content
    return tokens


def _to_json(
    value: object,
    ensure_ascii: bool = False,
    indent: int | None = None,
    separators: tuple[str, str] | None = None,
    sort_keys: bool = False,
) -> str:
    """jinja's own filter escapes HTML, which no prompt wants."""
    return json.dumps(
        value, ensure_ascii=ensure_ascii, indent=indent, separators=separators, sort_keys=sort_keys
    )


def _raise_exception(message: str) -> None:
    raise jinja2.TemplateError(message)


def _strftime_now(pattern: str) -> str:
    return datetime.now().astimezone().strftime(pattern)
