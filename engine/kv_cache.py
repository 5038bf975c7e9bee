"""The paged KV cache: one pool of keys and values per layer, in blocks of token slots."""

from __future__ import annotations

import torch
from torch import Tensor

from engine.config import EngineConfig
from engine.errors import EngineConfigError
from engine.model_config import ModelConfig

BYTES_PER_VALUE = 4


def block_bytes(config: ModelConfig, block_size: int) -> int:
    """Bytes that one block takes over all layers."""
    return 2 * config.layers * block_size * config.kv_size * BYTES_PER_VALUE


def block_count(config: ModelConfig, options: EngineConfig) -> int:
    """How many blocks the options allow. Raises EngineConfigError if that is none."""
    if options.kv_blocks:
        return options.kv_blocks
    size = block_bytes(config, options.block_size)
    if options.kv_memory_bytes < size:
        raise EngineConfigError(f"kv_memory_bytes must hold at least one block of {size} bytes")
    return options.kv_memory_bytes // size


class KVCache:
    """Keys and values [layers, slots, kv heads, head_dim]; slot = block id x block size + offset.

    A token's heads lie together, so a block is one contiguous piece of each layer's pool.
    """

    def __init__(self, config: ModelConfig, blocks: int, block_size: int) -> None:
        shape = (config.layers, blocks * block_size, config.kv_heads, config.head_dim)
        try:
            self.keys = torch.zeros(shape)
            self.values = torch.zeros(shape)
        except RuntimeError as error:
            raise EngineConfigError(
                f"no memory for a KV cache of {blocks} blocks; set kv_memory_bytes lower"
            ) from error
        self.block_size = block_size

    def write(self, layer: int, slots: Tensor, keys: Tensor, values: Tensor) -> None:
        """Stores keys and values [tokens, kv heads, head_dim] at the tokens' slots [tokens]."""
        self.keys[layer].index_copy_(0, slots, keys)
        self.values[layer].index_copy_(0, slots, values)
