"""What a checkpoint's config says, checked: everything this engine can't run is refused by name."""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any, Final

from engine.errors import ModelDamagedError, ModelUnsupportedError

ARCHITECTURES: Final = ("llama", "mistral", "qwen2", "qwen3")
ROPE_TYPES: Final = ("default", "linear", "llama3")


def check_architecture(architecture: object) -> None:
    """Raises ModelUnsupportedError unless this engine runs models of that type."""
    if architecture not in ARCHITECTURES:
        raise ModelUnsupportedError(
            f"models of type {architecture!r} are not supported; {', '.join(ARCHITECTURES)} are"
        )


@dataclass(frozen=True, slots=True)
class Rope:
    """Rotary position embedding (arXiv 2104.09864) and how its frequencies are scaled."""

    theta: float
    kind: str = "default"
    factor: float = 1.0
    low_frequency_factor: float = 1.0
    high_frequency_factor: float = 4.0
    original_context: int = 8192

    def inverse_frequencies(self, head_dim: int) -> list[float]:
        """One angular step per token position for each of the head_dim / 2 rotated pairs."""
        plain = [self.theta ** -(2 * pair / head_dim) for pair in range(head_dim // 2)]
        if self.kind == "linear":
            return [frequency / self.factor for frequency in plain]
        if self.kind == "llama3":
            return [self._llama3(frequency) for frequency in plain]
        return plain

    def _llama3(self, frequency: float) -> float:
        """Llama 3.1's rule: long wavelengths are stretched, short ones kept, those between interpolated."""
        turns = self.original_context * frequency / (2 * math.pi)
        if turns < self.low_frequency_factor:
            return frequency / self.factor
        if turns > self.high_frequency_factor:
            return frequency
        share = (turns - self.low_frequency_factor) / (self.high_frequency_factor - self.low_frequency_factor)
        return (1 - share) * frequency / self.factor + share * frequency


@dataclass(frozen=True, slots=True)
class ModelConfig:
    """A Llama-family decoder's shape. `windows`: each layer's sliding window, 0 for none."""

    architecture: str
    vocabulary_size: int
    hidden_size: int
    intermediate_size: int
    layers: int
    heads: int
    kv_heads: int
    head_dim: int
    context_tokens: int
    norm_epsilon: float
    rope: Rope
    tied_head: bool
    query_key_norm: bool
    windows: tuple[int, ...]
    eos_token_ids: frozenset[int] = field(default_factory=frozenset)

    @property
    def query_size(self) -> int:
        """Width of all queries of a token."""
        return self.heads * self.head_dim

    @property
    def kv_size(self) -> int:
        """Width of all keys of a token."""
        return self.kv_heads * self.head_dim

    @classmethod
    def from_transformers(cls, config: Mapping[str, Any]) -> ModelConfig:
        """Reads the dict of a transformers config. Raises ModelUnsupportedError or ModelDamagedError."""
        architecture = config.get("model_type")
        check_architecture(architecture)
        if config.get("hidden_act", "silu") not in ("silu", "swish"):
            raise ModelUnsupportedError(f"the activation {config['hidden_act']!r} is not supported; silu is")
        try:
            heads = int(config["num_attention_heads"])
            hidden_size = int(config["hidden_size"])
            layers = int(config["num_hidden_layers"])
            result = cls(
                architecture=str(architecture),
                vocabulary_size=int(config["vocab_size"]),
                hidden_size=hidden_size,
                intermediate_size=int(config["intermediate_size"]),
                layers=layers,
                heads=heads,
                kv_heads=int(config.get("num_key_value_heads") or heads),
                head_dim=int(config.get("head_dim") or hidden_size // heads),
                context_tokens=int(config["max_position_embeddings"]),
                norm_epsilon=float(config["rms_norm_eps"]),
                rope=_rope(config),
                tied_head=bool(config.get("tie_word_embeddings", False)),
                query_key_norm=architecture == "qwen3",
                windows=_windows(config, layers),
                eos_token_ids=_eos_token_ids(config),
            )
        except (KeyError, TypeError, ValueError, ZeroDivisionError) as error:
            raise ModelDamagedError(f"the model's config is damaged: {error!r}") from error
        result.check()
        return result

    def check(self) -> None:
        """Raises ModelDamagedError for a shape that no model can have."""
        sizes = (self.vocabulary_size, self.hidden_size, self.intermediate_size, self.layers, self.heads)
        if min(*sizes, self.kv_heads, self.head_dim, self.context_tokens) < 1:
            raise ModelDamagedError("the model's config is damaged: a size is not positive")
        if self.heads % self.kv_heads:
            raise ModelDamagedError(
                f"the model's config is damaged: {self.heads} heads, but {self.kv_heads} key-value heads"
            )
        if self.head_dim % 2:
            raise ModelDamagedError(f"the model's config is damaged: head_dim {self.head_dim} is odd")


def _rope(config: Mapping[str, Any]) -> Rope:
    """transformers 5 keeps everything in `rope_parameters`, 4 in `rope_theta` and `rope_scaling`."""
    parameters = dict(config.get("rope_scaling") or {}) | dict(config.get("rope_parameters") or {})
    kind = parameters.get("rope_type") or parameters.get("type") or "default"
    if kind not in ROPE_TYPES:
        raise ModelUnsupportedError(f"rope scaling {kind!r} is not supported; {', '.join(ROPE_TYPES)} are")
    if float(parameters.get("partial_rotary_factor", config.get("partial_rotary_factor", 1.0)) or 1.0) != 1.0:
        raise ModelUnsupportedError("rotary embedding of a part of each head is not supported")
    return Rope(
        theta=float(parameters.get("rope_theta", config.get("rope_theta", 10_000.0))),
        kind=kind,
        factor=float(parameters.get("factor", 1.0)),
        low_frequency_factor=float(parameters.get("low_freq_factor", 1.0)),
        high_frequency_factor=float(parameters.get("high_freq_factor", 4.0)),
        original_context=int(parameters.get("original_max_position_embeddings") or 8192),
    )


def _windows(config: Mapping[str, Any], layers: int) -> tuple[int, ...]:
    window = int(config.get("sliding_window") or 0)
    if config.get("model_type", "").startswith("qwen") and not config.get("use_sliding_window", False):
        window = 0
    kinds = config.get("layer_types")
    if kinds is None or not window:
        return (window,) * layers
    if len(kinds) != layers:
        raise ModelDamagedError(
            f"the model's config is damaged: {len(kinds)} layer_types for {layers} layers"
        )
    return tuple(window if kind == "sliding_attention" else 0 for kind in kinds)


def _eos_token_ids(config: Mapping[str, Any]) -> frozenset[int]:
    eos = config.get("eos_token_id")
    if eos is None:
        return frozenset()
    return frozenset(int(token) for token in (eos if isinstance(eos, list) else [eos]))
