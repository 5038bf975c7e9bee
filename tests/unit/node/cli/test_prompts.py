"""A prompt comes from the argument, a file or standard input."""

from __future__ import annotations

import io
import sys
from pathlib import Path

import click
import pytest

from node.cli.prompts import PromptError, read_prompt


def given(monkeypatch: pytest.MonkeyPatch, content: bytes) -> None:
    monkeypatch.setattr(sys, "stdin", io.TextIOWrapper(io.BytesIO(content)))


def test_an_argument_is_taken_as_it_stands(monkeypatch: pytest.MonkeyPatch) -> None:
    given(monkeypatch, b"unread")
    assert read_prompt("Why?", None) == "Why?"


@pytest.mark.parametrize("prompt", [None, "-"])
def test_standard_input_is_read_where_there_is_none(
    monkeypatch: pytest.MonkeyPatch, prompt: str | None
) -> None:
    given(monkeypatch, b"Warum?\n")
    assert read_prompt(prompt, None) == "Warum?\n"


def test_a_file_is_read(tmp_path: Path) -> None:
    (tmp_path / "p").write_text("Why?")
    assert read_prompt(None, tmp_path / "p") == "Why?"
    with pytest.raises(click.UsageError, match="not both"):
        read_prompt("Why?", tmp_path / "p")


@pytest.mark.parametrize(("content", "says"), [(b"", "empty"), (b" \n", "empty"), (b"ab\xff", "byte 2")])
def test_what_is_no_prompt_is_told(monkeypatch: pytest.MonkeyPatch, content: bytes, says: str) -> None:
    given(monkeypatch, content)
    with pytest.raises(PromptError, match=says):
        read_prompt(None, None)
