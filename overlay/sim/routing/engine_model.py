"""One engine under virtual time: continuous batching as the real scheduler does it, at calibrated cost.

Equal steps are taken as one run of them, so that a long answer costs two events and not one per token;
whoever looks in between (a new request, a load report) sees the steps that are over by then.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Sequence
from dataclasses import dataclass, field
from itertools import islice

from overlay.core.types import BlockHash, Epoch, Load
from overlay.sim.routing.block_cache import BlockCache
from overlay.sim.routing.calibration import Calibration

MAX_LOOK_AHEAD = 64
"""Waiting requests considered per step, should those before them wait for a prefix."""

RETRY_BOUNDS_S = 0.1, 30.0
"""Of a BUSY's retry-after."""

_EPSILON = 1e-9


@dataclass(slots=True, eq=False)
class Job:
    """One request on one engine. `hashes` are the whole blocks of prompt and answer, chained."""

    tokens: int
    hashes: Sequence[BlockHash]
    answer_tokens: int
    computed: int = 0
    generated: int = 0
    held: int = 0
    private: int = 0
    expected_prefill: int = 0
    cached_tokens: int | None = None
    told: bool = False  # its first token went out

    @property
    def uncomputed(self) -> int:
        """Tokens whose keys and values are missing; 1 while it decodes."""
        return self.tokens + self.generated - self.computed

    @property
    def finished(self) -> bool:
        return self.generated >= self.answer_tokens


@dataclass(frozen=True, slots=True)
class Progress:
    """What a client would notice of a job: its first token, its end, or both at once."""

    at: float
    job: Job
    first_token: bool
    finished: bool


@dataclass(slots=True)
class _Run:
    """`steps` equal steps from `started`; of them `applied` are accounted for."""

    started: float
    step_s: float
    steps: int
    works: list[tuple[Job, int]]
    prompt_tokens: int
    applied: int = 0
    ends: float = field(init=False)

    def __post_init__(self) -> None:
        self.ends = self.started + self.steps * self.step_s


class EngineModel:
    """Requests in, first tokens and ends out, on the caller's clock."""

    def __init__(self, calibration: Calibration, block_size: int, *, forgetful: bool = False) -> None:
        self.calibration = calibration
        self.cache = BlockCache(calibration.kv_blocks)
        self.busy_s = 0.0
        self.preemptions = 0
        self._block_size = block_size
        self._forgetful = forgetful  # finds nothing in its cache, whatever it claims
        self._waiting: deque[Job] = deque()
        self._running: list[Job] = []
        self._run: _Run | None = None
        self._decode_step_s = 0.0
        self._sequence = 0

    @property
    def next_at(self) -> float | None:
        """When something next comes of the work in hand; None when idle."""
        return self._run.ends if self._run else None

    @property
    def queued_prefill_tokens(self) -> int:
        """Prompt tokens still to be computed, over running and waiting requests."""
        running = sum(job.uncomputed for job in self._running if job.uncomputed > 1)
        return running + sum(job.expected_prefill for job in self._waiting)

    @property
    def accepts_peers(self) -> bool:
        return self.queued_prefill_tokens < self.calibration.max_queued_tokens

    @property
    def accepts_clients(self) -> bool:
        """An entry node queues twice what it would take from peers."""
        return self.queued_prefill_tokens < 2 * self.calibration.max_queued_tokens

    @property
    def retry_after_s(self) -> float:
        shortest, longest = RETRY_BOUNDS_S
        wait = self.queued_prefill_tokens * self.calibration.seconds_per_prefill_token / 2
        return min(max(wait, shortest), longest)

    def submit(self, now: float, job: Job) -> None:
        """Queues a job behind all others. The caller has run the engine up to `now`."""
        job.expected_prefill = job.tokens - self._depth(job) * self._block_size
        self._waiting.append(job)
        if self._run is None:
            self._begin(now)
            return
        self._apply(now)
        run = self._run
        run.steps = min(run.steps, run.applied + 1)
        run.ends = run.started + run.steps * run.step_s

    def run_to(self, now: float) -> list[Progress]:
        """Advances to `now`; what came of it, in order."""
        progress: list[Progress] = []
        while self._run is not None and self._run.ends <= now + _EPSILON:
            run = self._run
            self._apply(run.ends)
            self._run = None
            progress += self._sample(run)
            self._begin(run.ends)
        if self._run is not None:
            self._apply(now)
        return progress

    def load(self) -> Load:
        """How busy it is, as the node would advertise it."""
        self._sequence += 1
        streams = sum(job.uncomputed == 1 for job in self._running)
        return Load(
            Epoch(1),
            self._sequence,
            running=len(self._running),
            waiting=len(self._waiting),
            queued_prefill_tokens=self.queued_prefill_tokens,
            seconds_per_prefill_token=self.calibration.seconds_per_prefill_token,
            seconds_per_decode_step=self._decode_step_s,
            prefill_tokens_per_step=self.calibration.prefill_allowance(streams),
            kv_blocks_total=self.calibration.kv_blocks,
            kv_blocks_used=self.cache.used,
            accepting=self.accepts_peers,
        )

    def cached_tokens(self, hashes: Sequence[BlockHash]) -> int:
        """Leading tokens of a prompt that are cached."""
        return self.cache.depth(hashes, len(hashes)) * self._block_size

    # -- the steps --------------------------------------------------------------------------------

    def _begin(self, now: float) -> None:
        works, steps = self._schedule()
        if not works:
            return
        streams = sum(count == 1 and job.uncomputed == 1 for job, count in works)
        prompt_tokens = sum(count for _, count in works) - streams
        step_s = self.calibration.step_s(prompt_tokens, streams)
        if not prompt_tokens:
            self._decode_step_s = step_s
        self._run = _Run(now, step_s, steps, works, prompt_tokens)

    def _apply(self, now: float) -> None:
        """Accounts for the steps of the run that are over at `now`."""
        run = self._run
        if run is None:
            return
        over = int((now - run.started) / run.step_s) if now < run.ends - _EPSILON else run.steps
        steps = over - run.applied
        if steps <= 0:
            return
        run.applied = over
        self.busy_s += steps * run.step_s
        for job, count in run.works:
            decodes = job.uncomputed == 1
            job.computed += steps * count
            if decodes:
                job.generated += steps
            self._cache_blocks(job)

    def _sample(self, run: _Run) -> list[Progress]:
        """The tokens that the run's last step brought. Decodes were counted step by step."""
        progress = []
        for job, _ in run.works:
            if not job.uncomputed:
                job.generated += 1
            first = job.generated > 0 and not job.told
            if first or job.finished:
                job.told = True
                progress.append(Progress(run.ends, job, first, job.finished))
            if job.finished:
                self._running.remove(job)
                self._release(job)
        return progress

    def _schedule(self) -> tuple[list[tuple[Job, int]], int]:
        """The next run: (job, tokens per step) of each, and how many such steps until something changes."""
        streams = sum(job.uncomputed == 1 for job in self._running)
        budget = self.calibration.prefill_allowance(streams)
        works, steps = self._decodes()
        prompts = []
        for job in self._running:
            if budget and job.uncomputed > 1:
                count = min(job.uncomputed, budget)
                prompts.append((job, count))
                budget -= count
        for job in tuple(islice(self._waiting, MAX_LOOK_AHEAD)):
            if not budget or len(self._running) >= self.calibration.max_running:
                break
            depth = self._depth(job)
            if self._is_being_computed(job, depth):
                continue
            if not self._admit(job, depth):
                break
            self._waiting.remove(job)
            count = min(job.uncomputed, budget)
            prompts.append((job, count))
            budget -= count
        for job, count in prompts:
            steps = min(steps, job.uncomputed // count)
        return works + prompts, steps

    def _decodes(self) -> tuple[list[tuple[Job, int]], int]:
        """Running streams, one token each, and for how many steps none of them ends or lacks blocks."""
        decoding = [job for job in self._running if job.uncomputed == 1]
        left = (job.answer_tokens - job.generated if job.told else 1 for job in decoding)
        steps = min(left, default=1 << 30)
        works = []
        for job in decoding:
            if job not in self._running:
                continue
            while steps > 1 and not self._grow(job, steps):
                steps = 1
            if self._grow(job, steps) or self._grow_by_preemption(job):
                works.append((job, 1))
        return [(job, count) for job, count in works if job in self._running], steps

    def _grow(self, job: Job, steps: int) -> bool:
        needed = -(-(job.computed + steps) // self._block_size) - job.held - job.private
        if needed > 0:
            if not self.cache.allocate(needed):
                return False
            job.private += needed
        return True

    def _grow_by_preemption(self, job: Job) -> bool:
        while not self._grow(job, 1):
            victim = self._running.pop()
            self._release(victim)
            victim.computed = 0
            victim.expected_prefill = victim.uncomputed - self._depth(victim) * self._block_size
            self._waiting.appendleft(victim)
            self.preemptions += 1
            if victim is job:
                return False
        return True

    # -- blocks -----------------------------------------------------------------------------------

    def _depth(self, job: Job) -> int:
        if self._forgetful:
            return 0
        cacheable = (job.tokens + job.generated - 1) // self._block_size
        return self.cache.depth(job.hashes, cacheable)

    def _is_being_computed(self, job: Job, depth: int) -> bool:
        """Whether a running prompt will soon cache the job's next block: it waits."""
        cacheable = (job.tokens + job.generated - 1) // self._block_size
        if self._forgetful or depth >= min(cacheable, len(job.hashes)):
            return False
        block = job.hashes[depth]
        return any(
            other.uncomputed > 1 and depth < len(other.hashes) and other.hashes[depth] == block
            for other in self._running
        )

    def _admit(self, job: Job, depth: int) -> bool:
        needed = -(-job.uncomputed // self._block_size) - depth
        path = job.hashes[:depth]
        self.cache.acquire(path)
        if needed + len(self._running) > self.cache.available or not self.cache.allocate(needed):
            self.cache.release(path)
            return False
        job.held, job.private = depth, needed
        job.computed = depth * self._block_size
        if job.cached_tokens is None:
            job.cached_tokens = job.computed
        self._running.append(job)
        return True

    def _cache_blocks(self, job: Job) -> None:
        whole = min(job.computed // self._block_size, len(job.hashes))
        for block in job.hashes[job.held : whole]:
            self.cache.insert(block)
            job.private -= 1
        job.held = max(job.held, whole)

    def _release(self, job: Job) -> None:
        self.cache.give_back(job.private)
        self.cache.release(job.hashes[: job.held])
        job.held = job.private = 0
