"""Everything between a layer's matrix products and attention in Triton, one launch for each gap."""

from __future__ import annotations

from typing import Final

import torch
import triton
import triton.language as tl
from torch import Tensor

from engine.cuda.kernels import HeadNorms
from engine.cuda.step import Step
from engine.model_config import ModelConfig

GATE_COLUMNS: Final = 1024


def add_norm(
    x: Tensor, delta: Tensor | None, weight: Tensor, epsilon: float, dtype: torch.dtype
) -> tuple[Tensor, Tensor]:
    """x [tokens, hidden] + delta, and its RMS norm as `dtype`."""
    tokens, hidden = x.shape
    total = torch.empty_like(x) if delta is not None else x
    normed = torch.empty((tokens, hidden), dtype=dtype, device=x.device)
    padded = triton.next_power_of_2(hidden)
    _add_norm[(tokens,)](
        x,
        delta,
        weight,
        total,
        normed,
        epsilon,
        HIDDEN=hidden,
        PADDED=padded,
        HAS_DELTA=delta is not None,
        num_warps=4 if padded <= 2048 else 8,
    )
    return total, normed


def rotate_and_store(
    qkv: Tensor,
    norms: HeadNorms | None,
    step: Step,
    cosines: Tensor,
    sines: Tensor,
    keys: Tensor,
    values: Tensor,
    config: ModelConfig,
) -> Tensor:
    """Rotates queries in place and keys and values [slots, KV heads, head_dim] into the cache.

    `cosines` and `sines` are [positions, head_dim / 2]. Returns the queries [tokens, heads, head_dim].
    """
    tokens = qkv.shape[0]
    _rotate_and_store[(tokens, config.heads + 2 * config.kv_heads)](
        qkv,
        norms.query if norms is not None else None,
        norms.key if norms is not None else None,
        step.positions,
        step.slots,
        cosines,
        sines,
        keys,
        values,
        config.norm_epsilon,
        HEADS=config.heads,
        KV_HEADS=config.kv_heads,
        HALF=config.head_dim // 2,
        PADDED=triton.next_power_of_2(config.head_dim // 2),
        HAS_NORMS=norms is not None,
        num_warps=1,
    )
    return qkv[:, : config.query_size].view(tokens, config.heads, config.head_dim)


def gate(gate_up: Tensor) -> Tensor:
    """silu(gate) x up of [tokens, 2 x inner]."""
    tokens, inner = gate_up.shape[0], gate_up.shape[1] // 2
    result = torch.empty((tokens, inner), dtype=gate_up.dtype, device=gate_up.device)
    _gate[(tokens, triton.cdiv(inner, GATE_COLUMNS))](gate_up, result, INNER=inner, COLUMNS=GATE_COLUMNS)
    return result


@triton.jit
def _add_norm(
    x,
    delta,
    weight,
    total,
    normed,
    epsilon,
    HIDDEN: tl.constexpr,
    PADDED: tl.constexpr,
    HAS_DELTA: tl.constexpr,
):
    """One token."""
    row = tl.program_id(0).to(tl.int64) * HIDDEN
    column = tl.arange(0, PADDED)
    inside = column < HIDDEN
    value = tl.load(x + row + column, mask=inside, other=0.0)
    if HAS_DELTA:
        value += tl.load(delta + row + column, mask=inside, other=0.0).to(tl.float32)
        tl.store(total + row + column, value, mask=inside)
    scale = 1.0 / tl.sqrt(tl.sum(value * value, 0) / HIDDEN + epsilon)
    result = value * scale * tl.load(weight + column, mask=inside, other=0.0)
    tl.store(normed + row + column, result.to(normed.dtype.element_ty), mask=inside)


@triton.jit
def _rotate_and_store(
    qkv,
    query_norm,
    key_norm,
    positions,
    slots,
    cosines,
    sines,
    keys,
    values,
    epsilon,
    HEADS: tl.constexpr,
    KV_HEADS: tl.constexpr,
    HALF: tl.constexpr,
    PADDED: tl.constexpr,
    HAS_NORMS: tl.constexpr,
):
    """One token and head: the query heads first, then keys, then values."""
    token = tl.program_id(0)
    head = tl.program_id(1)
    low = tl.arange(0, PADDED)
    inside = low < HALF
    source = qkv + (token.to(tl.int64) * (HEADS + 2 * KV_HEADS) + head) * 2 * HALF
    first = tl.load(source + low, mask=inside, other=0.0)
    second = tl.load(source + HALF + low, mask=inside, other=0.0)
    slot = tl.load(slots + token).to(tl.int64)
    if head >= HEADS + KV_HEADS:
        target = values + (slot * KV_HEADS + head - HEADS - KV_HEADS) * 2 * HALF
        tl.store(target + low, first, mask=inside)
        tl.store(target + HALF + low, second, mask=inside)
    else:
        a = first.to(tl.float32)
        b = second.to(tl.float32)
        if HAS_NORMS:
            scale = 1.0 / tl.sqrt((tl.sum(a * a, 0) + tl.sum(b * b, 0)) / (2 * HALF) + epsilon)
            weight = query_norm
            if head >= HEADS:
                weight = key_norm
            a *= scale * tl.load(weight + low, mask=inside, other=0.0)
            b *= scale * tl.load(weight + HALF + low, mask=inside, other=0.0)
        angle = tl.load(positions + token).to(tl.int64) * HALF + low
        cosine = tl.load(cosines + angle, mask=inside, other=0.0)
        sine = tl.load(sines + angle, mask=inside, other=0.0)
        rotated_a = (a * cosine - b * sine).to(first.dtype)
        rotated_b = (b * cosine + a * sine).to(first.dtype)
        if head >= HEADS:
            target = keys + (slot * KV_HEADS + head - HEADS) * 2 * HALF
            tl.store(target + low, rotated_a, mask=inside)
            tl.store(target + HALF + low, rotated_b, mask=inside)
        else:
            tl.store(source + low, rotated_a, mask=inside)
            tl.store(source + HALF + low, rotated_b, mask=inside)


@triton.jit
def _gate(gate_up, result, INNER: tl.constexpr, COLUMNS: tl.constexpr):
    """Some columns of one token."""
    token = tl.program_id(0).to(tl.int64)
    column = tl.program_id(1) * COLUMNS + tl.arange(0, COLUMNS)
    inside = column < INNER
    source = gate_up + token * 2 * INNER
    gates = tl.load(source + column, mask=inside, other=0.0).to(tl.float32)
    ups = tl.load(source + INNER + column, mask=inside, other=0.0).to(tl.float32)
    gated = gates / (1.0 + tl.exp(-gates)) * ups
    tl.store(result + token * INNER + column, gated.to(result.dtype.element_ty), mask=inside)
