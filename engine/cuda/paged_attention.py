"""Softmax attention over the paged KV cache in Triton: streams and chunks of prompts in one launch.

A program computes one tile (some new tokens of one sequence, all query heads that share one KV head) with an
online softmax (FlashAttention-2, arXiv 2307.08691), reading each key through the sequence's block table. When
tiles alone can't fill the GPU, their keys are cut in splits that a second kernel merges (Flash-Decoding).
"""

from __future__ import annotations

from typing import Final

import torch
import triton
import triton.language as tl
from torch import Tensor

from engine.cuda.step import Step

LEAST_ROWS: Final = 16
"""Fewest rows or columns of a tensor-core product."""

MOST_ROWS: Final = 64
"""Rows, tokens x heads, of a tile of a prompt; fp32 takes the fewest, since its sums fill the registers."""

MOST_KEYS: Final = 64
"""Keys of one iteration."""

STAGE_BYTES: Final = 16 << 10
"""Keys of one iteration, and as many values, two of each in flight: a small GPU has 99 KiB for them."""

SPLIT_KEYS: Final = 256
"""Fewest keys that are worth a split of their own."""

MOST_SPLITS: Final = 32

PROGRAMS_PER_PROCESSOR: Final = 2


def tile_tokens(share: int, longest: int, dtype: torch.dtype) -> int:
    """New tokens per tile, with `share` query heads per KV head and runs of at most `longest` tokens.

    One token or as many as fit: two heights are all there are, since each is a kernel to compile.
    """
    rows = LEAST_ROWS if dtype is torch.float32 else MOST_ROWS
    return 1 if longest == 1 else max(1, rows // share)


def paged_attention(
    queries: Tensor, keys: Tensor, values: Tensor, step: Step, window: int, processors: int
) -> Tensor:
    """queries [tokens, heads, head_dim], keys and values [slots, KV heads, head_dim] -> queries' shape.

    `processors`: how many streaming multiprocessors there are to fill.
    """
    tokens, heads, size = queries.shape
    kv_heads = keys.shape[1]
    share = heads // kv_heads
    tiles = step.shape.tiles
    splits = _splits(tiles * kv_heads, processors, step.longest)
    output = torch.empty((tokens, heads, size), dtype=queries.dtype, device=queries.device)
    partials, weights = output, output
    if splits > 1:
        partials = torch.empty((tokens, heads, splits, size), dtype=torch.float32, device=queries.device)
        weights = torch.empty((tokens, heads, splits), dtype=torch.float32, device=queries.device)
    padded = triton.next_power_of_2(size)
    tile_keys = max(LEAST_ROWS, min(MOST_KEYS, STAGE_BYTES // (padded * keys.element_size())))
    rows = max(LEAST_ROWS, triton.next_power_of_2(step.tile_tokens * share))
    _attend_tile[(tiles, kv_heads, splits)](
        queries,
        keys,
        values,
        partials,
        weights,
        step.first_rows,
        step.computed,
        step.lengths,
        step.table_starts,
        step.tile_sequences,
        step.tile_offsets,
        step.tables,
        queries.stride(0),
        size**-0.5,
        HEADS=heads,
        KV_HEADS=kv_heads,
        HEAD_DIM=size,
        PADDED_DIM=padded,
        BLOCK_SIZE=step.block_size,
        WINDOW=window,
        TILE_TOKENS=step.tile_tokens,
        TILE_ROWS=rows,
        TILE_KEYS=tile_keys,
        SPLIT=splits > 1,
        num_warps=4 if padded <= 128 else 8,
        num_stages=2,
    )
    if splits > 1:
        _merge_splits[(tokens, heads)](
            partials,
            weights,
            output,
            splits,
            HEAD_DIM=size,
            PADDED_DIM=padded,
            MOST_SPLITS=MOST_SPLITS,
            num_warps=2,
        )
    return output


def _splits(programs: int, processors: int, longest: int) -> int:
    fill = PROGRAMS_PER_PROCESSOR * processors // programs
    return max(1, min(MOST_SPLITS, fill, -(-longest // SPLIT_KEYS)))


@triton.jit
def _attend_tile(
    queries,
    keys,
    values,
    output,
    weights,
    first_rows,
    computed,
    lengths,
    table_starts,
    tile_sequences,
    tile_offsets,
    tables,
    query_stride,
    scale,
    HEADS: tl.constexpr,
    KV_HEADS: tl.constexpr,
    HEAD_DIM: tl.constexpr,
    PADDED_DIM: tl.constexpr,
    BLOCK_SIZE: tl.constexpr,
    WINDOW: tl.constexpr,
    TILE_TOKENS: tl.constexpr,
    TILE_ROWS: tl.constexpr,
    TILE_KEYS: tl.constexpr,
    SPLIT: tl.constexpr,
):
    """One tile, KV head and split: `output` [tokens, heads, head_dim], or with splits before head_dim.

    `weights` [tokens, heads, splits] are base-2 logarithms of each split's sum of exponentials.
    """
    SHARE: tl.constexpr = HEADS // KV_HEADS
    tile = tl.program_id(0)
    kv_head = tl.program_id(1)
    split = tl.program_id(2)
    splits = tl.num_programs(2)

    sequence = tl.load(tile_sequences + tile)
    offset = tl.load(tile_offsets + tile)
    before = tl.load(computed + sequence)
    length = tl.load(lengths + sequence)
    first_row = tl.load(first_rows + sequence)
    table = tables + tl.load(table_starts + sequence)

    lane = tl.arange(0, TILE_ROWS)
    token = offset + lane // SHARE
    position = before + token
    live = (lane < TILE_TOKENS * SHARE) & (position < length)
    row = (first_row + token).to(tl.int64)
    head = kv_head * SHARE + lane % SHARE
    dim = tl.arange(0, PADDED_DIM)
    inside = live[:, None] & (dim < HEAD_DIM)[None, :]
    query = tl.load(
        queries + row[:, None] * query_stride + head[:, None] * HEAD_DIM + dim[None, :],
        mask=inside,
        other=0.0,
    )

    end = tl.minimum(before + offset + TILE_TOKENS, length)
    begin = 0
    if WINDOW > 0:
        begin = tl.maximum(before + offset + 1 - WINDOW, 0)
    if SPLIT:
        each = tl.cdiv(tl.cdiv(end - begin, TILE_KEYS), splits) * TILE_KEYS
        begin += split * each
        end = tl.minimum(begin + each, end)

    best = tl.full([TILE_ROWS], float("-inf"), tl.float32)
    total = tl.zeros([TILE_ROWS], tl.float32)
    sums = tl.zeros([TILE_ROWS, PADDED_DIM], tl.float32)
    to_base_2 = scale * 1.4426950408889634
    for start in range(begin, end, TILE_KEYS):
        place = start + tl.arange(0, TILE_KEYS)
        known = place < end
        block = tl.load(table + place // BLOCK_SIZE, mask=known, other=0).to(tl.int64)
        slot = block * BLOCK_SIZE + place % BLOCK_SIZE
        at = (slot * KV_HEADS + kv_head)[:, None] * HEAD_DIM + dim[None, :]
        there = known[:, None] & (dim < HEAD_DIM)[None, :]
        key = tl.load(keys + at, mask=there, other=0.0)
        value = tl.load(values + at, mask=there, other=0.0)

        score = tl.dot(query, tl.trans(key), input_precision="ieee") * to_base_2
        seen = known[None, :] & (place[None, :] <= position[:, None])
        if WINDOW > 0:
            seen = seen & (place[None, :] > position[:, None] - WINDOW)
        score = tl.where(seen, score, float("-inf"))
        better = tl.maximum(best, tl.max(score, 1))
        base = tl.where(better == float("-inf"), 0.0, better)
        share = tl.exp2(score - base[:, None])
        decay = tl.exp2(best - base)
        total = total * decay + tl.sum(share, 1)
        sums = sums * decay[:, None] + tl.dot(share.to(value.dtype), value, input_precision="ieee")
        best = better

    total = tl.where(total == 0.0, 1.0, total)
    result = sums / total[:, None]
    place_of = row * HEADS + head
    if SPLIT:
        place_of = place_of * splits + split
        tl.store(weights + place_of, best + tl.log2(total), mask=live)
    tl.store(
        output + place_of[:, None] * HEAD_DIM + dim[None, :], result.to(output.dtype.element_ty), mask=inside
    )


@triton.jit(do_not_specialize=["splits"])
def _merge_splits(
    partials,
    weights,
    output,
    splits,
    HEAD_DIM: tl.constexpr,
    PADDED_DIM: tl.constexpr,
    MOST_SPLITS: tl.constexpr,
):
    """One token and head: the mean of its splits' results, weighted by their sums of exponentials."""
    place = tl.program_id(0).to(tl.int64) * tl.num_programs(1) + tl.program_id(1)
    split = tl.arange(0, MOST_SPLITS)
    dim = tl.arange(0, PADDED_DIM)
    known = split < splits
    weight = tl.load(weights + place * splits + split, mask=known, other=float("-inf"))
    weight = tl.exp2(weight - tl.max(weight, 0))
    there = known[:, None] & (dim < HEAD_DIM)[None, :]
    at = (place * splits + split)[:, None] * HEAD_DIM + dim[None, :]
    parts = tl.load(partials + at, mask=there, other=0.0)
    result = tl.sum(parts * weight[:, None], 0) / tl.sum(weight, 0)
    tl.store(output + place * HEAD_DIM + dim, result.to(output.dtype.element_ty), mask=dim < HEAD_DIM)
