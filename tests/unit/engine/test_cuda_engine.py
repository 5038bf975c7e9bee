"""The engine on the CUDA decoder: caching, batching, chunking and preemption never change an answer."""

from __future__ import annotations

import random
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import pytest
import torch

from engine import Engine
from engine.config import EngineConfig
from engine.cuda.decoder import CudaDecoder
from engine.interface import SamplingParams
from engine.model_files import ModelFiles
from engine.weights import open_weights
from tests.unit.engine.cuda_cases import device_of, rerun

KEY = b"0123456789abcdef"
GREEDY = SamplingParams(max_tokens=8, ignore_eos=True)
RANDOM = SamplingParams(max_tokens=8, ignore_eos=True, temperature=1.0, top_p=0.9, seed=3, logprobs=2)

Load = Callable[..., Engine]


@pytest.fixture(params=["cpu-torch", "cuda-torch", "cuda-triton"])
def load(
    request: pytest.FixtureRequest, tiny: Callable[[str], Path], monkeypatch: pytest.MonkeyPatch
) -> Load:
    """Builds engines; on the CPU, where place() would not choose this decoder, it is put in their way."""
    device = device_of(request.param)
    model = str(tiny("llama"))

    def load_on_cpu(files: ModelFiles, options: EngineConfig, blocks: int) -> CudaDecoder:
        with open_weights(files) as weights:
            return CudaDecoder(files.config, weights, options, blocks, torch.device("cpu"), rerun)

    def build(**options: Any) -> Engine:
        defaults: dict[str, Any] = {"kv_blocks": 64, "block_hash_key": KEY, "precision": "fp32"}
        chosen = {"device": device.type, "backend": request.param.split("-")[1]}
        return Engine(EngineConfig(model=model, **(defaults | chosen | options)))

    if device.type == "cpu":
        monkeypatch.setattr("engine.engine.load_decoder", load_on_cpu)
    return build


def prompts() -> list[list[int]]:
    """Six with a common prefix and ends of their own."""
    rng = random.Random(5)
    prefix = [rng.randrange(2, 320) for _ in range(40)]
    return [prefix + [rng.randrange(2, 320) for _ in range(rng.randrange(1, 50))] for _ in range(6)]


def answers(
    engine: Engine, batch: Sequence[Sequence[int]], sampling: SamplingParams
) -> list[tuple[int, ...]]:
    result = [answer.token_ids for answer in engine.generate(batch, sampling)]
    engine.check()
    return result


@pytest.mark.parametrize("sampling", [GREEDY, RANDOM], ids=["greedy", "random"])
def test_answers_equal_the_cpus_however_they_are_computed(
    load: Load, sampling: SamplingParams, tiny: Callable[[str], Path]
) -> None:
    batch = prompts()
    cpu = EngineConfig(KEY, str(tiny("llama")), device="cpu", backend="torch", precision="fp32", kv_blocks=64)
    with pytest.MonkeyPatch.context() as patch:
        from engine.loading import load_decoder

        patch.setattr("engine.engine.load_decoder", load_decoder)
        expected = answers(Engine(cpu), batch, sampling)
    engine = load()
    assert answers(engine, batch, sampling) == expected
    assert [answers(engine, [prompt], sampling)[0] for prompt in batch] == expected
    assert answers(load(prefill_tokens_per_step=5, max_running=3), batch, sampling) == expected
    assert answers(load(kv_blocks=14), batch, sampling) == expected


def test_the_engine_says_what_it_runs_on(load: Load, request: pytest.FixtureRequest) -> None:
    assert load().info.backend == request.node.callspec.params["load"]
