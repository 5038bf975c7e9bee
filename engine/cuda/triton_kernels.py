"""The kernels in Triton; importing this file imports triton."""

from __future__ import annotations

from functools import partial

import torch
from torch import Tensor

from engine.cuda import paged_attention, pointwise
from engine.cuda.kernels import Attend, HeadNorms
from engine.cuda.step import Step
from engine.model import RotaryTable
from engine.model_config import ModelConfig


class TritonKernels:
    """Kernels of one model; see Kernels. `processors`: streaming multiprocessors that attention fills."""

    name = "triton"
    capturable = True

    def __init__(self, config: ModelConfig, rotary: RotaryTable, dtype: torch.dtype, processors: int) -> None:
        half = config.head_dim // 2
        self._config = config
        self._cosines = rotary.cos[:, :half].contiguous()
        self._sines = rotary.sin[:, half:].contiguous()
        self._dtype = dtype
        self._processors = processors

    def tile_tokens(self, longest: int) -> int:
        share = self._config.heads // self._config.kv_heads
        return paged_attention.tile_tokens(share, longest, self._dtype)

    def add_norm(self, x: Tensor, delta: Tensor | None, weight: Tensor) -> tuple[Tensor, Tensor]:
        return pointwise.add_norm(x, delta, weight, self._config.norm_epsilon, self._dtype)

    def rotate_and_store(
        self, qkv: Tensor, norms: HeadNorms | None, step: Step, keys: Tensor, values: Tensor
    ) -> Tensor:
        return pointwise.rotate_and_store(
            qkv, norms, step, self._cosines, self._sines, keys, values, self._config
        )

    def gate(self, gate_up: Tensor) -> Tensor:
        return pointwise.gate(gate_up)

    def attention(self, step: Step) -> Attend:
        return partial(self._attend, step)

    def _attend(self, step: Step, queries: Tensor, keys: Tensor, values: Tensor, window: int) -> Tensor:
        attended = paged_attention.paged_attention(queries, keys, values, step, window, self._processors)
        return attended.flatten(1)
