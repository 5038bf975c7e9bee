"""Where the CUDA decoder's tests run: on a GPU if there is one, and everywhere on CPU tensors.

Triton's kernels run on CPU tensors in Triton's interpreter, which conftest.py asks for where there is no GPU.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import cache
from importlib.util import find_spec
from pathlib import Path
from typing import Any

import pytest
import torch

from engine.config import EngineConfig
from engine.cuda.decoder import CudaDecoder
from engine.cuda.graphs import Replay
from engine.model_files import open_model
from engine.placement import Gpu
from engine.weights import open_weights

CASES = (
    "cpu-torch",
    pytest.param("cpu-triton", marks=pytest.mark.soak),  # interpreted: seconds for each step
    "cuda-torch",
    "cuda-triton",
)
BLOCKS = 64


def device_of(case: str) -> torch.device:
    """The case's device; skips the test where it can't run."""
    device, kernels = case.split("-")
    lacking = Gpu.look().lacking
    if device == "cuda" and lacking:
        pytest.skip(lacking)
    if kernels == "triton":
        if find_spec("triton") is None:
            pytest.skip("triton is not installed; `make kernels` installs it")
        if device == "cpu" and not lacking:
            pytest.skip("Triton compiles for the GPU here, so it does not interpret")
        if device == "cpu":
            teach_bfloat16()
    return torch.device(device)


@cache
def teach_bfloat16() -> None:
    """Triton's interpreter keeps bf16 as bit patterns, and would multiply matrices of those as integers.

    It also cuts numbers off where a GPU rounds to the nearest.
    """
    import triton.language as tl
    from triton.runtime import interpreter

    dot, cast = interpreter.InterpreterBuilder.create_dot, interpreter.InterpreterBuilder.cast_impl

    def create_dot(self: Any, a: Any, b: Any, *rest: Any) -> Any:
        if a.dtype.scalar == tl.bfloat16:
            a, b = cast(self, a, tl.float32), cast(self, b, tl.float32)
        return dot(self, a, b, *rest)

    def fp_trunc(self: Any, source: Any, kind: Any) -> Any:
        if kind.scalar != tl.bfloat16:
            return cast(self, source, kind)
        rounded = torch.from_numpy(source.data).bfloat16().view(torch.uint16).numpy()
        return interpreter.TensorHandle(rounded, tl.bfloat16)

    interpreter.InterpreterBuilder.create_dot = create_dot
    interpreter.InterpreterBuilder.create_fp_trunc = fp_trunc


def rerun(run: Callable[[], None]) -> Replay:
    """Stands in for a capture where there are no CUDA graphs: a replay runs again, on the same inputs."""
    run()
    return run


def load_case(
    case: str, folder: Path, graphs: bool = True, blocks: int = BLOCKS, **options: Any
) -> CudaDecoder:
    """The decoder of a checkpoint; `graphs`: whether decode steps are replayed, for real on a GPU."""
    device = device_of(case)
    files = open_model(str(folder))
    defaults: dict[str, Any] = {"precision": "fp32", "backend": case.split("-")[1], "max_running": 6}
    config = EngineConfig(b"0123456789abcdef", **(defaults | options))
    capture = rerun if device.type == "cpu" else None
    with open_weights(files) as weights:
        decoder = CudaDecoder(files.config, weights, config, BLOCKS, device, capture)
    assert decoder.backend == case
    return decoder
