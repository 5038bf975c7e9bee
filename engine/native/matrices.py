"""Packs a checkpoint's linear layers into the panels that decoder.cpp multiplies."""

from __future__ import annotations

import ctypes
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt
import torch
from gguf.constants import GGMLQuantizationType
from torch import Tensor

from engine.config import Precision
from engine.native.arena import Arena, Bytes
from engine.native.structures import BLOCK, BLOCK_BYTES, F16, F32, PANEL, Q4, Q8, Matrix
from engine.weights import StoredRows, Weights

_STORED_FORMATS = {
    GGMLQuantizationType.Q8_0: Q8,
    GGMLQuantizationType.Q4_0: Q4,
    GGMLQuantizationType.Q4_1: Q4,
}


@dataclass(frozen=True, slots=True)
class Packed:
    """A C matrix and the arrays it points into."""

    matrix: Matrix
    owners: tuple[object, ...]


class MatrixPacker:
    """Reads named projections of one checkpoint and packs them, several of one input as one."""

    def __init__(self, library: ctypes.CDLL, weights: Weights, precision: Precision, threads: int) -> None:
        self._library = library
        self._weights = weights
        self._precision = precision
        self._threads = threads
        self._arena = Arena()

    def pack(
        self, parts: dict[str, int], inputs: int, *, interleave: bool = False, has_bias: bool = False
    ) -> Packed:
        """One matrix from the projections `parts` (name -> outputs), one below the other.

        `interleave`: panels of the first and second part alternate, as the gated MLP wants them.
        """
        bias = self._bias(parts, interleave) if has_bias else None
        stored = self._stored(parts, inputs) if self._precision == "stored" else None
        if stored is not None:
            kind, rows = stored
            blocks = _repack(kind, rows)
            if interleave:
                blocks = _interleave(blocks)
            return _packed(kind, sum(parts.values()), inputs, self._arena.keep(blocks), bias)
        matrix = torch.cat(
            [self._weights.read(f"{name}.weight", (size, inputs)) for name, size in parts.items()]
        )
        if interleave:
            matrix = torch.from_numpy(_interleave_rows(matrix.numpy()))
        return self._pack_dense(matrix, bias)

    def pack_tensor(self, name: str, outputs: int, inputs: int) -> Packed:
        """One matrix from a single tensor, such as the head."""
        return self.pack({name.removesuffix(".weight"): outputs}, inputs)

    def _pack_dense(self, matrix: Tensor, bias: Bytes | None) -> Packed:
        outputs, inputs = matrix.shape
        kind = F16 if self._fits_half(matrix) else F32
        panels, blocks = _panels(outputs), -(-inputs // BLOCK)
        data = self._arena.take(panels * blocks * BLOCK_BYTES[kind])
        contiguous = matrix.contiguous()
        self._library.pack(
            ctypes.c_void_p(contiguous.data_ptr()),
            ctypes.c_int32(kind),
            ctypes.c_int32(outputs),
            ctypes.c_int32(inputs),
            ctypes.c_int32(panels),
            ctypes.c_int32(self._threads),
            ctypes.c_void_p(data.ctypes.data),
        )
        return _packed(kind, outputs, inputs, data, bias)

    def _fits_half(self, matrix: Tensor) -> bool:
        """Whether to round to fp16: when asked to, or when that changes nothing."""
        if self._precision == "stored":
            return torch.equal(matrix, matrix.half().float())
        return self._precision == "fp16"

    def _stored(self, parts: dict[str, int], inputs: int) -> tuple[int, list[StoredRows]] | None:
        """The quantised rows of all parts, if all have one format that the kernels run."""
        rows = [self._weights.stored(f"{name}.weight", (size, inputs)) for name, size in parts.items()]
        present = [part for part in rows if part is not None]
        formats = {_STORED_FORMATS.get(part.kind) for part in present}
        if len(present) != len(rows) or len(formats) != 1 or any(size % PANEL for size in parts.values()):
            return None
        (kind,) = formats
        return None if kind is None else (kind, present)

    def _bias(self, parts: dict[str, int], interleave: bool) -> Bytes | None:
        names = [f"{name}.bias" for name in parts]
        if not any(self._weights.has(name) for name in names):
            return None
        biases = [
            self._weights.read(name, (size,)).numpy()
            if self._weights.has(name)
            else np.zeros(size, np.float32)
            for name, size in zip(names, parts.values(), strict=True)
        ]
        joined = np.concatenate(biases)
        if interleave:
            joined = _interleave_rows(joined[:, None])[:, 0]
        padded = np.zeros(_panels(len(joined)) * PANEL, np.float32)
        padded[: len(joined)] = joined
        return padded.view(np.uint8)


def _panels(outputs: int) -> int:
    """Panels for that many outputs; the kernels take them in pairs."""
    return -(-outputs // (2 * PANEL)) * 2


def _packed(kind: int, outputs: int, inputs: int, data: Bytes, bias: Bytes | None) -> Packed:
    matrix = Matrix(
        format=kind,
        outputs=outputs,
        inputs=inputs,
        panels=_panels(outputs),
        data=data.ctypes.data,
        bias=bias.ctypes.data if bias is not None else None,
    )
    return Packed(matrix, (data, bias))


def _interleave_rows(matrix: npt.NDArray[np.float32]) -> npt.NDArray[np.float32]:
    """[2 x n, k], gates above ups -> panels of 16 rows alternately of either."""
    half = matrix.shape[0] // 2
    halves = matrix.reshape(2, half // PANEL, PANEL, -1)
    return np.ascontiguousarray(halves.swapaxes(0, 1)).reshape(matrix.shape)


def _interleave(panels: Bytes) -> Bytes:
    """The same on packed panels [2 x n, ...]."""
    halves = panels.reshape(2, panels.shape[0] // 2, -1)
    return np.ascontiguousarray(halves.swapaxes(0, 1))


def _repack(kind: int, parts: Sequence[StoredRows]) -> Bytes:
    """GGML rows of blocks -> panels of 16 rows: per block all scales, then the quants of each byte position.

    Q4_0 is d (q - 8), so its offset is -8 d, which fp16 holds exactly.
    """
    panels = np.concatenate([_repack_part(kind, part) for part in parts])
    return np.pad(panels, ((0, len(panels) % 2), (0, 0)))


def _repack_part(kind: int, part: StoredRows) -> Bytes:
    outputs, row_bytes = part.data.shape
    size = {GGMLQuantizationType.Q8_0: 34, GGMLQuantizationType.Q4_0: 18, GGMLQuantizationType.Q4_1: 20}[
        part.kind
    ]
    blocks = part.data.reshape(outputs // PANEL, PANEL, row_bytes // size, size).transpose(0, 2, 1, 3)
    header = 4 if part.kind is GGMLQuantizationType.Q4_1 else 2
    scales = np.ascontiguousarray(blocks[..., :2])
    pieces = [scales.reshape(*scales.shape[:2], -1)]
    if kind == Q4:
        if part.kind is GGMLQuantizationType.Q4_1:
            offsets = np.ascontiguousarray(blocks[..., 2:4])
        else:
            offsets = (scales.view(np.float16) * np.float16(-8)).view(np.uint8)
        pieces.append(offsets.reshape(*scales.shape[:2], -1))
    quants = blocks[..., header:].swapaxes(2, 3)
    pieces.append(quants.reshape(*scales.shape[:2], -1))
    return np.ascontiguousarray(np.concatenate(pieces, axis=2)).reshape(outputs // PANEL, -1)
