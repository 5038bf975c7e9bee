"""Reads a checkpoint's tensors as fp32 under the names transformers gives them."""

from __future__ import annotations

import json
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final, Protocol

import numpy as np
import numpy.typing as npt
import torch
from gguf.constants import GGMLQuantizationType
from safetensors import SafetensorError, safe_open
from torch import Tensor

from engine.errors import ModelDamagedError
from engine.gguf_file import GGUFFile
from engine.model_config import ModelConfig
from engine.model_files import ModelFiles
from engine.model_source import SourceKind

_GGUF_LAYER_NAMES: Final = {
    "self_attn.q_proj": "attn_q",
    "self_attn.k_proj": "attn_k",
    "self_attn.v_proj": "attn_v",
    "self_attn.o_proj": "attn_output",
    "self_attn.q_norm": "attn_q_norm",
    "self_attn.k_norm": "attn_k_norm",
    "mlp.gate_proj": "ffn_gate",
    "mlp.up_proj": "ffn_up",
    "mlp.down_proj": "ffn_down",
    "input_layernorm": "attn_norm",
    "post_attention_layernorm": "ffn_norm",
}
_GGUF_NAMES: Final = {
    "model.embed_tokens.weight": "token_embd.weight",
    "model.norm.weight": "output_norm.weight",
    "lm_head.weight": "output.weight",
}


@dataclass(frozen=True, slots=True)
class StoredRows:
    """A quantised matrix: bytes [outputs, bytes per row] of GGML blocks."""

    kind: GGMLQuantizationType
    data: npt.NDArray[np.uint8]


class Weights(Protocol):
    """The tensors of one open checkpoint."""

    def has(self, name: str) -> bool:
        """Whether the checkpoint holds that tensor."""

    def read(self, name: str, shape: tuple[int, ...]) -> Tensor:
        """A tensor as fp32. Raises ModelDamagedError if it is missing, misshapen or not finite."""

    def stored(self, name: str, shape: tuple[int, ...]) -> StoredRows | None:
        """A quantised matrix as it is stored; None if it isn't quantised. Checked as by read()."""

    def rope_factors(self) -> Tensor | None:
        """Divisors of the rotary frequencies, if the checkpoint stores any."""


@contextmanager
def open_weights(files: ModelFiles) -> Iterator[Weights]:
    """Opens a checkpoint of either kind."""
    if files.source.kind is SourceKind.GGUF:
        with GGUFFile(files.source.path) as file:
            yield GGUFWeights(file, files.config)
    else:
        yield FolderWeights(files.source.path, files.source.weight_files())


class GGUFWeights:
    """Tensors of a GGUF file, dequantised."""

    def __init__(self, file: GGUFFile, config: ModelConfig) -> None:
        self._file = file
        self._config = config

    def has(self, name: str) -> bool:
        """Whether the file holds that tensor."""
        return _gguf_name(name) in self._file.tensors

    def read(self, name: str, shape: tuple[int, ...]) -> Tensor:
        """A tensor as fp32, with the rows of Llama's queries and keys in transformers' order."""
        stored = self._find(name, shape)
        return _finite(name, torch.from_numpy(np.array(self._in_order(name, self._file.values(stored)))))

    def stored(self, name: str, shape: tuple[int, ...]) -> StoredRows | None:
        """A quantised matrix as it is stored, its rows in the same order as read() has them."""
        stored = self._find(name, shape)
        kind = self._file.tensors[stored].kind
        if kind in (GGMLQuantizationType.F32, GGMLQuantizationType.F16):
            return None
        _finite(name, torch.from_numpy(np.array(self._file.values(stored))))
        rows = self._file.raw(stored).reshape(shape[0], -1)
        return StoredRows(kind, self._in_order(name, rows))

    def _find(self, name: str, shape: tuple[int, ...]) -> str:
        stored = _gguf_name(name)
        if stored not in self._file.tensors:
            raise _missing(name, self._file.path)
        found = self._file.tensors[stored].shape
        if found != shape:
            raise _misshapen(name, found, shape)
        return stored

    def _in_order(self, name: str, rows: npt.NDArray[Any]) -> npt.NDArray[Any]:
        if self._config.architecture in ("llama", "mistral"):
            if ".q_proj." in name:
                return _unpermute(rows, self._config.heads)
            if ".k_proj." in name:
                return _unpermute(rows, self._config.kv_heads)
        return rows

    def rope_factors(self) -> Tensor | None:
        """The divisors of each rotary frequency that converters of Llama 3.1 store as a tensor."""
        if "rope_freqs.weight" not in self._file.tensors:
            return None
        return torch.from_numpy(np.array(self._file.values("rope_freqs.weight")))


class FolderWeights:
    """Tensors of a Hugging Face folder, over any number of safetensors files."""

    def __init__(self, folder: Path, files: list[Path]) -> None:
        self._folder = folder
        self._files: dict[str, Path] = {}
        for path in files:
            try:
                with safe_open(path, framework="pt") as file:
                    self._files.update((name, path) for name in file.keys())  # noqa: SIM118 - not a mapping
            except (SafetensorError, OSError) as error:
                raise ModelDamagedError(
                    f"{path} is truncated or damaged: {error}; download it again"
                ) from error
        index = folder / "model.safetensors.index.json"
        if index.is_file():
            self._check_index(index)

    def has(self, name: str) -> bool:
        """Whether any file holds that tensor."""
        return name in self._files

    def read(self, name: str, shape: tuple[int, ...]) -> Tensor:
        """A tensor as fp32."""
        if name not in self._files:
            raise _missing(name, self._folder)
        with safe_open(self._files[name], framework="pt") as file:
            tensor: Tensor = file.get_tensor(name)
        if tuple(tensor.shape) != shape:
            raise _misshapen(name, tuple(tensor.shape), shape)
        return _finite(name, tensor.to(torch.float32))

    def stored(self, name: str, shape: tuple[int, ...]) -> StoredRows | None:
        """None: folders of quantised weights are not supported."""
        return None

    def rope_factors(self) -> Tensor | None:
        """None: a folder's config says how frequencies are scaled."""
        return None

    def _check_index(self, index: Path) -> None:
        try:
            shards = set(json.loads(index.read_text("utf-8"))["weight_map"].values())
        except (OSError, ValueError, KeyError, AttributeError) as error:
            raise ModelDamagedError(f"{index} is damaged: {error!r}") from error
        absent = sorted(shard for shard in shards if not (self._folder / str(shard)).is_file())
        if absent:
            raise ModelDamagedError(
                f"{self._folder} lacks {', '.join(absent)}; download the whole model folder"
            )


def _gguf_name(name: str) -> str:
    if name in _GGUF_NAMES:
        return _GGUF_NAMES[name]
    _, _, layer, rest = name.split(".", 3)
    module, _, kind = rest.rpartition(".")
    return f"blk.{layer}.{_GGUF_LAYER_NAMES[module]}.{kind}"


def _unpermute(values: npt.NDArray[Any], heads: int) -> npt.NDArray[Any]:
    """Undoes GGUF's interleaving of each head's two rotated halves; works on weights and biases."""
    half = values.shape[0] // heads // 2
    return values.reshape(heads, half, 2, *values.shape[1:]).swapaxes(1, 2).reshape(values.shape)


def _missing(name: str, path: Path) -> ModelDamagedError:
    return ModelDamagedError(f"{path} lacks the tensor {name}; download it again")


def _misshapen(name: str, found: tuple[int, ...], expected: tuple[int, ...]) -> ModelDamagedError:
    return ModelDamagedError(f"tensor {name} has shape {found}, but the config says {expected}")


def _finite(name: str, tensor: Tensor) -> Tensor:
    if not torch.isfinite(tensor.sum()) and not torch.isfinite(tensor).all():
        raise ModelDamagedError(f"tensor {name} holds NaN or infinite values; download the model again")
    return tensor
