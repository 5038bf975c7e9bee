"""Measures what the engine of this machine can do, for the simulator's model of it.

A step is taken as overhead + decode(streams) + prompt tokens x seconds each, as the simulator does
(overlay.sim.routing.calibration); every figure is the median of a few repetitions.
"""

from __future__ import annotations

import asyncio
import random
import statistics
import time
from collections.abc import Callable, Sequence
from itertools import pairwise

from engine.block_hash import Namespace
from engine.config import EngineConfig
from engine.errors import EngineError
from engine.interface import EngineClient, GenerationRequest, SamplingParams
from engine.process import EngineProcess
from node.config import NodeConfig
from overlay.sim.routing.calibration import LEAST_CHUNK, Calibration

PROMPT_TOKENS = (64, 192, 320, 448)
"""Of prompts that fit one step of the engine; the slope over them is the cost of a prompt token."""

BATCHES = (1, 2, 4, 8, 16, 32, 64)
DECODE_CONTEXT_TOKENS = 256
DECODE_STEPS = 24
REPETITIONS = 5

Tell = Callable[[str], None]


class Calibrator:
    """Measures one engine that nothing else uses meanwhile. Prompts share nothing."""

    def __init__(self, engine: EngineClient, max_running: int, tell: Tell = lambda stage: None) -> None:
        self._engine = engine
        self._max_running = max_running
        self._tell = tell
        self._rng = random.Random(1)
        self._namespace = Namespace(engine.info.namespace.model, b"")
        self._count = 0

    async def measure(self) -> Calibration:
        """The calibration of this engine on this machine."""
        await self._decode_step_s(1)  # what is only slow once
        prefill = await self._prefill()
        overhead_s, token_s = fit_line(prefill)
        steps = []
        for streams in (batch for batch in BATCHES if batch <= self._max_running):
            self._tell(f"decode of {streams} streams")
            steps.append((streams, max(await self._decode_step_s(streams) - overhead_s, 1e-6)))
        stats = self._engine.stats
        return Calibration(
            seconds_per_prefill_token=token_s,
            step_overhead_s=overhead_s,
            decode_steps=tuple(steps),
            prefill_tokens_per_step=stats.prefill_tokens_per_step,
            max_running=self._max_running,
            kv_blocks=self._engine.info.kv_blocks_total,
            max_queued_tokens=int(NodeConfig.model_fields["max_queued_tokens"].default),
        )

    async def _prefill(self) -> list[tuple[float, float]]:
        """(prompt tokens, seconds to the first token) for prompts of one step each."""
        limit = min(self._engine.stats.prefill_tokens_per_step, self._engine.info.context_tokens - 1)
        points = []
        for tokens in (count for count in PROMPT_TOKENS if count <= limit):
            self._tell(f"prefill of {tokens} tokens")
            times = [await self._first_token_s(tokens) for _ in range(REPETITIONS)]
            points.append((float(tokens), statistics.median(times)))
        if len(points) < 2:
            raise EngineError(
                f"a context of {self._engine.info.context_tokens} tokens is too small to measure"
            )
        return points

    async def _first_token_s(self, tokens: int) -> float:
        started = time.perf_counter()
        async for _ in self._engine.submit(self._request(tokens, 1)):
            return time.perf_counter() - started
        raise EngineError("the engine gave no token")

    async def _decode_step_s(self, streams: int) -> float:
        """The median time of a step in which so many streams get one token each."""
        arrivals = await asyncio.gather(*(self._arrivals(streams) for _ in range(streams)))
        together_from = max(times[0][0] for times in arrivals)
        together_to = min(times[-1][0] for times in arrivals)
        seconds = [
            (later - earlier) / tokens
            for times in arrivals
            for (earlier, _), (later, tokens) in pairwise(times)
            if earlier >= together_from and later <= together_to
        ]
        if not seconds:
            raise EngineError(f"{streams} streams never ran together; give the engine more KV memory")
        return statistics.median(seconds)

    async def _arrivals(self, streams: int) -> list[tuple[float, int]]:
        """When how many tokens of one stream came, until after all others have begun."""
        steps = DECODE_STEPS + streams * DECODE_CONTEXT_TOKENS // LEAST_CHUNK
        context = min(DECODE_CONTEXT_TOKENS, self._engine.info.context_tokens - steps - 1)
        outputs = self._engine.submit(self._request(max(context, 1), steps))
        return [(time.perf_counter(), len(output.token_ids)) async for output in outputs if output.token_ids]

    def _request(self, tokens: int, answer: int) -> GenerationRequest:
        self._count += 1
        token_ids = self._rng.choices(range(self._engine.info.vocabulary_size), k=tokens)
        sampling = SamplingParams(max_tokens=answer, ignore_eos=True)
        return GenerationRequest(f"calibrate-{self._count}", tuple(token_ids), self._namespace, sampling)


def fit_line(points: Sequence[tuple[float, float]]) -> tuple[float, float]:
    """(intercept, slope) by least squares, the intercept not below 0."""
    slope, intercept = statistics.linear_regression([x for x, _ in points], [y for _, y in points])
    return max(intercept, 0.0), max(slope, 1e-9)


async def calibrate(config: EngineConfig, tell: Tell) -> Calibration:
    """Starts an engine, measures it, and ends it. Raises EngineError."""
    engine = EngineProcess(config, on_progress=tell)
    try:
        await engine.start()
        return await Calibrator(engine, config.max_running, tell).measure()
    finally:
        await engine.stop()
