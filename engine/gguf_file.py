"""Reads GGUF files: metadata, where each tensor lies, and its values dequantised.

Only what an engine needs is parsed: `gguf.GGUFReader` spends seconds on making an array of every vocabulary
entry. Format: https://github.com/ggml-org/ggml/blob/master/docs/gguf.md
"""

from __future__ import annotations

import mmap
import struct
from dataclasses import dataclass
from pathlib import Path
from types import TracebackType
from typing import Final

import numpy as np
import numpy.typing as npt
from gguf.constants import GGML_QUANT_SIZES, GGMLQuantizationType
from gguf.quants import dequantize

from engine.errors import ModelDamagedError, ModelUnsupportedError

Scalar = int | float | bool | str

_SCALARS: Final = {
    0: "B", 1: "b", 2: "H", 3: "h", 4: "I", 5: "i", 6: "f", 7: "?", 10: "Q", 11: "q", 12: "d",
}  # fmt: skip
_STRING: Final = 8
_ARRAY: Final = 9
_MAX_ENTRIES: Final = 1 << 20
_MAX_DIMENSIONS: Final = 4


@dataclass(frozen=True, slots=True)
class TensorInfo:
    """One tensor: its shape as numpy has it (rows first), its GGML type, and its bytes in the file."""

    shape: tuple[int, ...]
    kind: GGMLQuantizationType
    offset: int
    size: int


class GGUFFile:
    """An open GGUF file; use as a context manager. Raises ModelDamagedError or ModelUnsupportedError."""

    def __init__(self, path: Path) -> None:
        self.path = path
        self.metadata: dict[str, Scalar] = {}
        self.tensors: dict[str, TensorInfo] = {}
        try:
            with path.open("rb") as file:
                self._map = mmap.mmap(file.fileno(), 0, access=mmap.ACCESS_READ)
        except (OSError, ValueError) as error:
            raise ModelDamagedError(f"can't read {path}: {error}") from error
        try:
            self._parse()
        except (struct.error, UnicodeDecodeError, IndexError, OverflowError) as error:
            self.close()
            raise ModelDamagedError(f"{path} is truncated or damaged; download it again") from error
        except ModelDamagedError:
            self.close()
            raise

    def __enter__(self) -> GGUFFile:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()

    def close(self) -> None:
        """Unmaps the file; arrays from `raw` must be gone by then."""
        self._map.close()

    def check_types(self) -> None:
        """Raises ModelUnsupportedError for a tensor that can't be dequantised, none of them read."""
        for kind in {info.kind for info in self.tensors.values()}:
            name = next(name for name, info in self.tensors.items() if info.kind is kind)
            self._dequantize(name, np.zeros((1, GGML_QUANT_SIZES[kind][1]), np.uint8))

    def raw(self, name: str) -> npt.NDArray[np.uint8]:
        """A copy of a tensor's bytes as they are stored."""
        info = self.tensors[name]
        return np.frombuffer(self._map[info.offset : info.offset + info.size], np.uint8)

    def values(self, name: str) -> npt.NDArray[np.float32]:
        """A tensor as fp32, in its shape."""
        info = self.tensors[name]
        data = self.raw(name)
        if info.kind is GGMLQuantizationType.F32:
            return data.view(np.float32).reshape(info.shape)
        if info.kind is GGMLQuantizationType.F16:
            return data.view(np.float16).astype(np.float32).reshape(info.shape)
        return self._dequantize(name, data.reshape(*info.shape[:-1], -1)).reshape(info.shape)

    def _dequantize(self, name: str, rows: npt.NDArray[np.uint8]) -> npt.NDArray[np.float32]:
        kind = self.tensors[name].kind
        try:
            with np.errstate(all="ignore"):  # scales that are no numbers are told of by whoever reads them
                return np.asarray(dequantize(rows, kind), np.float32)
        except NotImplementedError as error:
            raise ModelUnsupportedError(
                f"{self.path}: tensors of type {kind.name} are not supported ({name})"
            ) from error

    def _parse(self) -> None:
        if self._map[:4] != b"GGUF":
            raise ModelDamagedError(f"{self.path} is not a GGUF file")
        version, tensor_count, entry_count = struct.unpack_from("<IQQ", self._map, 4)
        if version not in (2, 3):
            raise ModelDamagedError(f"{self.path}: GGUF version {version} is unsupported; 2 and 3 are")
        if max(tensor_count, entry_count) > _MAX_ENTRIES:
            raise ModelDamagedError(f"{self.path} is damaged: its header counts {tensor_count} tensors")
        position = 24
        for _ in range(entry_count):
            key, position = self._string(position)
            (kind,) = struct.unpack_from("<I", self._map, position)
            value, position = self._value(kind, position + 4)
            if value is not None:
                self.metadata[key] = value
        infos = []
        for _ in range(tensor_count):
            name, position = self._string(position)
            info, position = self._tensor_info(name, position)
            infos.append((name, info))
        alignment = self.metadata.get("general.alignment", 32)
        if not isinstance(alignment, int) or alignment < 1:
            raise ModelDamagedError(f"{self.path} is damaged: alignment {alignment!r}")
        base = -(-position // alignment) * alignment
        for name, (shape, quantization, offset, size) in infos:
            if base + offset + size > len(self._map):
                raise ModelDamagedError(
                    f"{self.path} is truncated: {name} lies past its end; download it again"
                )
            self.tensors[name] = TensorInfo(shape, quantization, base + offset, size)

    def _tensor_info(
        self, name: str, position: int
    ) -> tuple[tuple[tuple[int, ...], GGMLQuantizationType, int, int], int]:
        (dimensions,) = struct.unpack_from("<I", self._map, position)
        if not 1 <= dimensions <= _MAX_DIMENSIONS:
            raise ModelDamagedError(f"{self.path} is damaged: {name} has {dimensions} dimensions")
        shape = struct.unpack_from(f"<{dimensions}Q", self._map, position + 4)[::-1]
        kind, offset = struct.unpack_from("<IQ", self._map, position + 4 + 8 * dimensions)
        try:
            quantization = GGMLQuantizationType(kind)
        except ValueError as error:
            raise ModelUnsupportedError(f"{self.path}: {name} has the unknown tensor type {kind}") from error
        block, block_bytes = GGML_QUANT_SIZES[quantization]
        elements = 1
        for extent in shape:
            elements *= extent
        if not elements or shape[-1] % block:
            raise ModelDamagedError(f"{self.path} is damaged: {name} has shape {shape}")
        size = elements // block * block_bytes
        return (shape, quantization, offset, size), position + 16 + 8 * dimensions

    def _string(self, position: int) -> tuple[str, int]:
        (length,) = struct.unpack_from("<Q", self._map, position)
        end = position + 8 + length
        if end > len(self._map):
            raise IndexError("a string ends past the file")
        return self._map[position + 8 : end].decode(), end

    def _value(self, kind: int, position: int) -> tuple[Scalar | None, int]:
        """A metadata value and where it ends; arrays are skipped."""
        if kind == _STRING:
            return self._string(position)
        if kind == _ARRAY:
            return None, self._skip_array(position)
        if kind not in _SCALARS:
            raise ModelDamagedError(f"{self.path} is damaged: metadata of type {kind}")
        (value,) = struct.unpack_from("<" + _SCALARS[kind], self._map, position)
        return value, position + struct.calcsize(_SCALARS[kind])

    def _skip_array(self, position: int) -> int:
        kind, count = struct.unpack_from("<IQ", self._map, position)
        position += 12
        if kind == _STRING:
            unpack = struct.Struct("<Q").unpack_from
            for _ in range(count):
                position += 8 + unpack(self._map, position)[0]
            return position
        if kind not in _SCALARS:
            raise ModelDamagedError(f"{self.path} is damaged: an array of type {kind}")
        return int(position + count * struct.calcsize(_SCALARS[kind]))
