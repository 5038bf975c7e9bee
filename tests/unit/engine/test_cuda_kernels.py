"""Triton's kernels compute what PyTorch's do; they compile for every GPU in question."""

from __future__ import annotations

import json
import os
import random
import subprocess
import sys
from collections.abc import Callable
from dataclasses import replace
from importlib.util import find_spec
from pathlib import Path

import pytest
import torch
from torch import Tensor

from engine.cuda.kernels import HeadNorms, Kernels
from engine.cuda.step import Step, pack_step, to_device
from engine.cuda.torch_kernels import TorchKernels
from engine.errors import EngineConfigError
from engine.model import RotaryTable
from engine.model_config import ModelConfig
from engine.rope import Rope
from engine.span import Span
from tests.unit.engine.cuda_cases import device_of, load_case

TRITON_CASES = ("cpu-triton", "cuda-triton")
TOLERANCE = {torch.float32: 2e-5, torch.bfloat16: 2e-2, torch.float16: 3e-3}
SMALLEST_SHARED_MEMORY = 99 << 10
"""Bytes a program may use on compute capability 8.6, 8.9 and 12.0; others have more."""

CONFIG = ModelConfig(
    architecture="qwen3",
    vocabulary_size=320,
    hidden_size=72,
    intermediate_size=1100,
    layers=1,
    heads=6,
    kv_heads=2,
    head_dim=24,
    context_tokens=2048,
    norm_epsilon=1e-5,
    rope=Rope(10_000.0),
    tied_head=True,
    query_key_norm=True,
    windows=(0,),
)
"""Sizes that are no powers of two, which is what Triton counts in."""


def kernels_of(
    case: str, config: ModelConfig = CONFIG, dtype: torch.dtype = torch.float32, processors: int = 1
) -> tuple[Kernels, Kernels]:
    """PyTorch's and Triton's."""
    device = device_of(case)
    from engine.cuda.triton_kernels import TritonKernels

    rotary = RotaryTable(config, None, device)
    return TorchKernels(config, rotary, dtype), TritonKernels(config, rotary, dtype, processors)


def make_step(kernels: Kernels, spans: list[Span], block_size: int, device: torch.device) -> Step:
    count = sum(span.count for span in spans)
    tile_tokens = kernels.tile_tokens(max(span.count for span in spans))
    ints, shape = pack_step([0] * count, spans, [0], block_size=block_size, tile_tokens=tile_tokens)
    longest = max(span.length for span in spans)
    return Step(
        to_device(ints, device), shape, block_size=block_size, tile_tokens=tile_tokens, longest=longest
    )


def spread(spans: list[tuple[int, int]], block_size: int, blocks: int) -> list[Span]:
    """(computed, count) as spans whose blocks lie scattered over the pool."""
    free = list(range(blocks))
    random.Random(3).shuffle(free)
    result = []
    for computed, count in spans:
        needed = -(-(computed + count) // block_size)
        result.append(Span(computed, count, [free.pop() for _ in range(needed)]))
    return result


def noise(*shape: int, dtype: torch.dtype = torch.float32, device: torch.device) -> Tensor:
    return torch.randn(shape, generator=torch.Generator().manual_seed(len(shape) + shape[0])).to(
        device, dtype
    )


@pytest.mark.parametrize("case", TRITON_CASES)
@pytest.mark.parametrize("dtype", TOLERANCE)
@pytest.mark.parametrize("window", [0, 30])
@pytest.mark.parametrize("processors", [1, 40], ids=["whole", "split"])
@pytest.mark.parametrize(
    "spans",
    [
        [(0, 1), (16, 1), (299, 1), (701, 1)],
        [(0, 70), (5, 1), (290, 33), (600, 2)],
    ],
    ids=["streams", "prompts"],
)
def test_attention_equals_pytorchs(
    case: str, dtype: torch.dtype, window: int, processors: int, spans: list[tuple[int, int]]
) -> None:
    plain, fast = kernels_of(case, dtype=dtype, processors=processors)
    device = device_of(case)
    block_size, blocks = 12, 160
    step = make_step(fast, spread(spans, block_size, blocks), block_size, device)
    keys, values = (
        noise(blocks * block_size, CONFIG.kv_heads, CONFIG.head_dim + extra, dtype=dtype, device=device)[
            ..., : CONFIG.head_dim
        ].contiguous()
        for extra in (0, 1)
    )
    # Queries are a slice of wider rows, and large, so that a wrong maximum would show.
    wide = 4 * noise(step.shape.tokens, 10, CONFIG.head_dim, dtype=dtype, device=device)
    queries = wide[:, : CONFIG.heads]
    expected = plain.attention(step)(queries, keys, values, window)
    result = fast.attention(step)(queries, keys, values, window)
    torch.testing.assert_close(result, expected, atol=TOLERANCE[dtype], rtol=TOLERANCE[dtype])


@pytest.mark.parametrize("case", TRITON_CASES)
@pytest.mark.parametrize("heads", [(1, 1), (20, 1), (32, 2)])
def test_attention_shares_a_key_among_any_number_of_heads(case: str, heads: tuple[int, int]) -> None:
    config = replace(CONFIG, heads=heads[0], kv_heads=heads[1], head_dim=16)
    plain, fast = kernels_of(case, config)
    device = device_of(case)
    step = make_step(fast, spread([(0, 9), (30, 1)], 16, 8), 16, device)
    keys, values = (noise(128, heads[1], 16, device=device) * scale for scale in (1, 2))
    queries = noise(step.shape.tokens, heads[0], 16, device=device)
    expected = plain.attention(step)(queries, keys, values, 0)
    torch.testing.assert_close(fast.attention(step)(queries, keys, values, 0), expected, atol=2e-5, rtol=0)


@pytest.mark.parametrize("case", TRITON_CASES)
@pytest.mark.parametrize("dtype", TOLERANCE)
@pytest.mark.parametrize("normed", [True, False], ids=["qk-norm", "plain"])
def test_rotation_and_store_equal_pytorchs(case: str, dtype: torch.dtype, normed: bool) -> None:
    plain, fast = kernels_of(case, dtype=dtype)
    device = device_of(case)
    step = make_step(fast, spread([(0, 5), (1000, 1)], 16, 70), 16, device)
    norms = HeadNorms(noise(24, device=device), noise(24, device=device) + 1) if normed else None
    qkv = noise(step.shape.tokens, CONFIG.query_size + 2 * CONFIG.kv_size, dtype=dtype, device=device)
    results = []
    for kernels in (plain, fast):
        keys, values = (torch.zeros(70 * 16, 2, 24, dtype=dtype, device=device) for _ in range(2))
        queries = kernels.rotate_and_store(qkv.clone(), norms, step, keys, values)
        results.append((queries, keys, values))
    for expected, result in zip(*results, strict=True):
        assert result.abs().sum() > 0
        torch.testing.assert_close(result, expected, atol=TOLERANCE[dtype], rtol=TOLERANCE[dtype])


@pytest.mark.parametrize("case", TRITON_CASES)
@pytest.mark.parametrize("dtype", TOLERANCE)
def test_norm_and_gate_equal_pytorchs(case: str, dtype: torch.dtype) -> None:
    plain, fast = kernels_of(case, dtype=dtype)
    device = device_of(case)
    x, weight = noise(5, 72, device=device), noise(72, device=device)
    for delta in (None, noise(4, 72, dtype=dtype, device=device).repeat(2, 1)[:5]):
        for expected, result in zip(
            plain.add_norm(x, delta, weight), fast.add_norm(x, delta, weight), strict=True
        ):
            assert result.dtype is expected.dtype
            torch.testing.assert_close(result, expected, atol=TOLERANCE[dtype], rtol=TOLERANCE[dtype])
    gate_up = 3 * noise(5, 2200, dtype=dtype, device=device)
    torch.testing.assert_close(
        fast.gate(gate_up), plain.gate(gate_up), atol=TOLERANCE[dtype], rtol=TOLERANCE[dtype]
    )


@pytest.mark.soak
@pytest.mark.timeout(1200)
@pytest.mark.parametrize("capability", [80, 86, 90, 100])
def test_the_kernels_compile_and_fit(capability: int) -> None:
    """As launched for heads of four shapes in every type; takes minutes, but no GPU."""
    if find_spec("triton") is None:
        pytest.skip("triton is not installed; `make kernels` installs it")
    environment = {name: value for name, value in os.environ.items() if name != "TRITON_INTERPRET"}
    done = subprocess.run(
        [sys.executable, "-m", "tests.unit.engine.compile_kernels", str(capability)],
        cwd=Path(__file__).parents[3],
        env=environment,
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == 0, done.stderr[-2000:]
    kernels = [json.loads(line) for line in done.stdout.splitlines()]
    assert {kernel["name"] for kernel in kernels} == {
        "_attend_tile",
        "_merge_splits",
        "_add_norm",
        "_rotate_and_store",
        "_gate",
    }
    assert all(kernel["size"] for kernel in kernels)
    assert max(kernel["shared"] for kernel in kernels) <= SMALLEST_SHARED_MEMORY


def test_without_triton_auto_falls_back_and_says_so(
    tiny: Callable[[str], Path], monkeypatch: pytest.MonkeyPatch
) -> None:
    """As where its package is missing, or the C compiler that it calls."""
    monkeypatch.setitem(sys.modules, "engine.cuda.triton_kernels", None)
    told: list[str] = []
    monkeypatch.setattr("engine.cuda.decoder.begin", told.append)
    assert load_case("cpu-torch", tiny("llama"), backend="auto").backend == "cpu-torch"
    assert any("falling back to PyTorch's kernels" in stage for stage in told)
    with pytest.raises(EngineConfigError, match=r"backend 'triton' can't run.*or choose backend 'torch'"):
        load_case("cpu-torch", tiny("llama"), backend="triton")


def test_nothing_imports_triton_unless_it_is_used() -> None:
    code = (
        "import sys, engine.loading, engine.cuda.decoder, engine.cuda.torch_kernels;"
        "sys.exit('triton' in sys.modules)"
    )
    subprocess.run([sys.executable, "-c", code], check=True, cwd=Path(__file__).parents[3])
