"""Cuts a step's attention into pieces: prompts by rows, long streams by keys, shared prefixes read once."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Sequence
from dataclasses import dataclass, field

import numpy as np
import numpy.typing as npt

from engine.span import Span

Ints = npt.NDArray[np.int32]

PIECE_ROWS = 24
"""Query heads x tokens that share one pass over the keys."""

SHARED_KEYS = 64
"""A common prefix of streams shorter than this is not worth a merge."""

SPLIT_KEYS = 512
"""Keys per piece when one stream is cut to keep all threads busy."""


@dataclass
class AttentionPieces:
    """A step's attention as decoder.cpp's Piece and merge arrays."""

    positions: Ints
    slots: Ints
    tables: Ints
    tokens: list[int] = field(default_factory=list)
    pieces: list[tuple[int, int, int, int, int, int]] = field(default_factory=list)
    merge_tokens: list[int] = field(default_factory=list)
    merge_begin: list[int] = field(default_factory=lambda: [0])
    merge_partials: list[int] = field(default_factory=list)
    partials: int = 0


def plan_attention(spans: Sequence[Span], block_size: int, share: int, units: int) -> AttentionPieces:
    """Plans a step. `share`: query heads per KV head; `units`: streams that keep all threads busy."""
    tables = [np.asarray(span.blocks, np.int32) for span in spans]
    positions = [np.arange(span.computed, span.length, dtype=np.int32) for span in spans]
    slots = [
        table[place // block_size] * block_size + place % block_size
        for table, place in zip(tables, positions, strict=True)
    ]
    plan = AttentionPieces(np.concatenate(positions), np.concatenate(slots), np.concatenate(tables))
    streams: list[_Stream] = []
    row = offset = 0
    for span, table in zip(spans, tables, strict=True):
        if span.count == 1:
            streams.append(_Stream(row, offset, span.length, table))
        else:
            _add_prompt(plan, span, row, offset, max(1, PIECE_ROWS // share))
        row += span.count
        offset += len(table)
    for group in _groups(streams):
        _add_streams(plan, group, block_size, share, split=len(streams) < units)
    return plan


@dataclass(frozen=True, slots=True)
class _Stream:
    """One sequence with a single new token, at `row` of the step; its table starts at `offset`."""

    row: int
    offset: int
    length: int
    table: Ints


def _add_prompt(plan: AttentionPieces, span: Span, row: int, offset: int, height: int) -> None:
    for start in range(0, span.count, height):
        end = min(start + height, span.count)
        begin = len(plan.tokens)
        plan.tokens.extend(range(row + start, row + end))
        plan.pieces.append((begin, len(plan.tokens), offset, 0, span.computed + end, -1))


def _groups(streams: Sequence[_Stream]) -> list[list[_Stream]]:
    """Streams by their first block: only those can share more."""
    groups: dict[int, list[_Stream]] = defaultdict(list)
    for stream in streams:
        groups[int(stream.table[0])].append(stream)
    return list(groups.values())


def _add_streams(
    plan: AttentionPieces, group: Sequence[_Stream], block_size: int, share: int, split: bool
) -> None:
    """Streams of one first block: their common prefix in shared pieces, then each one's own keys."""
    shared = _common_blocks(group) * block_size if len(group) > 1 else 0
    if shared < SHARED_KEYS:
        shared = 0
    partials: list[list[int]] = [[] for _ in group]
    height = max(1, PIECE_ROWS // share)
    for start in range(0, len(group) if shared else 0, height):
        members = range(start, min(start + height, len(group)))
        begin = len(plan.tokens)
        plan.tokens.extend(group[index].row for index in members)
        plan.pieces.append((begin, len(plan.tokens), group[start].offset, 0, shared, plan.partials))
        for index in members:
            partials[index].append(plan.partials)
            plan.partials += 1
    for stream, mine in zip(group, partials, strict=True):
        step = SPLIT_KEYS if split else stream.length
        ranges = [(key, min(key + step, stream.length)) for key in range(shared, stream.length, step)]
        begin = len(plan.tokens)
        plan.tokens.append(stream.row)
        for low, high in ranges:
            whole = not mine and len(ranges) == 1
            plan.pieces.append((begin, begin + 1, stream.offset, low, high, -1 if whole else plan.partials))
            if not whole:
                mine.append(plan.partials)
                plan.partials += 1
        if mine:
            plan.merge_tokens.append(stream.row)
            plan.merge_partials.extend(mine)
            plan.merge_begin.append(len(plan.merge_partials))


def _common_blocks(group: Sequence[_Stream]) -> int:
    """How many leading blocks all streams of a group share, their last blocks left out."""
    first = group[0].table
    common = min(len(stream.table) for stream in group) - 1
    for stream in group[1:]:
        unequal = np.flatnonzero(first[:common] != stream.table[:common])
        if len(unequal):
            common = int(unequal[0])
    return common
