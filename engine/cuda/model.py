"""The Llama-family decoder as a GPU wants it: 16-bit weights, an fp32 residual, few launches a layer."""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor
from torch.nn import functional

from engine.cuda.kernels import Attend, HeadNorms, Kernels
from engine.cuda.step import Step
from engine.kv_cache import KVCache
from engine.model import read_fused
from engine.model_config import ModelConfig
from engine.weights import Weights


@dataclass(frozen=True, slots=True)
class Linear:
    """A linear layer: weight [outputs, inputs], bias [outputs]."""

    weight: Tensor
    bias: Tensor | None = None

    def __call__(self, x: Tensor) -> Tensor:
        """x [tokens, inputs] -> [tokens, outputs]."""
        return functional.linear(x, self.weight, self.bias)


@dataclass(frozen=True, slots=True)
class Layer:
    """One decoder layer's weights; norms are fp32."""

    input_norm: Tensor
    mlp_norm: Tensor
    head_norms: HeadNorms | None
    qkv: Linear
    output: Linear
    gate_up: Linear
    down: Linear
    window: int


class WeightReader:
    """Reads a checkpoint's tensors onto the device, one layer at a time."""

    def __init__(
        self, config: ModelConfig, weights: Weights, device: torch.device, dtype: torch.dtype
    ) -> None:
        self._config = config
        self._weights = weights
        self._device = device
        self._dtype = dtype

    def matrix(self, name: str, outputs: int, inputs: int) -> Tensor:
        """A matrix in the model's type."""
        return self._place(self._weights.read(name, (outputs, inputs)))

    def norm(self, name: str, size: int) -> Tensor:
        """A norm's weights, fp32."""
        return self._weights.read(name, (size,)).to(self._device)

    def layer(self, index: int) -> Layer:
        """The weights of one layer, what has the same input fused into one matrix."""
        config = self._config
        prefix = f"model.layers.{index}."
        hidden, inner = config.hidden_size, config.intermediate_size
        query, kv = config.query_size, config.kv_size
        attention = {"self_attn.q_proj": query, "self_attn.k_proj": kv, "self_attn.v_proj": kv}
        head_norms = None
        if config.query_key_norm:
            head_norms = HeadNorms(
                self.norm(f"{prefix}self_attn.q_norm.weight", config.head_dim),
                self.norm(f"{prefix}self_attn.k_norm.weight", config.head_dim),
            )
        return Layer(
            input_norm=self.norm(f"{prefix}input_layernorm.weight", hidden),
            mlp_norm=self.norm(f"{prefix}post_attention_layernorm.weight", hidden),
            head_norms=head_norms,
            qkv=self._linear(prefix, attention, hidden),
            output=self._linear(prefix, {"self_attn.o_proj": hidden}, query),
            gate_up=self._linear(prefix, {"mlp.gate_proj": inner, "mlp.up_proj": inner}, hidden),
            down=self._linear(prefix, {"mlp.down_proj": hidden}, inner),
            window=config.windows[index],
        )

    def _linear(self, prefix: str, parts: dict[str, int], inputs: int) -> Linear:
        matrix, bias = read_fused(self._weights, prefix, parts, inputs)
        return Linear(self._place(matrix), None if bias is None else self._place(bias))

    def _place(self, tensor: Tensor) -> Tensor:
        """Converts before it moves, so that fp32 never takes room on the device."""
        return tensor.to(self._dtype).to(self._device)


class Model:
    """A whole decoder on one device."""

    def __init__(self, config: ModelConfig, reader: WeightReader) -> None:
        shape = (config.vocabulary_size, config.hidden_size)
        self._embedding = reader.matrix("model.embed_tokens.weight", *shape)
        self._layers = [reader.layer(index) for index in range(config.layers)]
        self._final_norm = reader.norm("model.norm.weight", config.hidden_size)
        self._head = self._embedding if config.tied_head else reader.matrix("lm_head.weight", *shape)

    def forward(self, step: Step, kernels: Kernels, cache: KVCache) -> Tensor:
        """Computes a step; returns the logits [len(step.rows), vocabulary], fp32."""
        attend = kernels.attention(step)
        x = functional.embedding(step.token_ids, self._embedding).float()
        norms = [layer.input_norm for layer in self._layers[1:]] + [self._final_norm]
        x, normed = kernels.add_norm(x, None, self._layers[0].input_norm)
        for index, (layer, next_norm) in enumerate(zip(self._layers, norms, strict=True)):
            keys, values = cache.keys[index], cache.values[index]
            attended = self._attention(layer, normed, step, kernels, attend, keys, values)
            x, normed = kernels.add_norm(x, attended, layer.mlp_norm)
            gated = kernels.gate(layer.gate_up(normed))
            x, normed = kernels.add_norm(x, layer.down(gated), next_norm)
        return self._logits(normed.index_select(0, step.rows))

    def _attention(
        self,
        layer: Layer,
        normed: Tensor,
        step: Step,
        kernels: Kernels,
        attend: Attend,
        keys: Tensor,
        values: Tensor,
    ) -> Tensor:
        queries = kernels.rotate_and_store(layer.qkv(normed), layer.head_norms, step, keys, values)
        return layer.output(attend(queries, keys, values, layer.window))

    def _logits(self, x: Tensor) -> Tensor:
        """Sums that are rounded to 16 bits would tie: near the top, bf16 tells only every eighth apart."""
        if x.dtype is torch.float32:
            return functional.linear(x, self._head)
        if x.device.type == "cuda":
            return torch.mm(x, self._head.t(), out_dtype=torch.float32)
        return functional.linear(x.float(), self._head.float())
