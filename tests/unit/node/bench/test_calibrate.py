"""A calibration is made of what the engine did, in the form that the simulator reads."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncGenerator
from pathlib import Path
from typing import cast

import pytest

from engine.errors import EngineError
from engine.interface import (
    EngineClient,
    EngineInfo,
    EngineStats,
    FinishReason,
    GenerationRequest,
    TokenOutput,
)
from node.bench.calibrate import Calibrator, fit_line
from overlay.sim.routing.calibration import Calibration
from tests.unit.node.fakes import NAMESPACE


class Engine:
    """Gives tokens as fast as the loop turns."""

    def __init__(self, context_tokens: int = 2048) -> None:
        self.info = EngineInfo("fake", NAMESPACE, context_tokens, 1000, 16, 640)
        self.stats = EngineStats(prefill_tokens_per_step=512)
        self.prompts: list[tuple[int, ...]] = []

    async def submit(self, request: GenerationRequest) -> AsyncGenerator[TokenOutput, None]:
        self.prompts.append(request.token_ids)
        for index in range(request.sampling.max_tokens):
            await asyncio.sleep(0)
            last = index == request.sampling.max_tokens - 1
            yield TokenOutput(request.request_id, index, (1,), 0, FinishReason.LENGTH if last else None)


def test_a_line_through_points_gives_both_costs() -> None:
    overhead_s, token_s = fit_line([(n, 0.003 + 0.002 * n) for n in (64.0, 128.0, 256.0)])
    assert overhead_s == pytest.approx(0.003)
    assert token_s == pytest.approx(0.002)


def test_costs_are_never_negative() -> None:
    assert fit_line([(64.0, 0.1), (128.0, 0.3)])[0] == 0.0
    assert fit_line([(64.0, 0.3), (128.0, 0.1)])[1] > 0.0


async def test_the_simulator_reads_what_is_measured(tmp_path: Path) -> None:
    engine = Engine()
    measured = await Calibrator(cast(EngineClient, engine), max_running=8).measure()
    assert [streams for streams, _ in measured.decode_steps] == [1, 2, 4, 8]
    assert (measured.kv_blocks, measured.max_running, measured.prefill_tokens_per_step) == (640, 8, 512)
    (tmp_path / "c.json").write_text(measured.to_json())
    assert Calibration.from_json(tmp_path / "c.json") == measured
    starts = [prompt[:16] for prompt in engine.prompts]
    assert len(set(starts)) == len(starts), "nothing is found in the cache"


async def test_a_context_too_small_to_measure_is_told() -> None:
    with pytest.raises(EngineError, match="too small"):
        await Calibrator(cast(EngineClient, Engine(context_tokens=100)), max_running=1).measure()
