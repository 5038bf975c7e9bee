"""The Llama-family decoder: Llama, Mistral, Qwen2 and Qwen3 in one, on a paged KV cache."""

from __future__ import annotations

from collections.abc import Sequence

import torch
from torch import Tensor
from torch.nn import functional

from engine.attention import AttentionPlan
from engine.config import EngineConfig, Precision
from engine.kv_cache import KVCache
from engine.linear import Linear, pack_linear
from engine.model_config import ModelConfig
from engine.span import Span
from engine.weights import Weights


class RotaryTable:
    """cos and sin of every position's rotations (RoPE, arXiv 2104.09864), halves rotated as one."""

    def __init__(
        self, config: ModelConfig, factors: Tensor | None, device: torch.device | None = None
    ) -> None:
        frequencies = torch.tensor(config.rope.inverse_frequencies(config.head_dim), dtype=torch.float32)
        if factors is not None:
            frequencies = frequencies / factors
        angles = torch.arange(config.context_tokens, dtype=torch.float32)[:, None] * frequencies
        cos, sin = (each * config.rope.attention_factor for each in (angles.cos(), angles.sin()))
        self.cos = cos.repeat(1, 2).to(device)
        self.sin = torch.cat((-sin, sin), dim=1).to(device)

    def at(self, positions: Tensor) -> tuple[Tensor, Tensor]:
        """cos and signed sin [tokens, 1, head_dim] for rotate()."""
        return self.cos[positions].unsqueeze(1), self.sin[positions].unsqueeze(1)


def rotate(x: Tensor, cos: Tensor, sin: Tensor) -> Tensor:
    """Rotates x [tokens, heads, head_dim]."""
    return torch.addcmul(x * cos, x.roll(x.shape[-1] // 2, dims=-1), sin)


class Layer:
    """One decoder layer: attention and gated MLP, each behind an RMS norm."""

    def __init__(self, index: int, config: ModelConfig, weights: Weights, precision: Precision) -> None:
        self._index = index
        self._config = config
        self._window = config.windows[index]
        prefix = f"model.layers.{index}."
        hidden, inner = config.hidden_size, config.intermediate_size
        query, kv = config.query_size, config.kv_size
        self._input_norm = weights.read(f"{prefix}input_layernorm.weight", (hidden,))
        self._mlp_norm = weights.read(f"{prefix}post_attention_layernorm.weight", (hidden,))
        self._query_norm = self._key_norm = None
        if config.query_key_norm:
            self._query_norm = weights.read(f"{prefix}self_attn.q_norm.weight", (config.head_dim,))
            self._key_norm = weights.read(f"{prefix}self_attn.k_norm.weight", (config.head_dim,))

        def fused(parts: dict[str, int], inputs: int) -> Linear:
            return pack_linear(*read_fused(weights, prefix, parts, inputs), precision)

        self._qkv = fused({"self_attn.q_proj": query, "self_attn.k_proj": kv, "self_attn.v_proj": kv}, hidden)
        self._output = fused({"self_attn.o_proj": hidden}, query)
        self._gate_up = fused({"mlp.gate_proj": inner, "mlp.up_proj": inner}, hidden)
        self._down = fused({"mlp.down_proj": hidden}, inner)

    def forward(self, x: Tensor, cos: Tensor, sin: Tensor, plan: AttentionPlan, cache: KVCache) -> Tensor:
        """x [tokens, hidden] -> the same shape, keys and values written to the cache on the way."""
        x = x + self._attention(self._norm(x, self._input_norm), cos, sin, plan, cache)
        gate, up = self._gate_up(self._norm(x, self._mlp_norm)).chunk(2, dim=-1)
        return x + self._down(functional.silu(gate) * up)

    def _attention(self, x: Tensor, cos: Tensor, sin: Tensor, plan: AttentionPlan, cache: KVCache) -> Tensor:
        config = self._config
        tokens = x.shape[0]
        query, key, value = torch.split(
            self._qkv(x), [config.query_size, config.kv_size, config.kv_size], dim=-1
        )
        query = query.view(tokens, config.heads, config.head_dim)
        key = key.view(tokens, config.kv_heads, config.head_dim)
        if self._query_norm is not None and self._key_norm is not None:
            query, key = self._norm(query, self._query_norm), self._norm(key, self._key_norm)
        key = rotate(key, cos, sin)
        cache.write(self._index, plan.slots, key, value.view(tokens, config.kv_heads, config.head_dim))
        attended = plan.attend(self._index, rotate(query, cos, sin), cache, self._window)
        return self._output(attended.view(tokens, config.query_size))

    def _norm(self, x: Tensor, weight: Tensor) -> Tensor:
        return functional.rms_norm(x, (x.shape[-1],), weight, self._config.norm_epsilon)


class TorchDecoder:
    """A whole decoder with its KV cache, in plain PyTorch."""

    backend = "torch"

    def __init__(self, config: ModelConfig, weights: Weights, options: EngineConfig, blocks: int) -> None:
        self._model = Model(config, weights, options.precision)
        self._cache = KVCache(config, blocks, options.block_size)

    def forward(self, token_ids: Sequence[int], spans: Sequence[Span], rows: Sequence[int]) -> Tensor:
        """Computes a step's tokens, sequence by sequence; returns the logits [len(rows), vocabulary]."""
        plan = AttentionPlan(spans, self._cache.block_size)
        wanted = torch.tensor(rows, dtype=torch.int64)
        return self._model.forward(torch.tensor(token_ids), plan, self._cache, wanted)

    def copy_block(self, source: int, target: int) -> None:
        """Copies a KV block."""
        self._cache.copy_block(source, target)


class Model:
    """A whole decoder, read from a checkpoint. Raises a ModelError when it doesn't fit its config."""

    def __init__(self, config: ModelConfig, weights: Weights, precision: Precision) -> None:
        self.config = config
        shape = (config.vocabulary_size, config.hidden_size)
        self._embedding = weights.read("model.embed_tokens.weight", shape)
        self._layers = [Layer(index, config, weights, precision) for index in range(config.layers)]
        self._final_norm = weights.read("model.norm.weight", (config.hidden_size,))
        head = self._embedding if config.tied_head else weights.read("lm_head.weight", shape)
        self._head = pack_linear(head, None, precision)
        self._rotary = RotaryTable(config, weights.rope_factors())

    def forward(self, token_ids: Tensor, plan: AttentionPlan, cache: KVCache, rows: Tensor) -> Tensor:
        """Computes a step's tokens [tokens]; returns the logits [len(rows), vocabulary] of those rows."""
        x = self._embedding[token_ids]
        cos, sin = self._rotary.at(plan.positions)
        for layer in self._layers:
            x = layer.forward(x, cos, sin, plan, cache)
        x = x[rows]
        x = functional.rms_norm(x, (x.shape[-1],), self._final_norm, self.config.norm_epsilon)
        return self._head(x)


def read_fused(
    weights: Weights, prefix: str, parts: dict[str, int], inputs: int
) -> tuple[Tensor, Tensor | None]:
    """Several projections of the same input as one weight and bias; `parts` maps each name to its outputs."""
    matrices = [weights.read(f"{prefix}{name}.weight", (size, inputs)) for name, size in parts.items()]
    biases = None
    if any(weights.has(f"{prefix}{name}.bias") for name in parts):
        biases = torch.cat(
            [
                weights.read(f"{prefix}{name}.bias", (size,))
                if weights.has(f"{prefix}{name}.bias")
                else torch.zeros(size)
                for name, size in parts.items()
            ]
        )
    return torch.cat(matrices), biases
