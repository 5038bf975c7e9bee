"""One step's work as a single int32 array, so that one copy brings it to the device."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Final

import numpy as np
import numpy.typing as npt
import torch
from torch import Tensor

from engine.span import Span

Ints = npt.NDArray[np.int32]

ALIGNMENT: Final = 4
"""Ints; arrays begin at multiples of 16 bytes, or Triton would compile a kernel for each misalignment."""


@dataclass(frozen=True, slots=True)
class StepShape:
    """How many of each thing a step has; it decides where each array lies."""

    tokens: int
    sequences: int
    tiles: int
    rows: int

    def offsets(self) -> dict[str, tuple[int, int]]:
        """Where each array but the block tables begins and ends; the tables follow the last."""
        sizes = {
            "token_ids": self.tokens,
            "positions": self.tokens,
            "slots": self.tokens,
            "first_rows": self.sequences,
            "computed": self.sequences,
            "lengths": self.sequences,
            "table_starts": self.sequences,
            "tile_sequences": self.tiles,
            "tile_offsets": self.tiles,
            "rows": self.rows,
        }
        result = {}
        start = 0
        for name, size in sizes.items():
            result[name] = (start, start + size)
            start += -(-size // ALIGNMENT) * ALIGNMENT
        result["tables"] = (start, start)
        return result


class Step:
    """The arrays of one step, views of one int32 tensor on the device.

    A tile is a run of at most `tile_tokens` of a sequence's new tokens, from its offset on.
    `longest`: most tokens that a sequence may have, this step's included.
    """

    def __init__(
        self, ints: Tensor, shape: StepShape, *, block_size: int, tile_tokens: int, longest: int
    ) -> None:
        offsets = shape.offsets()

        def view(name: str) -> Tensor:
            start, end = offsets[name]
            return ints[start:end]

        self.shape = shape
        self.block_size = block_size
        self.tile_tokens = tile_tokens
        self.longest = longest
        self.token_ids, self.positions, self.slots = view("token_ids"), view("positions"), view("slots")
        self.first_rows, self.computed, self.lengths = view("first_rows"), view("computed"), view("lengths")
        self.table_starts = view("table_starts")
        self.tile_sequences, self.tile_offsets = view("tile_sequences"), view("tile_offsets")
        self.rows = view("rows")
        self.tables = ints[offsets["tables"][0] :]


def pack_step(
    token_ids: Sequence[int],
    spans: Sequence[Span],
    rows: Sequence[int],
    *,
    block_size: int,
    tile_tokens: int,
) -> tuple[Ints, StepShape]:
    """Lays a step out; `tile_tokens`: most new tokens in a tile."""
    counts = [span.count for span in spans]
    tiles = [
        (sequence, offset) for sequence, count in enumerate(counts) for offset in range(0, count, tile_tokens)
    ]
    tables = [np.asarray(span.blocks[: -(-span.length // block_size)], np.int32) for span in spans]
    positions = [np.arange(span.computed, span.length, dtype=np.int32) for span in spans]
    slots = [
        table[place // block_size] * block_size + place % block_size
        for table, place in zip(tables, positions, strict=True)
    ]
    shape = StepShape(len(token_ids), len(spans), len(tiles), len(rows))
    offsets = shape.offsets()
    ints = np.zeros(offsets["tables"][0] + sum(map(len, tables)), np.int32)

    def put(name: str, values: npt.ArrayLike) -> None:
        start, end = offsets[name]
        ints[start:end] = values

    put("token_ids", token_ids)
    put("positions", np.concatenate(positions))
    put("slots", np.concatenate(slots))
    put("first_rows", _starts(counts))
    put("computed", [span.computed for span in spans])
    put("lengths", [span.length for span in spans])
    put("table_starts", _starts([len(table) for table in tables]))
    put("tile_sequences", [sequence for sequence, _ in tiles])
    put("tile_offsets", [offset for _, offset in tiles])
    put("rows", rows)
    ints[offsets["tables"][0] :] = np.concatenate(tables)
    return ints, shape


def to_device(ints: Ints, device: torch.device) -> Tensor:
    """A new tensor there; the copy to a GPU doesn't wait for what runs on it."""
    tensor = torch.from_numpy(ints)
    if device.type == "cuda":
        return tensor.pin_memory().to(device, non_blocking=True)
    return tensor.to(device)


def _starts(sizes: Sequence[int]) -> Ints:
    """Where each of a row of runs begins."""
    return np.concatenate(([0], np.cumsum(sizes)[:-1])).astype(np.int32)
