"""The engine's options."""

from __future__ import annotations

import os
from dataclasses import dataclass
from typing import Final, Literal, get_args

from engine.errors import EngineConfigError

Precision = Literal["fp32", "fp16", "stored"]
Backend = Literal["auto", "native", "torch"]
Device = Literal["cpu"]

BLOCK_SIZE: Final = 16
DEFAULT_MODEL: Final = "smollm2"


@dataclass(frozen=True, slots=True)
class EngineConfig:
    """What to load and how much of the machine to use.

    `block_hash_key`: 16 to 64 secret bytes of the mesh; nodes with unequal keys never see a common block.
    `precision`: "fp32" computes with the checkpoint's weights as they are; "fp16" rounds the weights of
        linear layers to 16 bits (activations stay fp32): half the memory traffic, so faster at small batches.
        "stored" computes with the checkpoint's exact values too, but keeps Q4_0, Q4_1 and Q8_0 tensors of a
        GGUF file in their 4 or 8 bits: the least memory traffic, and as accurate as "fp32".
    `backend`: "native" is compiled for this CPU on first use, "torch" needs no compiler; "auto" takes the
        first where it can. Both give the same answers.
    `threads`: cores for matrix products; 0 takes every core the process may run on.
    `kv_memory_bytes`: size of the KV cache; memory is touched as blocks are first used.
    `kv_blocks`: the same as a number of blocks; 0 derives it from `kv_memory_bytes`.
    `max_running`: most sequences in one step; more widens decode batches and slows each stream.
    `max_waiting`: most requests that queue behind them before QueueFullError.
    `prefill_tokens_per_step`: most prompt tokens in one step; more is faster in total, fewer shortens
        the pause that a long prompt makes in running streams.
    """

    block_hash_key: bytes
    model: str = DEFAULT_MODEL
    precision: Precision = "fp16"
    threads: int = 0
    kv_memory_bytes: int = 1 << 30
    kv_blocks: int = 0
    block_size: int = BLOCK_SIZE
    max_running: int = 32
    max_waiting: int = 1024
    prefill_tokens_per_step: int = 512
    device: Device = "cpu"
    backend: Backend = "auto"

    def __post_init__(self) -> None:
        if not 16 <= len(self.block_hash_key) <= 64:
            raise EngineConfigError("block_hash_key must have 16 to 64 bytes")
        for name, choices in (("precision", Precision), ("device", Device), ("backend", Backend)):
            known = get_args(choices)
            if getattr(self, name) not in known:
                raise EngineConfigError(
                    f"{name} {getattr(self, name)!r} is unknown; choose one of {', '.join(known)}"
                )
        for name, least in (
            ("threads", 0),
            ("kv_memory_bytes", 1 << 20),
            ("kv_blocks", 0),
            ("block_size", 1),
            ("max_running", 1),
            ("max_waiting", 1),
            ("prefill_tokens_per_step", 1),
        ):
            if getattr(self, name) < least:
                raise EngineConfigError(f"{name} must be at least {least}, not {getattr(self, name)}")

    def resolved_threads(self) -> int:
        """`threads`, with 0 replaced by the number of cores this process may use."""
        if self.threads:
            return self.threads
        if hasattr(os, "sched_getaffinity"):
            return len(os.sched_getaffinity(0))
        return os.cpu_count() or 1
