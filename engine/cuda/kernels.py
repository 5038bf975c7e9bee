"""What the decoder asks of a device besides matrix products."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Protocol

from torch import Tensor

from engine.cuda.step import Step

Attend = Callable[[Tensor, Tensor, Tensor, int], Tensor]
"""Queries [tokens, heads, head_dim], a layer's keys and values, its window -> [tokens, query size]."""


@dataclass(frozen=True, slots=True)
class HeadNorms:
    """Weights of the RMS norms of each head's query and key [head_dim] (Qwen3)."""

    query: Tensor
    key: Tensor


class Kernels(Protocol):
    """Residuals and rotations are fp32; what goes into matrix products and the cache has the model's type."""

    name: str
    capturable: bool
    """Whether a CUDA graph may hold them: nothing depends on a step's numbers, only on its shape."""

    def tile_tokens(self, longest: int) -> int:
        """New tokens per tile in a step whose longest run of new tokens is that."""

    def add_norm(self, x: Tensor, delta: Tensor | None, weight: Tensor) -> tuple[Tensor, Tensor]:
        """The residual x [tokens, hidden] + delta, and its RMS norm in the model's type."""

    def rotate_and_store(
        self, qkv: Tensor, norms: HeadNorms | None, step: Step, keys: Tensor, values: Tensor
    ) -> Tensor:
        """Rotates queries and keys, writes keys and values to their slots; returns the queries.

        May overwrite `qkv` [tokens, query size + 2 x kv size].
        """

    def gate(self, gate_up: Tensor) -> Tensor:
        """silu(gate) x up of [tokens, 2 x inner], the gates first."""

    def attention(self, step: Step) -> Attend:
        """Attention of one step, shared by its layers.

        `window` limits a token to that many last positions, itself included; 0 is no limit.
        """
