"""One request from tokens to the last delivered token: choose, run here or forward, resume elsewhere.

The entry node stays responsible throughout. Before the first token a failure or BUSY moves the request to
the next candidate, at most `MAX_PEERS` of them, then to the local queue. After it, the prompt plus the tokens
already delivered goes elsewhere with the same seed, so the client sees one unbroken stream.
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import AsyncGenerator, Callable, Collection, Iterator, Sequence
from contextlib import aclosing
from dataclasses import dataclass, field, replace

from engine.errors import EngineDiedError
from engine.interface import EngineClient, FinishReason, GenerationRequest, TokenLogprobs, TokenOutput
from engine.stop_strings import StopStrings
from engine.tokenizer import IncrementalDecoder, Tokenizer
from node.admission import Admission
from node.errors import DeadlineExceededError, DrainingError, OverloadedError, UnavailableError
from node.forwarding import Accepted, Forwarder, PeerBusyError, PeerFailedError, PeerRefusedError
from node.in_flight import InFlight
from node.observer import Entered, Observer
from node.prompt_hasher import PromptHasher
from node.request import Chunk, Done, Event, PromptScored, Request, Route, Usage
from overlay.core.router import Attempt, Query, Router
from overlay.core.routing import Decision
from overlay.core.types import BlockHash, NodeId

MAX_PEERS = 2
"""Peers a request may be sent to and refused or lost by, before it stays here."""

MAX_ENGINE_DEATHS = 2
"""A request that has seen the local engine die this often may be what kills it."""

ENGINE_RESTART_SECONDS = 30.0
"""A request that has nowhere else to go waits this long for the local engine's restart."""

SHORTEST_FIRST_TOKEN_SECONDS = 2.0
FIRST_TOKEN_FACTOR = 4.0
"""A peer's first token is due within this many times its estimate, but never sooner than the floor."""

DEADLINE_SLACK_SECONDS = 0.05
"""How far apart the clocks of a call's two ends may be: a call this close to its deadline ended for that."""

SHORTEST_TOKEN_GAP_SECONDS = 2.0
TOKEN_GAP_STEPS = 30
"""A peer that streams is given up after this many of its usual steps without a token, but not before
the floor: a long prompt beside a stream may stretch a few steps."""


@dataclass(slots=True)
class _Answer:
    """What has been delivered of one answer, and what is left to ask for."""

    request: Request
    decoder: IncrementalDecoder
    stops: StopStrings
    token_ids: list[int] = field(default_factory=list)
    cached_tokens: int | None = None
    scores: list[TokenLogprobs] = field(default_factory=list)

    def remaining(self) -> Request:
        """The request that continues this answer where it is now."""
        request, done = self.request, len(self.token_ids)
        if not done:
            self.scores.clear()
            return request
        sampling = replace(
            request.sampling, max_tokens=request.sampling.max_tokens - done, prompt_logprobs=None
        )
        token_ids = request.token_ids + tuple(self.token_ids)
        return replace(request, token_ids=token_ids, sampling=sampling, resumed_tokens=done)

    def ended(self, eos_token_ids: Collection[int]) -> FinishReason | None:
        """Why nothing is left to ask for, if so."""
        sampling = self.request.sampling
        if self.token_ids and self.token_ids[-1] in sampling.stop_token_ids:
            return FinishReason.STOP
        if self.token_ids and self.token_ids[-1] in eos_token_ids and not sampling.ignore_eos:
            return FinishReason.STOP
        return FinishReason.LENGTH if len(self.token_ids) >= sampling.max_tokens else None

    def accept(self, output: TokenOutput, resumed_at: int) -> Iterator[Event]:
        """What is new in an output; tokens that were delivered before are skipped.

        Raises PeerFailedError for a gap, for more tokens than were asked for, and for log-probabilities that
        are not one for each token.
        """
        index, first = len(self.token_ids), resumed_at + output.first_index
        yield from self._score(output)
        if not output.token_ids:
            return
        if first > index:
            raise PeerFailedError(f"tokens {index} to {first - 1} are missing")
        expected = 0 if self.request.sampling.logprobs is None else len(output.token_ids)
        if len(output.logprobs) != expected:
            raise PeerFailedError(f"{len(output.logprobs)} log-probabilities came, not {expected}")
        fresh = output.token_ids[index - first :]
        if index + len(fresh) > self.request.sampling.max_tokens:
            raise PeerFailedError(f"more than {self.request.sampling.max_tokens} tokens came")
        if self.cached_tokens is None:
            self.cached_tokens = min(output.cached_tokens, len(self.request.token_ids))
        if not fresh:
            return
        self.token_ids.extend(fresh)
        shown = fresh[:-1] if fresh[-1] in self.request.sampling.stop_token_ids else fresh
        text = self.stops.push(self.decoder.push(shown))
        yield Chunk(text, fresh, index, output.logprobs[index - first :])

    def _score(self, output: TokenOutput) -> Iterator[Event]:
        """The prompt's log-probabilities, once they are complete."""
        if self.request.sampling.prompt_logprobs is None or self.token_ids:
            return
        expected = len(self.request.token_ids) - 1
        self.scores += output.prompt_logprobs
        if len(self.scores) > expected or (output.token_ids and len(self.scores) < expected):
            raise PeerFailedError(f"{len(self.scores)} prompt log-probabilities came, not {expected}")
        if output.token_ids:
            yield PromptScored(tuple(self.scores))

    def end(self, reason: FinishReason, route: Route) -> Iterator[Event]:
        """The last events: text that waited for more to come, and why none comes.

        Raises DeadlineExceededError if that is a deadline and there is no answer to end.
        """
        if reason is FinishReason.DEADLINE and not self.token_ids:
            raise DeadlineExceededError
        text = self.stops.push(self.decoder.flush()) + self.stops.flush()
        if text:
            yield Chunk(text, (), len(self.token_ids))
        yield Done(reason, self.usage(), route)

    def usage(self) -> Usage:
        return Usage(len(self.request.token_ids), len(self.token_ids), self.cached_tokens or 0)


class Pipeline:
    """Answers requests that enter at this node."""

    def __init__(
        self,
        node_id: NodeId,
        engine: EngineClient,
        tokenizer: Tokenizer,
        hasher: PromptHasher,
        router: Router,
        forwarder: Forwarder,
        admission: Admission,
        in_flight: InFlight,
        observer: Observer,
        on_decision: Callable[[Request, Decision], None],
        on_sent: Callable[[NodeId, Sequence[BlockHash]], None],
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self._node_id = node_id
        self._engine = engine
        self._tokenizer = tokenizer
        self._hasher = hasher
        self._router = router
        self._forwarder = forwarder
        self._admission = admission
        self._in_flight = in_flight
        self._observer = observer
        self._on_decision = on_decision
        self._on_sent = on_sent
        self._clock = clock

    async def generate(self, request: Request, timeout_s: float | None = None) -> AsyncGenerator[Event, None]:
        """The answer's events; closing the generator stops the work, wherever it runs.

        When `timeout_s` has passed, an answer ends as it is. Raises DeadlineExceededError if there is none
        by then, DrainingError, OverloadedError, UnavailableError, or the engine's RequestError.
        """
        with self._observer.entered(request) as observed:
            if self._admission.draining:
                raise DrainingError
            with self._in_flight.request():
                async with aclosing(self._answer(request, timeout_s, observed)) as events:
                    async for event in events:
                        observed.saw(event)
                        yield event

    async def _answer(
        self, request: Request, timeout_s: float | None, observed: Entered
    ) -> AsyncGenerator[Event, None]:
        answer = _Answer(request, IncrementalDecoder(self._tokenizer), StopStrings(request.stop))
        deadline = None if timeout_s is None else self._clock() + timeout_s
        avoid: dict[NodeId, str] = {}
        engine_deaths = 0
        route: Route | None = None
        while True:
            reason = FinishReason.DEADLINE if self._is_over(deadline) else None
            if route and (reason := reason or answer.ended(self._tokenizer.eos_token_ids)):
                for event in answer.end(reason, route):  # after an end, only the last word was lost
                    yield event
                return
            remaining = answer.remaining()
            query = self._hasher.query(remaining)
            decision = self._decide(query, request, avoid, begun=route is not None)
            self._on_decision(request, decision)
            route = Route(request.id, self._node_id, decision.target, decision, decision.chosen.cached_tokens)
            yield route
            resumed_at = len(answer.token_ids)
            try:
                with observed.attempt(decision, remaining) as attempt:
                    remaining = replace(remaining, traceparent=attempt.traceparent)
                    async with aclosing(self._run(remaining, query, decision, deadline)) as outputs:
                        async for output in outputs:
                            attempt.output(output)
                            for event in answer.accept(output, resumed_at):
                                yield event
                            reason = FinishReason.STOP if answer.stops.found else output.finish_reason
                            if reason is FinishReason.DEADLINE and not self._is_over(
                                deadline, DEADLINE_SLACK_SECONDS
                            ):
                                raise PeerFailedError("it ended for a deadline that has not passed")
                            if reason is not None:
                                for event in answer.end(reason, route):
                                    yield event
                                return
                    raise PeerFailedError("the answer ended without a reason")
            except (PeerBusyError, PeerRefusedError) as error:
                avoid[decision.target] = str(error)
            except PeerFailedError as error:
                avoid[decision.target] = str(error)
                if not self._is_over(deadline, DEADLINE_SLACK_SECONDS):  # then the call ended for that
                    self._router.quarantine.failed(decision.target, self._clock())
            except EngineDiedError as error:
                engine_deaths += 1
                if engine_deaths >= MAX_ENGINE_DEATHS:
                    raise UnavailableError(str(error)) from error

    def _is_over(self, deadline: float | None, slack_s: float = 0.0) -> bool:
        return deadline is not None and self._clock() >= deadline - slack_s

    def _decide(self, query: Query, request: Request, avoid: dict[NodeId, str], *, begun: bool) -> Decision:
        """The next place to try; raises OverloadedError when that is a full queue here.

        A request that was let in once, `begun`, always has a place here.
        """
        refused = sum(node_id != self._node_id for node_id in avoid)
        policy = "local" if refused >= MAX_PEERS else request.policy
        stats = self._engine.stats
        own = begun or self._admission.accepts_clients(stats, request.client)
        if not self._engine.ready:
            avoid = {self._node_id: "its engine restarts", **avoid}
        elif not own:
            avoid = {self._node_id: "this node's queue is full", **avoid}
        decision = self._router.decide(query, self._clock(), policy=policy, avoid=avoid)
        if decision.target == self._node_id and not own:
            raise OverloadedError(self._admission.retry_after_s(stats))
        return decision

    async def _run(
        self,
        request: Request,
        query: Query,
        decision: Decision,
        deadline: float | None,
    ) -> AsyncGenerator[TokenOutput, None]:
        if decision.target == self._node_id:
            await self._wait_for_engine(deadline)
            if self._is_over(deadline):
                yield TokenOutput(request.id, 0, (), 0, FinishReason.DEADLINE)
                return
            self._on_sent(self._node_id, query.hashes)
            outputs = self._engine.submit(
                GenerationRequest(
                    request.id,
                    request.token_ids,
                    request.namespace,
                    request.sampling,
                    resumed_tokens=request.resumed_tokens,
                    client=request.client,
                    priority=request.priority,
                    deadline=deadline,
                )
            )
            uncached = len(request.token_ids) - decision.chosen.cached_tokens
            with self._admission.queued(request.client, uncached) as place:
                async with aclosing(outputs):
                    async for output in outputs:
                        place.leave()
                        yield output
            return
        attempt = self._router.attempt(decision)
        self._on_sent(decision.target, query.hashes)
        try:
            async with aclosing(self._forward(request, decision, deadline, attempt)) as outputs:
                async for output in outputs:
                    yield output
        finally:
            attempt.close()

    async def _wait_for_engine(self, deadline: float | None) -> None:
        """Raises UnavailableError when the engine doesn't come back in time, nor before `deadline`."""
        left = ENGINE_RESTART_SECONDS if deadline is None else deadline - self._clock()
        try:
            async with asyncio.timeout(min(ENGINE_RESTART_SECONDS, left)):
                await self._engine.wait_ready()
        except TimeoutError:
            if not self._is_over(deadline):
                raise UnavailableError(
                    "this node's engine is down and no peer can take the request; see the node's log"
                ) from None

    async def _forward(
        self,
        request: Request,
        decision: Decision,
        deadline: float | None,
        attempt: Attempt,
    ) -> AsyncGenerator[TokenOutput, None]:
        target = decision.target
        estimate = decision.chosen.total_s
        stream = self._forwarder.stream(
            target,
            request,
            first_token_s=max(SHORTEST_FIRST_TOKEN_SECONDS, estimate * FIRST_TOKEN_FACTOR),
            token_gap_s=max(SHORTEST_TOKEN_GAP_SECONDS, attempt.decode_step_s * TOKEN_GAP_STEPS),
            timeout_s=None if deadline is None else max(deadline - self._clock(), 0.001),
        )
        try:
            async with aclosing(stream):
                async for event in stream:
                    if isinstance(event, Accepted):
                        attempt.accepted()
                        continue
                    if event.token_ids and event.first_index == 0:
                        attempt.answered(event.cached_tokens, self._clock())
                    yield event
        except PeerBusyError as busy:
            attempt.busy(self._clock(), busy.retry_after_s)
            raise
