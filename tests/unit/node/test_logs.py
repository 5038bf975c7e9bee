"""Log lines: facts as fields, in JSON for programs and as text for people."""

from __future__ import annotations

import io
import json
import logging
import sys
from collections.abc import Iterator

import pytest

from node.logs import setup_logging


@pytest.fixture(autouse=True)
def kept_logging() -> Iterator[None]:
    root = logging.getLogger()
    before = root.handlers[:], root.level, logging.getLogger("node").level
    yield
    root.handlers[:] = before[0]
    root.setLevel(before[1])
    for name in ("node", "overlay", "engine", "certs", "rumormill"):
        logging.getLogger(name).setLevel(logging.NOTSET)


def said(monkeypatch: pytest.MonkeyPatch, style: str, *, terminal: bool = False) -> io.StringIO:
    stream = io.StringIO()
    monkeypatch.setattr(stream, "isatty", lambda: terminal)
    monkeypatch.setattr(sys, "stderr", stream)
    setup_logging("info", style)
    return stream


def test_json_has_the_fields_beside_the_words(monkeypatch: pytest.MonkeyPatch) -> None:
    stream = said(monkeypatch, "json")
    logging.getLogger("rumormill.requests").info("request", extra={"request_id": "ab", "ttft_ms": 1.5})
    line = json.loads(stream.getvalue())
    assert line.pop("time").endswith("Z")
    assert line == {
        "level": "info",
        "logger": "rumormill.requests",
        "message": "request",
        "request_id": "ab",
        "ttft_ms": 1.5,
    }


def test_a_stack_trace_stays_one_json_line(monkeypatch: pytest.MonkeyPatch) -> None:
    stream = said(monkeypatch, "json")
    try:
        raise ValueError("what happened")
    except ValueError:
        logging.getLogger("node").exception("failed")
    assert len(stream.getvalue().splitlines()) == 1
    assert "what happened" in json.loads(stream.getvalue())["exception"]


def test_text_quotes_what_could_be_taken_for_something_else(monkeypatch: pytest.MonkeyPatch) -> None:
    stream = said(monkeypatch, "text")
    extra = {"plain": "ab", "spaced": "a b", "bell": "a\x07", "forged": "x\nerror  all is lost", "empty": ""}
    logging.getLogger("node").warning("request", extra=extra)
    assert len(stream.getvalue().splitlines()) == 1
    end = 'request plain=ab spaced="a b" bell="a\\u0007" forged="x\\nerror  all is lost" empty=""\n'
    assert stream.getvalue().endswith(end)


@pytest.mark.parametrize("terminal", [True, False])
def test_auto_is_text_on_a_terminal_alone(monkeypatch: pytest.MonkeyPatch, terminal: bool) -> None:
    stream = said(monkeypatch, "auto", terminal=terminal)
    logging.getLogger("node").info("hello")
    assert stream.getvalue().startswith("{") is not terminal


def test_other_libraries_speak_of_errors_only(monkeypatch: pytest.MonkeyPatch) -> None:
    """Even one that sets the level of its own logger, as zeroconf does when it is imported."""
    stream = said(monkeypatch, "json")
    monkeypatch.setattr(logging.getLogger("zeroconf"), "level", logging.WARNING)
    logging.getLogger("zeroconf").warning("chatter")
    logging.getLogger("overlay.net.mesh").info("news")
    logging.getLogger("uvicorn.error").error("trouble")
    assert [json.loads(line)["message"] for line in stream.getvalue().splitlines()] == ["news", "trouble"]


def test_lines_go_to_whatever_standard_error_is_now(monkeypatch: pytest.MonkeyPatch) -> None:
    """A live display stands in for it while it is shown."""
    said(monkeypatch, "text")
    display = io.StringIO()
    monkeypatch.setattr(sys, "stderr", display)
    logging.getLogger("node").info("above the display")
    assert "above the display" in display.getvalue()
