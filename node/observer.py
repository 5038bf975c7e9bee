"""Every request that this node has to do with: counted, logged and traced in one place.

Log lines and spans carry facts about a request (ids, token counts, times), never its text.
"""

from __future__ import annotations

import asyncio
import logging
import time
from collections.abc import Callable
from types import TracebackType

from engine.errors import EngineDiedError, QueueFullError
from engine.errors import RequestError as EngineRequestError
from engine.interface import TokenOutput
from node.errors import DeadlineExceededError, DrainingError, InvalidRequestError, OverloadedError
from node.forwarding import PeerBusyError, PeerFailedError
from node.metrics import Metrics
from node.request import Chunk, Done, Event, Request, Route
from node.served import Served
from node.tracing import Attribute, Span, Tracer, trace_id
from overlay.core.routing import Decision
from overlay.core.types import NodeId, short_id

log = logging.getLogger("rumormill.requests")

Clock = Callable[[], float]


class Observer:
    """Makes an observation of each request; one for each node."""

    def __init__(
        self, node_id: NodeId, metrics: Metrics, tracer: Tracer, clock: Clock = time.monotonic
    ) -> None:
        self.node_id = node_id
        self.metrics = metrics
        self.tracer = tracer
        self.clock = clock
        self.served = Served()

    def entered(self, request: Request) -> Entered:
        """A client's request, from its arrival to the last event of its answer."""
        return Entered(self, request)

    def forwarded_here(
        self, request_id: str, entry_node: NodeId, prompt_tokens: int, traceparent: str
    ) -> ForwardedHere:
        """A peer's request that this node took, for as long as it runs here."""
        return ForwardedHere(self, request_id, entry_node, prompt_tokens, traceparent)

    def refused(self, request_id: str) -> None:
        """A peer's request that this node answered with BUSY."""
        self.metrics.forwarded_here.labels("busy").inc()
        log.info("refused a peer's request: busy", extra={"request_id": request_id})


class _Observation:
    """A context manager around a request's life; subclasses say what to make of its end."""

    def __init__(self, observer: Observer, span: Span, request_id: str) -> None:
        self._observer = observer
        self._started = observer.clock()
        self._first_token_at: float | None = None
        self._span = span
        self._ids: dict[str, Attribute] = {"request_id": request_id}
        if span.traceparent:
            self._ids["trace_id"] = trace_id(span.traceparent)

    @property
    def traceparent(self) -> str:
        """The parent of what is done for this request."""
        return self._span.traceparent

    def _saw_token(self) -> None:
        if self._first_token_at is None:
            self._first_token_at = self._observer.clock()
            self._span.event("first token")

    def _times(self) -> dict[str, Attribute]:
        times: dict[str, Attribute] = {"total_ms": _ms(self._observer.clock() - self._started)}
        if self._first_token_at is not None:
            times["ttft_ms"] = _ms(self._first_token_at - self._started)
        return times


class Entered(_Observation):
    """One client's request at its entry node."""

    def __init__(self, observer: Observer, request: Request) -> None:
        span = observer.tracer.start(
            "request",
            request.traceparent,
            "server",
            {"rumormill.request_id": request.id, "gen_ai.usage.input_tokens": len(request.token_ids)},
        )
        super().__init__(observer, span, request.id)
        self._request = request
        self._route: Route | None = None
        self._done: Done | None = None
        self._tokens = 0
        self._moves = 0
        self._last_token_at = 0.0

    def __enter__(self) -> Entered:
        return self

    def saw(self, event: Event) -> None:
        """Every event of the answer passes here on its way to the client."""
        if isinstance(event, Route):
            self._route = event
        elif isinstance(event, Done):
            self._done = event
            self._count_tokens(event)
        elif isinstance(event, Chunk) and event.token_ids:
            self._saw_chunk(event)

    def attempt(self, decision: Decision, request: Request) -> Attempt:
        """What is done on one node, until it answers or the request moves on."""
        return Attempt(self._observer, self, decision, request)

    def moved(self, node: NodeId, cause: str, error: Exception) -> None:
        """A node did not answer, or stopped; another takes over."""
        self._moves += 1
        self._observer.metrics.moves.labels(cause).inc()
        extra = {**self._ids, "from": short_id(node), "cause": str(error), "tokens": self._tokens}
        log.info("request moves on", extra=extra)

    def _saw_chunk(self, chunk: Chunk) -> None:
        metrics, now = self._observer.metrics, self._observer.clock()
        if self._first_token_at is None:
            self._saw_token()
            metrics.ttft.observe(now - self._started)
        else:
            metrics.itl.observe(now - self._last_token_at)
        self._last_token_at = now
        self._tokens = chunk.first_index + len(chunk.token_ids)

    def _count_tokens(self, done: Done) -> None:
        metrics, usage = self._observer.metrics, done.usage
        metrics.prompt_tokens.labels("cached").inc(usage.cached_tokens)
        metrics.prompt_tokens.labels("computed").inc(usage.prompt_tokens - usage.cached_tokens)
        metrics.predicted_cached_tokens.inc(done.route.predicted_cached_tokens)

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        outcome = "ok" if self._done else outcome_of(error)
        node = self._route.node if self._route else self._observer.node_id
        where = "local" if node == self._observer.node_id else "forwarded"
        self._observer.metrics.requests.labels(outcome, where).inc()
        facts: dict[str, Attribute] = {
            "outcome": outcome,
            "node": short_id(node),
            "moves": self._moves,
            "prompt_tokens": len(self._request.token_ids),
            "completion_tokens": self._tokens,
            **self._times(),
        }
        if self._route is not None:
            facts["predicted_cached_tokens"] = self._route.predicted_cached_tokens
            facts["reason"] = f"{self._route.decision.policy}: {self._route.decision.reason}"
        if self._done is not None:
            facts["cached_tokens"] = self._done.usage.cached_tokens
        if outcome == "failed":
            facts["error"] = str(error)
        level = logging.WARNING if outcome == "failed" else logging.INFO
        log.log(level, "request", extra={**self._ids, **facts})
        self._span.end("" if outcome in ("ok", "cancelled") else str(error), _attributes(facts))


class Attempt:
    """One node's try at a request; the traceparent is for whoever runs it."""

    def __init__(self, observer: Observer, entered: Entered, decision: Decision, request: Request) -> None:
        self._observer = observer
        self._entered = entered
        self._target = decision.target
        self._prompt_tokens = len(request.token_ids)
        self._is_local = decision.target == observer.node_id
        self._span = observer.tracer.start(
            "local" if self._is_local else "forward",
            entered.traceparent,
            "internal" if self._is_local else "client",
            {
                "rumormill.node": decision.target,
                "rumormill.reason": decision.reason,
                "rumormill.predicted_cached_tokens": decision.chosen.cached_tokens,
                "rumormill.resumed_tokens": request.resumed_tokens,
            },
        )

    @property
    def traceparent(self) -> str:
        return self._span.traceparent

    def __enter__(self) -> Attempt:
        return self

    def output(self, output: TokenOutput) -> None:
        """Tokens that came from that node."""
        if self._is_local:
            self._observer.served.note(self._prompt_tokens, output)

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        cause = _cause_of_move(error)
        if cause and isinstance(error, Exception):
            self._entered.moved(self._target, cause, error)
        self._span.end(str(error) if isinstance(error, Exception) else "", {})


class ForwardedHere(_Observation):
    """One peer's request on the node that runs it."""

    def __init__(
        self, observer: Observer, request_id: str, entry_node: NodeId, prompt_tokens: int, traceparent: str
    ) -> None:
        span = observer.tracer.start(
            "serve",
            traceparent,
            "server",
            {"rumormill.request_id": request_id, "rumormill.from": entry_node},
        )
        super().__init__(observer, span, request_id)
        self._entry_node = entry_node
        self._prompt_tokens = prompt_tokens
        self._cached_tokens = self._tokens = 0
        self._finished = False

    def __enter__(self) -> ForwardedHere:
        self._observer.metrics.forwarded_here.labels("accepted").inc()
        return self

    def output(self, output: TokenOutput) -> None:
        """Tokens on their way to the entry node."""
        self._observer.served.note(self._prompt_tokens, output)
        if output.token_ids:
            self._saw_token()
            self._cached_tokens = output.cached_tokens
            self._tokens += len(output.token_ids)
        self._finished = self._finished or output.finish_reason is not None

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        outcome = "ok" if self._finished else outcome_of(error)
        facts: dict[str, Attribute] = {
            "outcome": outcome,
            "from": short_id(self._entry_node),
            "prompt_tokens": self._prompt_tokens,
            "cached_tokens": self._cached_tokens,
            "completion_tokens": self._tokens,
            **self._times(),
        }
        level = logging.WARNING if outcome == "failed" else logging.INFO
        log.log(level, "forwarded request", extra={**self._ids, **facts})
        self._span.end("" if outcome in ("ok", "cancelled") else str(error), _attributes(facts))


def outcome_of(error: BaseException | None) -> str:
    """How a request without a last word ended, as the metrics call it."""
    if error is None or isinstance(error, GeneratorExit | asyncio.CancelledError):
        return "cancelled"
    if isinstance(error, OverloadedError | QueueFullError):
        return "overloaded"
    if isinstance(error, DeadlineExceededError):
        return "deadline"
    if isinstance(error, DrainingError):
        return "draining"
    if isinstance(error, InvalidRequestError | EngineRequestError):
        return "invalid"
    return "failed"


def _cause_of_move(error: BaseException | None) -> str:
    if isinstance(error, PeerBusyError):
        return "busy"
    if isinstance(error, PeerFailedError):
        return "failed"
    return "engine" if isinstance(error, EngineDiedError) else ""


def _attributes(facts: dict[str, Attribute]) -> dict[str, Attribute]:
    return {f"rumormill.{name}": value for name, value in facts.items()}


def _ms(seconds: float) -> float:
    return round(seconds * 1000, 2)
