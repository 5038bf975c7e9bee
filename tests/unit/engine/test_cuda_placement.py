"""Device, precision and backend: what fits together is chosen, what doesn't is refused with a remedy."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch

from engine import Engine
from engine import memory as engine_memory
from engine.config import EngineConfig
from engine.errors import EngineConfigError
from engine.kv_cache import block_bytes, block_count
from engine.model_files import open_model
from engine.placement import Gpu, place

AMPERE = Gpu()
TURING = Gpu(bfloat16=False)
NONE = Gpu(lacking="PyTorch finds no GPU; check nvidia-smi")


def config(**options: Any) -> EngineConfig:
    return EngineConfig(b"0123456789abcdef", **options)


@pytest.mark.parametrize(
    ("gpu", "options", "device", "precision"),
    [
        (NONE, {}, "cpu", "fp16"),
        (NONE, {"precision": "fp32"}, "cpu", "fp32"),
        (NONE, {"device": "cpu", "precision": "stored"}, "cpu", "stored"),
        (AMPERE, {}, "cuda", "bf16"),
        (TURING, {}, "cuda", "fp16"),
        (AMPERE, {"precision": "fp32"}, "cuda", "fp32"),
        (AMPERE, {"device": "cpu"}, "cpu", "fp16"),
        (AMPERE, {"precision": "stored"}, "cpu", "stored"),
        (AMPERE, {"backend": "native"}, "cpu", "fp16"),
        (AMPERE, {"backend": "torch"}, "cpu", "fp16"),
        (AMPERE, {"backend": "triton"}, "cuda", "bf16"),
        (AMPERE, {"backend": "torch", "device": "cuda"}, "cuda", "bf16"),
    ],
)
def test_auto_takes_the_gpu_where_it_can(
    gpu: Gpu, options: dict[str, Any], device: str, precision: str
) -> None:
    placed = place(config(**options), gpu)
    assert (placed.device, placed.precision) == (device, precision)
    assert place(placed, gpu) == placed


@pytest.mark.parametrize(
    ("gpu", "options", "says"),
    [
        (NONE, {"device": "cuda"}, "nvidia-smi, or choose device 'cpu'"),
        (NONE, {"precision": "bf16"}, "precision 'bf16' needs a GPU.*nvidia-smi, or choose 'auto'"),
        (NONE, {"backend": "triton"}, "backend 'triton' needs a GPU.*nvidia-smi, or choose 'auto'"),
        (AMPERE, {"device": "cpu", "precision": "bf16"}, "choose 'fp16' or 'fp32'"),
        (AMPERE, {"device": "cpu", "backend": "triton"}, "choose 'auto', 'native' or 'torch'"),
        (AMPERE, {"device": "cuda", "backend": "native"}, "choose 'auto' or device 'cpu'"),
        (AMPERE, {"device": "cuda", "precision": "stored"}, "choose 'bf16' or device 'cpu'"),
        (AMPERE, {"backend": "native", "precision": "bf16"}, "choose 'auto' or device 'cpu'"),
        (AMPERE, {"backend": "triton", "precision": "stored"}, "choose 'bf16' or device 'cpu'"),
        (TURING, {"precision": "bf16"}, "choose precision 'fp16'"),
    ],
)
def test_what_does_not_fit_is_refused_with_a_remedy(gpu: Gpu, options: dict[str, Any], says: str) -> None:
    with pytest.raises(EngineConfigError, match=says):
        place(config(**options), gpu)


def test_an_engine_without_its_gpu_is_refused(tiny: Callable[[str], Path]) -> None:
    if torch.cuda.is_available():
        pytest.skip("there is a GPU")
    with pytest.raises(EngineConfigError, match=r"device 'cuda' can't be used.*choose device 'cpu'"):
        Engine(config(model=str(tiny("llama")), device="cuda"))


FREE = 64 << 20


@pytest.mark.parametrize(
    ("device", "options", "share", "value_bytes"),
    [
        ("cuda", {}, 0.85, 2),
        ("cuda", {"kv_memory_fraction": 0.5}, 0.5, 2),
        ("cuda", {"kv_memory_fraction": 0.5, "precision": "fp32"}, 0.5, 4),
        ("cpu", {"kv_memory_fraction": 0.5}, 0.5, 4),
    ],
)
def test_the_kv_cache_and_the_weights_fit_the_share_of_free_memory(
    tiny: Callable[[str], Path],
    monkeypatch: pytest.MonkeyPatch,
    device: str,
    options: dict[str, Any],
    share: float,
    value_bytes: int,
) -> None:
    model = open_model(str(tiny("llama"))).config
    monkeypatch.setattr(engine_memory, "free_bytes", lambda placed: FREE)
    monkeypatch.setattr("engine.kv_cache.place", lambda options: place(options, AMPERE))
    blocks = block_count(model, config(device=device, **options))
    # Two layers: attention 64 x (64 + 32) twice, MLP 3 x 64 x 96. Embedding and head: 320 x 64.
    weights = value_bytes * (2 * (2 * 64 * 96 + 3 * 64 * 96) + 2 * 320 * 64)
    used = blocks * block_bytes(model, 16, value_bytes)
    room = share * (FREE - weights)
    assert room - block_bytes(model, 16, value_bytes) < used <= room


def test_memory_that_the_weights_fill_is_refused(
    tiny: Callable[[str], Path], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(engine_memory, "free_bytes", lambda placed: 1000)
    with pytest.raises(EngineConfigError, match="raise kv_memory_bytes or kv_memory_fraction"):
        block_count(open_model(str(tiny("llama"))).config, config(device="cpu", kv_memory_fraction=0.5))


@pytest.mark.parametrize(("limit", "free"), [("max\n", 300 << 10), (f"{200 << 10}\n", 150 << 10)])
def test_a_containers_limit_counts(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, limit: str, free: int
) -> None:
    (tmp_path / "meminfo").write_text("MemTotal: 900 kB\nMemFree: 10 kB\nMemAvailable: 300 kB\n")
    (tmp_path / "memory.max").write_text(limit)
    (tmp_path / "memory.current").write_text(f"{50 << 10}\n")
    monkeypatch.setattr(engine_memory, "MEMINFO", tmp_path / "meminfo")
    monkeypatch.setattr(engine_memory, "CGROUP", tmp_path)
    assert engine_memory.free_bytes(config(device="cpu")) == free


@pytest.mark.parametrize(
    "options", [{"kv_memory_fraction": 1.0}, {"kv_memory_fraction": 0.5, "kv_memory_bytes": 1 << 30}]
)
def test_absurd_sizes_are_refused(options: dict[str, Any]) -> None:
    with pytest.raises(EngineConfigError, match="kv_memory_fraction"):
        config(**options)
