"""The engine's options."""

from __future__ import annotations

import os
from dataclasses import dataclass, fields
from typing import Final, Literal, get_args

from engine.errors import EngineConfigError

Precision = Literal["auto", "fp32", "fp16", "bf16", "stored"]
Backend = Literal["auto", "native", "torch", "triton"]
Device = Literal["auto", "cpu", "cuda"]

BLOCK_SIZE: Final = 16
DEFAULT_MODEL: Final = "smollm2"


@dataclass(frozen=True, slots=True)
class EngineConfig:
    """What to load and how much of the machine to use.

    `block_hash_key`: 16 to 64 secret bytes of the mesh; nodes with unequal keys never see a common block.
    `device`: "cuda" is the GPU that PyTorch counts as the first; "auto" takes it where there is one and the
        other options don't ask for what only the CPU has. Like `precision` and `backend` resolved by place().
    `precision`: "fp32" computes with the checkpoint's weights as they are; "fp16" rounds the weights of
        linear layers to 16 bits (activations stay fp32): half the memory traffic, so faster at small batches.
        "stored" computes with the checkpoint's exact values too, but keeps Q4_0, Q4_1 and Q8_0 tensors of a
        GGUF file in their 4 or 8 bits: the least memory traffic, and as accurate as "fp32".
        On a GPU, "bf16" and "fp16" are the type of weights, activations and KV cache alike, and "stored" is
        refused. "auto" is "fp16" on the CPU, "bf16" on a GPU that has it.
    `backend`: "native" is compiled for this CPU on first use, "torch" needs no compiler; "auto" takes the
        first where it can. Both give the same answers. On a GPU, "triton" has kernels of its own and CUDA
        graphs, "torch" neither; "auto" takes the first where triton is installed.
    `threads`: cores for matrix products; 0 takes every core the process may run on.
    `kv_memory_bytes`: size of the KV cache; the CPU's is touched as blocks are first used. 0 is 1 GiB on the
        CPU; on a GPU it is `kv_memory_fraction`.
    `kv_memory_fraction`: share for the KV cache of the memory that is free beside the weights. 0 is 0.85 on a
        GPU (what is left holds activations and CUDA graphs); on the CPU it is `kv_memory_bytes`.
    `kv_blocks`: the same as a number of blocks; 0 derives it from the size.
    `max_running`: most sequences in one step; more widens decode batches and slows each stream.
    `max_waiting`: most requests that queue behind them before QueueFullError.
    `prefill_tokens_per_step`: most prompt tokens in one step; more is faster in total, fewer shortens
        the pause that a long prompt makes in running streams.
    """

    block_hash_key: bytes
    model: str = DEFAULT_MODEL
    precision: Precision = "auto"
    threads: int = 0
    kv_memory_bytes: int = 0
    kv_memory_fraction: float = 0.0
    kv_blocks: int = 0
    block_size: int = BLOCK_SIZE
    max_running: int = 32
    max_waiting: int = 1024
    prefill_tokens_per_step: int = 512
    device: Device = "auto"
    backend: Backend = "auto"

    def __post_init__(self) -> None:
        self._check_types()
        if not 16 <= len(self.block_hash_key) <= 64:
            raise EngineConfigError("block_hash_key must have 16 to 64 bytes")
        for name, choices in (("precision", Precision), ("device", Device), ("backend", Backend)):
            known = get_args(choices)
            if getattr(self, name) not in known:
                raise EngineConfigError(
                    f"{name} {getattr(self, name)!r} is unknown; choose one of {', '.join(known)}"
                )
        for name, least, most in (
            ("threads", 0, 1024),
            ("kv_memory_bytes", 1 << 20 if self.kv_memory_bytes else 0, 1 << 60),
            ("kv_blocks", 0, 1 << 31),
            ("block_size", 1, 4096),
            ("max_running", 1, 1 << 16),
            ("max_waiting", 1, 1 << 20),
            ("prefill_tokens_per_step", 1, 1 << 20),
        ):
            if not least <= getattr(self, name) <= most:
                raise EngineConfigError(f"{name} must be from {least} to {most}, not {getattr(self, name)}")
        if not 0.0 <= self.kv_memory_fraction <= 0.95:
            raise EngineConfigError(
                f"kv_memory_fraction must be from 0 to 0.95, not {self.kv_memory_fraction}"
            )
        if self.kv_memory_fraction and self.kv_memory_bytes:
            raise EngineConfigError("kv_memory_bytes and kv_memory_fraction size the same thing; set one")

    def _check_types(self) -> None:
        """Each option has the type of its default; a whole number will do for any other."""
        for option in fields(self):
            value, kind = getattr(self, option.name), type(option.default)
            if option.name == "block_hash_key":
                kind = bytes
            fits = isinstance(value, int | float) if kind is float else isinstance(value, kind)
            if not fits or isinstance(value, bool):
                raise EngineConfigError(f"{option.name} must be of type {kind.__name__}, not {value!r}")

    def resolved_threads(self) -> int:
        """`threads`, with 0 replaced by the number of cores this process may use."""
        if self.threads:
            return self.threads
        if hasattr(os, "sched_getaffinity"):
            return len(os.sched_getaffinity(0))
        return os.cpu_count() or 1
