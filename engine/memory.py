"""How much memory the KV cache may take."""

from __future__ import annotations

import os
import sys
from pathlib import Path
from typing import Final

import torch

from engine.config import EngineConfig
from engine.model_config import ModelConfig

CPU_BYTES: Final = 1 << 30
"""A KV cache on the CPU when no size is given."""

GPU_FRACTION: Final = 0.85
"""The KV cache's share of a GPU when no size is given; activations and CUDA graphs need the rest."""

MEMINFO: Final = Path("/proc/meminfo")
CGROUP: Final = Path("/sys/fs/cgroup")


def value_bytes(placed: EngineConfig) -> int:
    """Bytes of one cached number; the CPU keeps them as fp32 whatever the weights are."""
    return 4 if placed.device == "cpu" or placed.precision == "fp32" else 2


def kv_budget(config: ModelConfig, placed: EngineConfig) -> int:
    """Bytes for the KV cache, of options that place() has seen; negative if the weights overfill memory."""
    fraction = placed.kv_memory_fraction
    if placed.device == "cuda" and not placed.kv_memory_bytes:
        fraction = fraction or GPU_FRACTION
    if not fraction:
        return placed.kv_memory_bytes or CPU_BYTES
    return int(fraction * (free_bytes(placed) - _weight_bytes(config, value_bytes(placed))))


def free_bytes(placed: EngineConfig) -> int:
    """Memory that nothing uses, of the GPU or of the machine, before the weights are loaded."""
    if placed.device == "cuda":
        return torch.cuda.mem_get_info()[0]
    return min(_available_bytes(), _cgroup_bytes())


def _available_bytes() -> int:
    """What the machine can give without swapping; elsewhere than on Linux half of what it has."""
    if MEMINFO.is_file():
        for line in MEMINFO.read_text().splitlines():
            if line.startswith("MemAvailable:"):
                return int(line.split()[1]) << 10
    return os.sysconf("SC_PHYS_PAGES") * os.sysconf("SC_PAGE_SIZE") // 2


def _cgroup_bytes() -> int:
    """What is left of a container's limit, if there is one (cgroup v2)."""
    limit, used = CGROUP / "memory.max", CGROUP / "memory.current"
    if not limit.is_file() or not used.is_file() or limit.read_text().strip() == "max":
        return sys.maxsize
    return int(limit.read_text()) - int(used.read_text())


def _weight_bytes(config: ModelConfig, value_bytes: int) -> int:
    """The matrices of all layers, and the embedding with the head, which may be the same."""
    attention = 2 * config.hidden_size * (config.query_size + config.kv_size)
    mlp = 3 * config.hidden_size * config.intermediate_size
    vocabulary = config.vocabulary_size * config.hidden_size * (1 if config.tied_head else 2)
    return value_bytes * (config.layers * (attention + mlp) + vocabulary)
