"""Compiles the Triton kernels for a GPU that need not be there, as launches of a step would.

Usage: python -m tests.unit.engine.compile_kernels CAPABILITY; prints one JSON object a kernel.
"""

from __future__ import annotations

import itertools
import json
import sys
from functools import partial
from typing import Any
from unittest import mock

import torch
import triton
from triton.backends.compiler import GPUTarget
from triton.runtime.jit import JITFunction

from engine.cuda.kernels import HeadNorms
from engine.cuda.step import Step, pack_step
from engine.cuda.triton_kernels import TritonKernels
from engine.model import RotaryTable
from engine.model_config import ModelConfig
from engine.rope import Rope
from engine.span import Span

BLOCKS = 64
BLOCK_SIZE = 16
SHAPES = ((9, 3, 64), (32, 8, 128), (8, 8, 80), (16, 2, 256))
"""Heads, KV heads and head_dim of SmolLM2, of Llama 3 and Mistral, and two awkward ones."""


def main(capability: int) -> None:
    driver = mock.Mock()
    driver.get_current_target.return_value = GPUTarget("cuda", capability, 32)
    driver.get_current_device.return_value = 0
    triton.runtime.driver.set_active(driver)
    compiled: dict[int, Any] = {}

    def compile_only(kernel: Any, _grid: Any) -> Any:
        def launch(*arguments: Any, **options: Any) -> None:
            result = kernel.warmup(*arguments, grid=(1,), **options)
            compiled[id(result)] = result

        return launch

    with mock.patch.object(JITFunction, "__getitem__", compile_only):
        for dtype, shape, window in itertools.product(
            (torch.bfloat16, torch.float16, torch.float32), SHAPES, (0, 100)
        ):
            launch_all(model(*shape), dtype, window)
    for kernel in compiled.values():
        figures = {
            "name": kernel.metadata.name,
            "shared": kernel.metadata.shared,
            "size": len(kernel.asm["cubin"]),
        }
        print(json.dumps(figures))


def model(heads: int, kv_heads: int, head_dim: int) -> ModelConfig:
    return ModelConfig(
        architecture="qwen3",
        vocabulary_size=320,
        hidden_size=heads * head_dim,
        intermediate_size=3 * heads * head_dim,
        layers=1,
        heads=heads,
        kv_heads=kv_heads,
        head_dim=head_dim,
        context_tokens=BLOCKS * BLOCK_SIZE,
        norm_epsilon=1e-5,
        rope=Rope(10_000.0),
        tied_head=True,
        query_key_norm=True,
        windows=(0,),
    )


def launch_all(config: ModelConfig, dtype: torch.dtype, window: int) -> None:
    """A decode step and one with a prompt, with and without splits."""
    zeros = partial(torch.zeros, dtype=dtype)
    rotary = RotaryTable(config, None)
    keys, values = (zeros(BLOCKS * BLOCK_SIZE, config.kv_heads, config.head_dim) for _ in range(2))
    norms = HeadNorms(torch.zeros(config.head_dim), torch.zeros(config.head_dim))
    for processors, count in itertools.product((1, 200), (1, 40)):
        kernels = TritonKernels(config, rotary, dtype, processors)
        span = Span(900, count, list(range(BLOCKS)))
        tile_tokens = kernels.tile_tokens(count)
        ints, shape = pack_step([0] * count, [span], [0], block_size=BLOCK_SIZE, tile_tokens=tile_tokens)
        step = Step(
            torch.from_numpy(ints), shape, block_size=BLOCK_SIZE, tile_tokens=tile_tokens, longest=span.length
        )
        x, weight = torch.zeros(count, config.hidden_size), torch.zeros(config.hidden_size)
        kernels.add_norm(x, None, weight)
        kernels.add_norm(x, zeros(count, config.hidden_size), weight)
        kernels.gate(zeros(count, 2 * config.intermediate_size))
        for head_norms in (None, norms):
            qkv = zeros(count, config.query_size + 2 * config.kv_size)
            queries = kernels.rotate_and_store(qkv, head_norms, step, keys, values)
        kernels.attention(step)(queries, keys, values, window)


if __name__ == "__main__":
    main(int(sys.argv[1]))
