"""Attention over the paged KV cache in plain PyTorch.

One step's tokens are laid out sequence by sequence. Sequences with a single token (streams) are padded to
the longest of a group of similar lengths and computed together; prompts are computed one by one.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from itertools import groupby

import torch
from torch import Tensor
from torch.nn import functional

from engine.kv_cache import KVCache
from engine.span import Span


@dataclass(frozen=True, slots=True)
class _Group:
    """Rows of a step that are computed in one call: `rows` [n x count], `slots` [n, keys]."""

    sequences: int
    count: int
    rows: Tensor
    slots: Tensor
    positions: Tensor
    lengths: Tensor


class AttentionPlan:
    """Where one step's tokens are written and which slots each of them attends to; shared by all layers."""

    def __init__(self, spans: Sequence[Span], block_size: int) -> None:
        tables = [_slot_table(span, block_size) for span in spans]
        self.positions = torch.cat([torch.arange(span.computed, span.length) for span in spans])
        self.slots = torch.cat(
            [table[span.computed : span.length] for table, span in zip(tables, spans, strict=True)]
        )
        starts = [0]
        for span in spans:
            starts.append(starts[-1] + span.count)
        order = sorted(range(len(spans)), key=lambda i: (spans[i].count, _bucket(spans[i].length)))
        self._groups = [
            _group([(spans[i], tables[i], starts[i]) for i in members])
            for _, members in groupby(order, key=lambda i: _group_key(i, spans[i]))
        ]
        self._masks: dict[tuple[int, int], Tensor | None] = {}

    def attend(self, layer: int, queries: Tensor, cache: KVCache, window: int) -> Tensor:
        """Softmax attention of queries [tokens, heads, head_dim] over their own sequences' cached slots.

        `window` limits a token to that many last positions, itself included; 0 is no limit.
        """
        result = torch.empty_like(queries)
        keys, values = cache.keys[layer], cache.values[layer]
        kv_heads = keys.shape[1]
        for index, group in enumerate(self._groups):
            chosen = queries.index_select(0, group.rows)
            grouped = _fold_heads(chosen, group, kv_heads)
            flat = group.slots.flatten()
            shape = (group.sequences, -1, kv_heads, keys.shape[2])
            output = functional.scaled_dot_product_attention(
                grouped,
                keys.index_select(0, flat).view(shape).transpose(1, 2),
                values.index_select(0, flat).view(shape).transpose(1, 2),
                attn_mask=self._mask(index, group, window, queries.shape[1] // kv_heads),
            )
            result.index_copy_(0, group.rows, _unfold_heads(output, group))
        return result

    def _mask(self, index: int, group: _Group, window: int, share: int) -> Tensor | None:
        """Which keys each query may see, bool [sequences, 1, share x count, keys]."""
        key = (index, window)
        if key not in self._masks:
            seen = torch.arange(group.slots.shape[1])
            allowed = seen <= group.positions[:, :, None]
            if window:
                allowed &= seen > group.positions[:, :, None] - window
            whole = bool(allowed.all())
            self._masks[key] = None if whole else allowed.repeat(1, share, 1).unsqueeze(1)
        return self._masks[key]


def _slot_table(span: Span, block_size: int) -> Tensor:
    """The slots of a sequence's tokens [length], in order."""
    blocks = torch.tensor(span.blocks, dtype=torch.int64)
    return (blocks[:, None] * block_size + torch.arange(block_size)).flatten()[: span.length]


def _bucket(length: int) -> int:
    """Streams whose lengths round up to the same quarter of a power of two are padded together."""
    step = max(64, 1 << max(0, length.bit_length() - 3))
    return -(-length // step)


def _group_key(index: int, span: Span) -> tuple[int, int]:
    return (1, _bucket(span.length)) if span.count == 1 else (span.count, -1 - index)


def _group(members: Sequence[tuple[Span, Tensor, int]]) -> _Group:
    count = members[0][0].count
    longest = max(span.length for span, _, _ in members)
    slots = torch.zeros(len(members), longest, dtype=torch.int64)
    for row, (span, table, _) in enumerate(members):
        slots[row, : span.length] = table
    return _Group(
        sequences=len(members),
        count=count,
        rows=torch.cat([torch.arange(start, start + count) for _, _, start in members]),
        slots=slots,
        positions=torch.stack([torch.arange(span.computed, span.length) for span, _, _ in members]),
        lengths=torch.tensor([span.length for span, _, _ in members]),
    )


def _fold_heads(queries: Tensor, group: _Group, kv_heads: int) -> Tensor:
    """[n x count, heads, d] -> [n, kv heads, share x count, d]: a KV head's query heads become rows."""
    _, heads, size = queries.shape
    share = heads // kv_heads
    folded = queries.view(group.sequences, group.count, kv_heads, share, size).permute(0, 2, 3, 1, 4)
    return folded.reshape(group.sequences, kv_heads, share * group.count, size)


def _unfold_heads(output: Tensor, group: _Group) -> Tensor:
    """The inverse of _fold_heads."""
    sequences, kv_heads, rows, size = output.shape
    share = rows // group.count
    unfolded = output.view(sequences, kv_heads, share, group.count, size).permute(0, 3, 1, 2, 4)
    return unfolded.reshape(sequences * group.count, kv_heads * share, size)
