"""What a checkpoint's config says, checked: everything this engine can't run is refused by name."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any, Final

from engine.errors import ModelDamagedError, ModelUnsupportedError
from engine.rope import Rope, read_rope, rope_parameters

ARCHITECTURES: Final = ("llama", "mistral", "qwen2", "qwen3")
WINDOWED: Final = ("mistral", "qwen2", "qwen3")
"""Architectures that a sliding window means something to."""

LARGEST_SIZE: Final = 1 << 24
MOST_LAYERS: Final = 1024
LAYER_KINDS: Final = ("full_attention", "sliding_attention")


def check_supported(config: Mapping[str, Any]) -> None:
    """Judges a config, complete or not, before anything large is read.

    Raises ModelUnsupportedError that names what this engine doesn't run, or ModelDamagedError.
    """
    try:
        _refuse_unsupported(config)
    except (TypeError, ValueError, AttributeError) as error:
        raise _damaged(repr(error)) from error


def _refuse_unsupported(config: Mapping[str, Any]) -> None:
    architecture = config.get("model_type")
    if architecture not in ARCHITECTURES:
        raise ModelUnsupportedError(
            f"models of type {architecture!r} are not supported; {', '.join(ARCHITECTURES)} are"
        )
    if config.get("hidden_act", "silu") not in ("silu", "swish"):
        raise ModelUnsupportedError(f"the activation {config['hidden_act']!r} is not supported; silu is")
    if config.get("num_local_experts"):
        raise ModelUnsupportedError("mixtures of experts are not supported")
    if quantization := config.get("quantization_config"):
        method = dict(quantization).get("quant_method", "unknown")
        raise ModelUnsupportedError(
            f"weights quantised by {method!r} are not supported; take the original weights or a GGUF file"
        )
    unknown = sorted(set(config.get("layer_types") or ()) - set(LAYER_KINDS))
    if unknown:
        raise ModelUnsupportedError(f"layers of kind {unknown[0]!r} are not supported")
    rope_parameters(config)


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
        check_supported(config)
        try:
            architecture = config["model_type"]
            rope = read_rope(config)
            heads = int(config["num_attention_heads"])
            hidden_size = int(config["hidden_size"])
            layers = _layers(config)
            result = cls(
                architecture=str(architecture),
                vocabulary_size=int(config["vocab_size"]),
                hidden_size=hidden_size,
                intermediate_size=int(config["intermediate_size"]),
                layers=layers,
                heads=heads,
                kv_heads=int(config.get("num_key_value_heads") or heads),
                head_dim=int(config.get("head_dim") or hidden_size // heads),
                context_tokens=_context(config, rope),
                norm_epsilon=float(config["rms_norm_eps"]),
                rope=rope,
                tied_head=bool(config.get("tie_word_embeddings", False)),
                query_key_norm=architecture == "qwen3",
                windows=_windows(config, layers),
                eos_token_ids=_eos_token_ids(config),
            )
        except (KeyError, TypeError, ValueError, ArithmeticError) as error:
            raise _damaged(repr(error)) from error
        result.check()
        return result

    def check(self) -> None:
        """Raises ModelDamagedError for a shape that no model can have."""
        sizes = (self.vocabulary_size, self.hidden_size, self.intermediate_size, self.heads, self.kv_heads)
        if min(*sizes, self.head_dim, self.context_tokens, self.layers) < 1:
            raise _damaged("a size is not positive")
        if max(*sizes, self.head_dim, self.context_tokens) > LARGEST_SIZE:
            raise _damaged(f"a size is over {LARGEST_SIZE}")
        if not 0.0 <= self.norm_epsilon < 1.0:
            raise _damaged(f"rms_norm_eps is {self.norm_epsilon}")
        if self.heads % self.kv_heads:
            raise _damaged(f"{self.heads} heads, but {self.kv_heads} key-value heads")
        if self.head_dim % 2:
            raise _damaged(f"head_dim {self.head_dim} is odd")


def _layers(config: Mapping[str, Any]) -> int:
    layers = int(config["num_hidden_layers"])
    if layers > MOST_LAYERS:
        raise _damaged(f"{layers} layers")
    return layers


def _context(config: Mapping[str, Any], rope: Rope) -> int:
    """YaRN says how far it stretches the trained context, which configs such as Qwen2.5's don't repeat."""
    trained = int(config["max_position_embeddings"])
    return max(trained, int(rope.original_context * rope.factor)) if rope.kind == "yarn" else trained


def _windows(config: Mapping[str, Any], layers: int) -> tuple[int, ...]:
    window = int(config.get("sliding_window") or 0)
    is_qwen = config["model_type"].startswith("qwen")
    if config["model_type"] not in WINDOWED or (is_qwen and not config.get("use_sliding_window", False)):
        window = 0
    kinds = config.get("layer_types")
    if kinds is None or not window:
        whole = int(config.get("max_window_layers") or 0) if is_qwen and window else 0
        return tuple(0 if layer < whole else window for layer in range(layers))
    if len(kinds) != layers:
        raise _damaged(f"{len(kinds)} layer_types for {layers} layers")
    return tuple(window if kind == "sliding_attention" else 0 for kind in kinds)


def _eos_token_ids(config: Mapping[str, Any]) -> frozenset[int]:
    eos = config.get("eos_token_id")
    if eos is None:
        return frozenset()
    return frozenset(int(token) for token in (eos if isinstance(eos, list) else [eos]))


def _damaged(what: str) -> ModelDamagedError:
    return ModelDamagedError(f"the model's config is damaged: {what}")
