"""The compiled decoder behind the same interface as the PyTorch one."""

from __future__ import annotations

import ctypes
import weakref
from collections.abc import Sequence

import numpy as np
import torch
from torch import Tensor

from engine.config import EngineConfig
from engine.errors import EngineConfigError
from engine.model import RotaryTable
from engine.model_config import ModelConfig
from engine.native.library import NativeUnavailable, load_library
from engine.native.matrices import MatrixPacker
from engine.native.plan import AttentionPieces, plan_attention
from engine.native.structures import PANEL, Layer, Model, Step
from engine.span import Span
from engine.weights import Weights

MAX_HEAD_DIM = 256


class NativeDecoder:
    """A whole decoder with its KV cache, one foreign call per step.

    Raises NativeUnavailable for shapes the kernels don't run and where they can't be compiled.
    """

    backend = "native"

    def __init__(self, config: ModelConfig, weights: Weights, options: EngineConfig, blocks: int) -> None:
        _check_shape(config, options)
        library = load_library()
        self._forward = library.forward
        self._config = config
        self._block_size = options.block_size
        self._units = 4 * options.resolved_threads()
        self._owners: list[object] = []
        weakref.finalize(self, library.rest)
        self._embedding = weights.read(
            "model.embed_tokens.weight", (config.vocabulary_size, config.hidden_size)
        )
        packer = MatrixPacker(library, weights, options.precision, options.resolved_threads())
        self._layers = (Layer * config.layers)(
            *(self._layer(index, weights, packer) for index in range(config.layers))
        )
        head = "model.embed_tokens.weight" if config.tied_head else "lm_head.weight"
        packed_head = packer.pack_tensor(head, config.vocabulary_size, config.hidden_size)
        self._owners.append(packed_head)
        rotary = RotaryTable(config, weights.rope_factors())
        half = config.head_dim // 2
        self._model = Model(
            layers=config.layers,
            hidden=config.hidden_size,
            inner=config.intermediate_size,
            heads=config.heads,
            kv_heads=config.kv_heads,
            head_dim=config.head_dim,
            block_size=options.block_size,
            threads=options.resolved_threads(),
            epsilon=config.norm_epsilon,
            layer=self._layers,
            final_norm=self._keep(weights.read("model.norm.weight", (config.hidden_size,))),
            cosines=self._keep(rotary.cos[:, :half].contiguous()),
            sines=self._keep(rotary.sin[:, half:].contiguous()),
            head=packed_head.matrix,
        )
        self._layer_stride = blocks * options.block_size * config.kv_size
        try:
            self._keys = torch.zeros(config.layers * self._layer_stride)
            self._values = torch.zeros(config.layers * self._layer_stride)
        except RuntimeError as error:
            raise EngineConfigError(
                f"no memory for a KV cache of {blocks} blocks; set kv_memory_bytes lower"
            ) from error
        self._scratch: dict[str, Tensor] = {}

    def forward(self, token_ids: Sequence[int], spans: Sequence[Span], rows: Sequence[int]) -> Tensor:
        """Computes a step's tokens, sequence by sequence; returns the logits [len(rows), vocabulary]."""
        config = self._config
        count = len(token_ids)
        plan = plan_attention(spans, self._block_size, config.heads // config.kv_heads, self._units)
        arrays = _Arrays(plan, rows)
        x = self._embedding[torch.tensor(token_ids)]
        logits = torch.empty(len(rows), config.vocabulary_size)
        step = Step(
            rows=count,
            pieces=len(plan.pieces),
            merges=len(plan.merge_tokens),
            sampled=len(rows),
            **arrays.pointers(),
            x=x.data_ptr(),
            normed=self._room("normed", count * config.hidden_size),
            qkv=self._room("qkv", count * (config.query_size + 2 * config.kv_size)),
            attended=self._room("attended", count * config.query_size),
            gated=self._room("gated", count * config.intermediate_size),
            partials=self._room("partials", plan.partials * config.heads * (config.head_dim + 2)),
            logits=logits.data_ptr(),
            keys=self._keys.data_ptr(),
            values=self._values.data_ptr(),
            layer_stride=self._layer_stride,
        )
        self._forward(ctypes.byref(self._model), ctypes.byref(step))
        return logits

    def copy_block(self, source: int, target: int) -> None:
        """Copies a KV block."""
        for pool in (self._keys, self._values):
            blocks = pool.view(self._config.layers, -1, self._block_size * self._config.kv_size)
            blocks[:, target] = blocks[:, source]

    def _room(self, name: str, size: int) -> int:
        """The address of scratch memory of at least `size` floats."""
        tensor = self._scratch.get(name)
        if tensor is None or tensor.numel() < size:
            tensor = self._scratch[name] = torch.empty(max(size, 1))
        return tensor.data_ptr()

    def _keep(self, tensor: Tensor) -> int:
        self._owners.append(tensor)
        return tensor.data_ptr()

    def _layer(self, index: int, weights: Weights, packer: MatrixPacker) -> Layer:
        config = self._config
        prefix = f"model.layers.{index}."
        attention, mlp = f"{prefix}self_attn.", f"{prefix}mlp."
        query, kv, hidden = config.query_size, config.kv_size, config.hidden_size
        qkv = {f"{attention}q_proj": query, f"{attention}k_proj": kv, f"{attention}v_proj": kv}
        gate_up = dict.fromkeys((f"{mlp}gate_proj", f"{mlp}up_proj"), config.intermediate_size)
        matrices = {
            "qkv": packer.pack(qkv, hidden, has_bias=True),
            "output": packer.pack({f"{attention}o_proj": hidden}, query, has_bias=True),
            "gate_up": packer.pack(gate_up, hidden, interleave=True, has_bias=True),
            "down": packer.pack({f"{mlp}down_proj": hidden}, config.intermediate_size, has_bias=True),
        }
        self._owners.extend(matrices.values())
        norms = {
            "input_norm": self._keep(weights.read(f"{prefix}input_layernorm.weight", (hidden,))),
            "mlp_norm": self._keep(weights.read(f"{prefix}post_attention_layernorm.weight", (hidden,))),
        }
        if config.query_key_norm:
            size = (config.head_dim,)
            norms["query_norm"] = self._keep(weights.read(f"{attention}q_norm.weight", size))
            norms["key_norm"] = self._keep(weights.read(f"{attention}k_norm.weight", size))
        packed = {name: matrix.matrix for name, matrix in matrices.items()}
        return Layer(**norms, **packed, window=config.windows[index])


class _Arrays:
    """A plan as the int32 arrays that the call points to; alive as long as the call."""

    def __init__(self, plan: AttentionPieces, rows: Sequence[int]) -> None:
        self._arrays = {
            "positions": plan.positions,
            "slots": plan.slots,
            "tables": plan.tables,
            "tokens": np.array(plan.tokens, np.int32),
            "piece": np.array(plan.pieces, np.int32),
            "merge_tokens": np.array(plan.merge_tokens, np.int32),
            "merge_begin": np.array(plan.merge_begin, np.int32),
            "merge_partials": np.array(plan.merge_partials, np.int32),
            "sampled_rows": np.array(rows, np.int32),
        }

    def pointers(self) -> dict[str, int]:
        return {name: array.ctypes.data for name, array in self._arrays.items()}


def _check_shape(config: ModelConfig, options: EngineConfig) -> None:
    if options.block_size % PANEL:
        raise NativeUnavailable(f"block_size is no multiple of {PANEL}")
    if config.intermediate_size % PANEL or config.head_dim > MAX_HEAD_DIM:
        raise NativeUnavailable("the kernels don't run this model's shape")
