"""What a node logs: one line an event on standard error, as text for people or as JSON for programs.

Facts about an event are fields (`extra=` of a log call), never woven into its words, so that a request can
be found by its `request_id` on every node that it went through.
"""

from __future__ import annotations

import json
import logging
import sys
from datetime import UTC, datetime
from typing import Any, TextIO

OUR_LOGGERS = ("node", "overlay", "engine", "certs", "rumormill")
"""Whose lines --log-level is about; other libraries speak of errors only."""

_STANDARD = frozenset(vars(logging.makeLogRecord({}))) | {"message", "asctime", "taskName"}


def setup_logging(level: str, style: str) -> None:
    """Sends logs to standard error; `style` "auto" is text on a terminal and JSON elsewhere."""
    if style == "auto":
        style = "text" if sys.stderr.isatty() else "json"
    handler = _StandardError()
    handler.setFormatter(JsonFormatter() if style == "json" else TextFormatter())
    others = logging.INFO if level == "debug" else logging.ERROR
    # At the handler: a library that sets its own logger's level passes by that of the root.
    handler.addFilter(lambda record: _is_ours(record) or record.levelno >= others)
    root = logging.getLogger()
    root.handlers[:] = [handler]
    root.setLevel(others)
    for name in OUR_LOGGERS:
        logging.getLogger(name).setLevel(level.upper())


def _is_ours(record: logging.LogRecord) -> bool:
    return record.name.partition(".")[0] in OUR_LOGGERS


def fields_of(record: logging.LogRecord) -> dict[str, Any]:
    """What a log call passed as `extra`."""
    return {name: value for name, value in vars(record).items() if name not in _STANDARD}


class JsonFormatter(logging.Formatter):
    """One JSON object a line: time, level, logger, message, and the event's own fields."""

    def format(self, record: logging.LogRecord) -> str:
        line = {
            "time": _time(record),
            "level": record.levelname.lower(),
            "logger": record.name,
            "message": record.getMessage(),
            **fields_of(record),
        }
        if record.exc_info:
            line["exception"] = self.formatException(record.exc_info)
        return json.dumps(line, default=str)


class TextFormatter(logging.Formatter):
    """Time, level and message, then `name=value` for each field; a value with spaces is quoted."""

    def format(self, record: logging.LogRecord) -> str:
        fields = "".join(f" {name}={_value(value)}" for name, value in fields_of(record).items())
        line = f"{_time(record)} {record.levelname.lower():<7} {record.getMessage()}{fields}"
        return f"{line}\n{self.formatException(record.exc_info)}" if record.exc_info else line


class _StandardError(logging.StreamHandler[TextIO]):
    """Writes to whatever standard error is at the moment: a live display stands in front of it."""

    def __init__(self) -> None:
        logging.Handler.__init__(self)

    @property
    def stream(self) -> TextIO:  # type: ignore[override]  # the base class has an attribute
        return sys.stderr


def _time(record: logging.LogRecord) -> str:
    """UTC, to the millisecond (RFC 3339)."""
    return datetime.fromtimestamp(record.created, UTC).isoformat(timespec="milliseconds")[:-6] + "Z"


def _value(value: object) -> str:
    text = f"{value:.4g}" if isinstance(value, float) else str(value)
    plain = text.isprintable() and not any(character in text for character in ' "=')
    return text if text and plain else json.dumps(text)
