"""An engine in a process of its own, behind the interface that a node talks to."""

from __future__ import annotations

import asyncio
import contextlib
import itertools
import logging
from collections import deque
from collections.abc import AsyncGenerator
from dataclasses import replace

from engine.child import EngineChild
from engine.config import EngineConfig
from engine.errors import DuplicateRequestError, EngineDiedError, EngineError, QueueFullError
from engine.interface import (
    BlockEvents,
    BlockListener,
    EngineInfo,
    EngineStats,
    GenerationRequest,
    StatsListener,
    TokenOutput,
)
from engine.messages import (
    Abort,
    Answer,
    Check,
    Checked,
    Command,
    Configure,
    Failed,
    Flush,
    Flushed,
    Loading,
    Outline,
    Outlined,
    Question,
    Ready,
    Refused,
    Reply,
    Report,
    Submit,
)
from engine.outline import CachedRun
from engine.progress import ProgressListener
from engine.requests import check_request

log = logging.getLogger(__name__)

STATS_INTERVAL = 0.02
"""Least seconds between two stats reports of a busy engine, unless a request came or went."""

RESTART_DELAYS = (0.0, 0.5, 1.0, 2.0, 4.0, 8.0, 16.0, 30.0)
"""Seconds before each attempt to restart an engine that died; the last one repeats."""


class _Stream:
    """What came for one request and is not delivered yet; at most one answer's tokens."""

    def __init__(self, request: GenerationRequest) -> None:
        self.request = request
        self.outputs: deque[TokenOutput] = deque()
        self.error: EngineError | None = None
        self.changed = asyncio.Event()

    def put(self, item: TokenOutput | EngineError) -> None:
        if isinstance(item, EngineError):
            self.error = item
        else:
            self.outputs.append(item)
        self.changed.set()


class EngineProcess:
    """An EngineClient whose engine runs in a spawned process and is restarted when that dies.

    Listeners are called on the event loop that `start` was called on.
    """

    def __init__(
        self,
        config: EngineConfig,
        on_progress: ProgressListener = lambda stage: None,
    ) -> None:
        self._config = config
        self._on_blocks: BlockListener = lambda events: None
        self._on_stats: StatsListener = lambda stats: None
        self._on_progress = on_progress
        self._child: EngineChild | None = None
        self._info: EngineInfo | None = None
        self._ready: asyncio.Future[EngineInfo] | None = None
        self._stats = EngineStats()
        self._stats_told = 0.0
        self._streams: dict[str, _Stream] = {}
        self._submitted = 0
        self._uncounted: deque[tuple[int, int]] = deque()
        self._asked: dict[int, asyncio.Future[Answer]] = {}
        self._numbers = itertools.count()
        self._restart: asyncio.Task[None] | None = None
        self._alive = asyncio.Event()
        self._stopping = False

    @property
    def info(self) -> EngineInfo:
        """What the loaded model is. Raises EngineDiedError before the first start."""
        if self._info is None:
            raise EngineDiedError("the engine has not started")
        return self._info

    @property
    def stats(self) -> EngineStats:
        """The latest report, with what was submitted since then counted in."""
        if not self._uncounted:
            return self._stats
        return replace(
            self._stats,
            waiting=self._stats.waiting + len(self._uncounted),
            queued_prefill_tokens=self._stats.queued_prefill_tokens
            + sum(tokens for _, tokens in self._uncounted),
        )

    @property
    def pid(self) -> int | None:
        """The process id of the running engine."""
        return self._child.pid if self._child else None

    def listen(self, on_blocks: BlockListener, on_stats: StatsListener) -> None:
        """Tells of blocks and load from now on; call it before the first request."""
        self._on_blocks, self._on_stats = on_blocks, on_stats
        self._tell_stats()

    async def start(self) -> EngineInfo:
        """Loads the model; raises the EngineError that the loading met."""
        self._stopping = False
        try:
            return await self._launch()
        except BaseException:
            await self.stop()
            raise

    async def stop(self) -> None:
        """Ends the process; requests in flight end with EngineDiedError."""
        self._stopping = True
        if self._restart is not None:
            self._restart.cancel()
            with contextlib.suppress(asyncio.CancelledError):
                await self._restart
            self._restart = None
        child, self._child = self._child, None
        self._alive.clear()
        if child is not None:
            await child.stop()
        self._fail_all(EngineDiedError("the engine was stopped"))

    @property
    def ready(self) -> bool:
        """Whether requests can be submitted; False while an engine that died is restarted."""
        return self._alive.is_set()

    async def wait_ready(self) -> None:
        """Returns once requests can be submitted."""
        await self._alive.wait()

    async def flush(self) -> None:
        """Forgets every cached block that no running request holds; listeners hear of it first."""
        await self._ask(Flush(next(self._numbers)))

    async def outline(self, limit: int) -> tuple[CachedRun, ...]:
        """The most used runs of cached blocks, at most `limit`, each after its parent."""
        answer = await self._ask(Outline(next(self._numbers), limit))
        return answer.runs if isinstance(answer, Outlined) else ()

    async def check(self) -> str:
        """What is wrong with the books of the prefix cache; empty when nothing is."""
        answer = await self._ask(Check(next(self._numbers)))
        return answer.problem if isinstance(answer, Checked) else ""

    def submit(self, request: GenerationRequest) -> AsyncGenerator[TokenOutput, None]:
        """Streams the answer, from the first iteration on; closing the generator aborts the request.

        Raises a RequestError for a request that can't be run, EngineDiedError while there is no engine.
        """
        if self._child is None or self._info is None:
            raise EngineDiedError("the engine died and is being restarted; try another node or again soon")
        check_request(request, self._info)
        if request.request_id in self._streams:
            raise DuplicateRequestError(f"request {request.request_id!r} is running already")
        if len(self._streams) >= self._config.max_waiting + self._config.max_running:
            raise QueueFullError(f"{len(self._streams)} requests are waiting already; try again later")
        return self._stream(request)

    async def _stream(self, request: GenerationRequest) -> AsyncGenerator[TokenOutput, None]:
        if request.request_id in self._streams:
            raise DuplicateRequestError(f"request {request.request_id!r} is running already")
        stream = _Stream(request)
        self._send(Submit(request))
        self._streams[request.request_id] = stream
        self._submitted += 1
        self._uncounted.append((self._submitted, len(request.token_ids)))
        self._tell_stats()
        finished = False
        try:
            while not finished:
                await stream.changed.wait()
                stream.changed.clear()
                while stream.outputs:
                    output = stream.outputs.popleft()
                    finished = output.finish_reason is not None
                    yield output
                if stream.error is not None:
                    finished = True
                    raise stream.error
        finally:
            self._streams.pop(request.request_id, None)
            if not finished and self._child is not None:
                self._send(Abort(request.request_id))

    async def _ask(self, question: Question) -> Answer:
        answer: asyncio.Future[Answer] = asyncio.get_running_loop().create_future()
        self._asked[question.number] = answer
        try:
            self._send(question)
            return await answer
        finally:
            self._asked.pop(question.number, None)

    def _send(self, command: Command) -> None:
        if self._child is None:
            raise EngineDiedError("the engine died and is being restarted; try another node or again soon")
        if not self._child.send(command):
            self._child.kill()

    async def _launch(self) -> EngineInfo:
        ready: asyncio.Future[EngineInfo] = asyncio.get_running_loop().create_future()
        child = EngineChild(
            on_reply=lambda reply: self._handle(child, reply),
            on_end=lambda status: self._ended(child, status),
        )
        self._ready = ready
        self._submitted = 0
        self._uncounted.clear()
        child.send(Configure(self._config))
        try:
            return await ready
        except BaseException:
            await child.stop()
            raise

    def _handle(self, child: EngineChild, reply: Reply) -> None:
        match reply:
            case Loading(stage):
                self._on_progress(stage)
            case Ready(info, stats):
                self._child, self._info, self._stats = child, info, stats
                self._alive.set()
                self._settle(info)
            case Failed(error):
                self._settle(error)
            case Refused(request_id, error):
                self._deliver(request_id, error)
            case Flushed() | Outlined() | Checked():
                answer = self._asked.get(reply.number)
                if answer is not None and not answer.done():
                    answer.set_result(reply)
            case Report():
                if child is self._child:
                    self._report(reply)

    def _report(self, report: Report) -> None:
        if report.events.stored or report.events.removed:
            self._on_blocks(report.events)
        before, self._stats = self._stats, report.stats
        while self._uncounted and self._uncounted[0][0] <= report.submitted:
            self._uncounted.popleft()
        for output in report.outputs:
            self._deliver(output.request_id, output)
        now = asyncio.get_running_loop().time()
        came_or_went = (before.running, before.waiting) != (report.stats.running, report.stats.waiting)
        if came_or_went or now - self._stats_told >= STATS_INTERVAL:
            self._stats_told = now
            self._tell_stats()

    def _deliver(self, request_id: str, item: TokenOutput | EngineError) -> None:
        stream = self._streams.get(request_id)
        if stream is not None:
            stream.put(item)

    def _settle(self, result: EngineInfo | EngineError) -> None:
        if self._ready is None or self._ready.done():
            return
        if isinstance(result, EngineError):
            self._ready.set_exception(result)
        else:
            self._ready.set_result(result)

    def _ended(self, child: EngineChild, status: int) -> None:
        self._settle(EngineDiedError(f"the engine's process ended while it started (exit status {status})"))
        if child is not self._child:
            return
        self._child = None
        self._alive.clear()
        if not self._stopping:  # first of all: whatever a listener does, the engine comes back
            log.warning("the engine's process died; it is being restarted", extra={"exit_status": status})
            self._restart = asyncio.get_running_loop().create_task(self._relaunch())
        self._fail_all(
            EngineDiedError(f"the engine's process died (exit status {status}); it is being restarted")
        )
        self._stats = replace(
            self._stats, running=0, waiting=0, queued_prefill_tokens=0, kv_blocks_used=0, kv_blocks_cached=0
        )
        self._on_blocks(BlockEvents(cleared=True))
        self._tell_stats()

    async def _relaunch(self) -> None:
        for attempt in itertools.count():
            await asyncio.sleep(RESTART_DELAYS[min(attempt, len(RESTART_DELAYS) - 1)])
            try:
                await self._launch()
            except (EngineError, OSError) as error:
                log.error(
                    "the engine can't be restarted yet", extra={"error": str(error), "attempt": attempt}
                )
                continue
            log.info("the engine runs again", extra={"attempt": attempt})
            self._tell_stats()
            return

    def _fail_all(self, error: EngineDiedError) -> None:
        self._uncounted.clear()
        for stream in tuple(self._streams.values()):
            stream.put(error)
        for answer in self._asked.values():
            if not answer.done():
                answer.set_exception(error)

    def _tell_stats(self) -> None:
        self._on_stats(self.stats)
