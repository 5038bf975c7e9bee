"""Sends sessions to a mesh, as fast as answers come or at a rate, and takes the times."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Callable, Iterator, Sequence

import grpc.aio

from node.bench.results import Result
from node.bench.sessions import Session
from node.client_calls import failure
from node.fleet import Member
from rumormill.v1 import inference_pb2


class LoadGenerator:
    """One run; `on_result` is told of every answer as it ends.

    Answers have exactly the asked number of tokens, so that every policy does the same work.
    """

    def __init__(
        self,
        entries: Sequence[Member],
        policy: str,
        timeout_s: float,
        on_result: Callable[[Result], None] = lambda result: None,
    ) -> None:
        self._entries = entries
        self._policy = policy
        self._timeout_s = timeout_s
        self._on_result = on_result
        self._results: list[Result] = []
        self._began = 0.0

    async def closed(self, sessions: Sequence[Session], concurrency: int) -> list[Result]:
        """So many sessions at a time, the next one as soon as one ends."""
        self._began = time.perf_counter()
        waiting = iter(sessions)
        async with asyncio.TaskGroup() as group:
            for _ in range(concurrency):
                group.create_task(self._work(waiting))
        return self._results

    async def open(self, sessions: Sequence[Session], rate: float) -> list[Result]:
        """Sessions begin when it is their time, at `rate` requests a second, however many are under way."""
        self._began = time.perf_counter()
        async with asyncio.TaskGroup() as group:
            for session in sessions:
                await asyncio.sleep(session.at / rate - (time.perf_counter() - self._began))
                group.create_task(self._run(session))
        return self._results

    async def _work(self, waiting: Iterator[Session]) -> None:
        for session in waiting:
            await self._run(session)

    async def _run(self, session: Session) -> None:
        answer = ""
        for turn, tokens in enumerate(session.answer_tokens):
            request = session.history.request(turn, answer)
            request.policy = self._policy
            request.sampling.max_tokens = tokens
            request.sampling.ignore_eos = True
            result, answer = await self._ask(session, request)
            self._results.append(result)
            self._on_result(result)
            if result.error:
                return  # what would follow an answer that isn't there?

    async def _ask(self, session: Session, request: inference_pb2.GenerateRequest) -> tuple[Result, str]:
        entry = self._entries[session.entry % len(self._entries)]
        started = time.perf_counter()
        first = before = 0.0
        gaps: list[float] = []
        text, error, tokens = "", "", 0
        last = inference_pb2.GenerateResponse()
        call = entry.inference.Generate(request, timeout=self._timeout_s)
        try:
            async for response in call:
                if response.token_ids:
                    now = time.perf_counter()
                    if tokens:
                        gaps.append(now - before)
                    else:
                        first = now
                    before = now
                    tokens += len(response.token_ids)
                text += response.text
                last = response
        except grpc.aio.AioRpcError as refusal:
            error = str(failure(entry.address, refusal))
        finally:
            call.cancel()
        result = Result(
            group=session.group,
            entry=entry.node_id,
            served_by=last.route.node,
            policy=last.route.policy,
            prompt_tokens=last.usage.prompt_tokens,
            predicted_cached_tokens=last.route.predicted_cached_tokens,
            cached_tokens=last.usage.cached_tokens,
            output_tokens=tokens,
            started_s=started - self._began,
            ttft_s=max(first - started, 0.0),
            latency_s=time.perf_counter() - started,
            gaps_s=tuple(gaps),
            error=error,
        )
        return result, text
