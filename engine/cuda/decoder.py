"""The decoder for CUDA behind the same interface as the CPU's; on CPU tensors it runs too, for tests."""

from __future__ import annotations

import subprocess
from collections.abc import Sequence
from typing import Final

import torch
from torch import Tensor

from engine.config import EngineConfig
from engine.cuda.graphs import Capture, CudaCapture, DecodeGraphs
from engine.cuda.kernels import Kernels
from engine.cuda.model import Model, WeightReader
from engine.cuda.step import Step, pack_step, to_device
from engine.cuda.torch_kernels import TorchKernels
from engine.errors import EngineConfigError
from engine.kv_cache import KVCache
from engine.model import RotaryTable
from engine.model_config import ModelConfig
from engine.progress import begin
from engine.span import Span
from engine.weights import Weights

DTYPES: Final = {"bf16": torch.bfloat16, "fp16": torch.float16, "fp32": torch.float32}


class CudaDecoder:
    """A whole decoder with its KV cache on one device; `capture` makes its graphs, where it has any.

    Raises a ModelError, or EngineConfigError when the device has too little memory or lacks a kernel.
    """

    def __init__(
        self,
        config: ModelConfig,
        weights: Weights,
        options: EngineConfig,
        blocks: int,
        device: torch.device,
        capture: Capture | None = None,
    ) -> None:
        dtype = DTYPES[options.precision]
        self._device = device
        self._block_size = options.block_size
        self._longest = min(config.context_tokens, blocks * options.block_size)
        try:
            self._model = Model(config, WeightReader(config, weights, device, dtype))
            rotary = RotaryTable(config, weights.rope_factors(), device)
            self._cache = KVCache(config, blocks + 1, options.block_size, dtype, device)
            self._spare_block = blocks
            self._kernels = _make_kernels(options.backend, config, rotary, dtype, device)
            self.backend = f"{device.type}-{self._kernels.name}"
            begin("preparing the GPU's kernels")
            self._warm_up()
            self._graphs = self._capture(capture, options.max_running)
        except torch.cuda.OutOfMemoryError as error:
            raise EngineConfigError(
                "the GPU has too little free memory for model and KV cache; stop what else runs there,"
                " set kv_memory_fraction or kv_memory_bytes lower, or choose device 'cpu'"
            ) from error

    @torch.inference_mode()
    def forward(self, token_ids: Sequence[int], spans: Sequence[Span], rows: Sequence[int]) -> Tensor:
        """Computes a step's tokens, sequence by sequence; returns the logits [len(rows), vocabulary]."""
        if self._graphs is not None and self._graphs.fits(spans, rows):
            return self._graphs.run(token_ids, spans)
        tile_tokens = self._kernels.tile_tokens(max(span.count for span in spans))
        ints, shape = pack_step(token_ids, spans, rows, block_size=self._block_size, tile_tokens=tile_tokens)
        step = Step(
            to_device(ints, self._device),
            shape,
            block_size=self._block_size,
            tile_tokens=tile_tokens,
            longest=max(span.length for span in spans),
        )
        logits = self._forward(step)
        if not rows and self._device.type == "cuda":
            torch.cuda.synchronize(self._device)  # nobody waits for a token, but the step's time is measured
        return logits

    def copy_block(self, source: int, target: int) -> None:
        """Copies a KV block."""
        self._cache.copy_block(source, target)

    def _forward(self, step: Step) -> Tensor:
        return self._model.forward(step, self._kernels, self._cache)

    def _warm_up(self) -> None:
        """Compiles the kernels of prompts: short ones, and those whose keys are split."""
        self._graphs = None
        last = max(0, self._longest - 2)
        blocks = [self._spare_block] * -(-self._longest // self._block_size)
        for span in (Span(0, min(2, self._longest), blocks), Span(last, self._longest - last, blocks)):
            self.forward([0] * span.count, [span], [])

    @torch.inference_mode()
    def _capture(self, capture: Capture | None, most: int) -> DecodeGraphs | None:
        if capture is None and self._device.type == "cuda" and self._kernels.capturable:
            capture = CudaCapture()
        if capture is None:
            return None
        return DecodeGraphs(
            self._forward,
            capture,
            self._device,
            most=most,
            longest=self._longest,
            block_size=self._block_size,
            tile_tokens=self._kernels.tile_tokens(1),
            spare_block=self._spare_block,
        )


def _make_kernels(
    backend: str, config: ModelConfig, rotary: RotaryTable, dtype: torch.dtype, device: torch.device
) -> Kernels:
    """Triton's where they run, unless `backend` says which."""
    if backend != "torch":
        try:
            return _triton_kernels(config, rotary, dtype, device)
        except _TritonUnavailable as error:
            if backend == "triton":
                raise EngineConfigError(
                    f"backend 'triton' can't run: {error}; install rumormill[cuda], a C compiler and Python's"
                    " headers, or choose backend 'torch'"
                ) from error
            begin(f"falling back to PyTorch's kernels, which are slower: {error}")
    return TorchKernels(config, rotary, dtype)


class _TritonUnavailable(Exception):  # noqa: N818 - a state of the machine, not a mistake
    """Triton can't compile or launch here; the text says why."""


def _triton_kernels(
    config: ModelConfig, rotary: RotaryTable, dtype: torch.dtype, device: torch.device
) -> Kernels:
    """Triton's kernels, once one of them has run: it compiles a launcher with the machine's C compiler."""
    try:
        from engine.cuda.triton_kernels import TritonKernels

        processors = 1
        if device.type == "cuda":
            processors = torch.cuda.get_device_properties(device).multi_processor_count
        kernels = TritonKernels(config, rotary, dtype, processors)
        kernels.gate(torch.zeros(1, 2, dtype=dtype, device=device))
    except torch.cuda.OutOfMemoryError:
        raise
    except (ImportError, OSError, RuntimeError, subprocess.SubprocessError) as error:
        reason = next(iter(str(error).splitlines()), type(error).__name__)
        raise _TritonUnavailable(reason) from error
    return kernels
