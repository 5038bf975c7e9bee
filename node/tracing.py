"""Spans of a request's life, across nodes: W3C Trace Context in, W3C Trace Context out.

Without OpenTelemetry (the extra `otel`) a caller's trace is handed on untouched and nothing is recorded.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping
from typing import Literal, Protocol

TRACEPARENT = "traceparent"
"""HTTP header and gRPC metadata key (https://www.w3.org/TR/trace-context)."""

_FORM = re.compile(r"(?!ff)[0-9a-f]{2}-(?!0{32})([0-9a-f]{32})-(?!0{16})[0-9a-f]{16}-[0-9a-f]{2}")

Attribute = str | int | float | bool
Attributes = Mapping[str, Attribute]
Kind = Literal["server", "client", "internal"]
"""A call came in, one went out, or neither."""


class Span(Protocol):
    """One timed part of a request; ended exactly once."""

    @property
    def traceparent(self) -> str:
        """What makes another span, here or on another node, a child of this one; may be empty."""

    def event(self, name: str) -> None:
        """Something happened now."""

    def end(self, error: str, attributes: Attributes) -> None:
        """It is over; `error` says what went wrong, if anything did."""


class Tracer(Protocol):
    """Starts spans."""

    def start(self, name: str, parent: str, kind: Kind, attributes: Attributes) -> Span:
        """A span below `parent`, a traceparent; an empty one begins a trace."""

    def close(self) -> None:
        """Sends what is still to be sent."""


class _Passed:
    """Records nothing."""

    __slots__ = ("traceparent",)

    def __init__(self, traceparent: str) -> None:
        self.traceparent = traceparent

    def event(self, name: str) -> None: ...

    def end(self, error: str, attributes: Attributes) -> None: ...


class PassingTracer:
    """Hands a caller's trace on, and records nothing."""

    def start(self, name: str, parent: str, kind: Kind, attributes: Attributes) -> Span:
        return _Passed(parent)

    def close(self) -> None: ...


def valid_traceparent(value: object) -> str:
    """A traceparent as it came from outside, or the empty text for one that is malformed."""
    return value if isinstance(value, str) and _FORM.fullmatch(value) else ""


def traceparent_in(metadata: Iterable[tuple[str, object]] | None) -> str:
    """The traceparent of a gRPC call's metadata; empty without a valid one."""
    return next((valid_traceparent(value) for key, value in metadata or () if key == TRACEPARENT), "")


def trace_id(traceparent: str) -> str:
    """The id of the trace that a traceparent belongs to."""
    return traceparent[3:35]
