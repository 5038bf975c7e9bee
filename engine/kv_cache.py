"""The paged KV cache: one pool of keys and values per layer, in blocks of token slots."""

from __future__ import annotations

import torch
from torch import Tensor

from engine.config import EngineConfig
from engine.errors import EngineConfigError
from engine.memory import kv_budget, value_bytes
from engine.model_config import ModelConfig
from engine.placement import place


def block_bytes(config: ModelConfig, block_size: int, value_bytes: int) -> int:
    """Bytes that one block takes over all layers."""
    return 2 * config.layers * block_size * config.kv_size * value_bytes


def block_count(config: ModelConfig, options: EngineConfig) -> int:
    """How many blocks the options allow. Raises EngineConfigError if that is none."""
    if options.kv_blocks:
        return options.kv_blocks
    placed = place(options)
    size = block_bytes(config, options.block_size, value_bytes(placed))
    budget = kv_budget(config, placed)
    if budget < size:
        raise EngineConfigError(
            f"the KV cache has {max(0, budget)} bytes, less than the {size} of one block;"
            " raise kv_memory_bytes or kv_memory_fraction, or free memory for it"
        )
    return budget // size


class KVCache:
    """Keys and values [layers, slots, kv heads, head_dim]; slot = block id x block size + offset.

    A token's heads lie together, so a block is one contiguous piece of each layer's pool.
    """

    def __init__(
        self,
        config: ModelConfig,
        blocks: int,
        block_size: int,
        dtype: torch.dtype = torch.float32,
        device: torch.device | None = None,
    ) -> None:
        shape = (config.layers, blocks * block_size, config.kv_heads, config.head_dim)
        try:
            self.keys = torch.zeros(shape, dtype=dtype, device=device)
            self.values = torch.zeros(shape, dtype=dtype, device=device)
        except RuntimeError as error:
            raise EngineConfigError(
                f"no memory for a KV cache of {blocks} blocks; set its size or fraction of memory lower"
            ) from error
        self.block_size = block_size

    def write(self, layer: int, slots: Tensor, keys: Tensor, values: Tensor) -> None:
        """Stores keys and values [tokens, kv heads, head_dim] at the tokens' slots [tokens]."""
        self.keys[layer].index_copy_(0, slots, keys)
        self.values[layer].index_copy_(0, slots, values)

    def copy_block(self, source: int, target: int) -> None:
        """Copies the keys and values of one block to another, in every layer."""
        size = self.block_size
        for pool in (self.keys, self.values):
            pool[:, target * size : (target + 1) * size] = pool[:, source * size : (source + 1) * size]
