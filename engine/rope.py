"""Rotary position embedding (arXiv 2104.09864), and how its frequencies are scaled for longer contexts."""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, Final

from engine.errors import ModelUnsupportedError

ROPE_TYPES: Final = ("default", "linear", "dynamic", "llama3", "yarn")


@dataclass(frozen=True, slots=True)
class Rope:
    """How positions rotate queries and keys; `attention_factor` scales both.

    `fast` and `slow`: YaRN's border turns over the original context.
    """

    theta: float
    kind: str = "default"
    factor: float = 1.0
    original_context: int = 8192
    low_frequency_factor: float = 1.0
    high_frequency_factor: float = 4.0
    attention_factor: float = 1.0
    fast: float = 32.0
    slow: float = 1.0
    truncate: bool = True

    def check(self) -> None:
        """Raises ValueError for numbers that no rotation can have."""
        sizes = (self.theta, self.factor, self.original_context, self.attention_factor)
        numbers = (*sizes, self.fast, self.slow)
        if not all(math.isfinite(number) and number > 0 for number in numbers) or self.theta == 1.0:
            raise ValueError(f"rotary embedding with {self}")
        if self.kind == "llama3" and not self.low_frequency_factor < self.high_frequency_factor:
            raise ValueError("low_freq_factor must be below high_freq_factor")

    def inverse_frequencies(self, head_dim: int) -> list[float]:
        """One angular step per token position for each of the head_dim / 2 rotated pairs.

        "dynamic" stretches the base only past the trained context, where no sequence goes here: scaling then
        would change the keys of tokens that are cached already.
        """
        plain = [self.theta ** -(2 * pair / head_dim) for pair in range(head_dim // 2)]
        if self.kind == "linear":
            return [frequency / self.factor for frequency in plain]
        if self.kind == "llama3":
            return [self._llama3(frequency) for frequency in plain]
        if self.kind == "yarn":
            low, high = self._ramp(head_dim)
            return [self._yarn(frequency, pair, low, high) for pair, frequency in enumerate(plain)]
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

    def _yarn(self, frequency: float, pair: int, low: float, high: float) -> float:
        """YaRN (arXiv 2309.00071): as above, with a ramp over the index of the pair."""
        stretched = min(max((pair - low) / (high - low), 0.0), 1.0)
        return stretched * frequency / self.factor + (1 - stretched) * frequency

    def _ramp(self, head_dim: int) -> tuple[float, float]:
        """The pairs, counted in dimensions, that make `fast` and `slow` turns; between them is the ramp."""

        def dimension(turns: float) -> float:
            return (
                head_dim
                * math.log(self.original_context / (turns * 2 * math.pi))
                / (2 * math.log(self.theta))
            )

        low, high = dimension(self.fast), dimension(self.slow)
        if self.truncate:
            low, high = math.floor(low), math.ceil(high)
        low, high = max(low, 0), min(high, head_dim - 1)
        return low, high if high != low else high + 0.001


def rope_parameters(config: Mapping[str, Any]) -> dict[str, Any]:
    """What a config says of rotary embedding, with its kind under `rope_type`.

    transformers 5 keeps everything in `rope_parameters`, 4 in `rope_theta` and `rope_scaling`. Raises
    ModelUnsupportedError.
    """
    found = dict(config.get("rope_scaling") or {}) | dict(config.get("rope_parameters") or {})
    kind = found["rope_type"] = found.get("rope_type") or found.get("type") or "default"
    if kind not in ROPE_TYPES:
        raise ModelUnsupportedError(f"rope scaling {kind!r} is not supported; {', '.join(ROPE_TYPES)} are")
    part = found.get("partial_rotary_factor") or config.get("partial_rotary_factor") or 1.0
    if float(part) != 1.0:
        raise ModelUnsupportedError("rotary embedding of a part of each head is not supported")
    return found


def read_rope(config: Mapping[str, Any]) -> Rope:
    """The Rope of a transformers config. Raises ModelUnsupportedError, or ValueError and its like."""
    found = rope_parameters(config)
    original = int(
        config.get("original_max_position_embeddings")
        or found.get("original_max_position_embeddings")
        or config["max_position_embeddings"]
    )
    factor = float(found.get("factor") or config["max_position_embeddings"] / original)
    rope = Rope(
        theta=float(found.get("rope_theta") or config.get("rope_theta") or 10_000.0),
        kind=str(found["rope_type"]),
        factor=factor,
        original_context=original,
        low_frequency_factor=float(found.get("low_freq_factor", 1.0)),
        high_frequency_factor=float(found.get("high_freq_factor", 4.0)),
        attention_factor=_attention_factor(found, factor) if found["rope_type"] == "yarn" else 1.0,
        fast=float(found.get("beta_fast") or 32.0),
        slow=float(found.get("beta_slow") or 1.0),
        truncate=bool(found.get("truncate", True)),
    )
    rope.check()
    return rope


def gguf_rope_scaling(architecture: str, metadata: Mapping[str, object]) -> dict[str, object]:
    """A GGUF file's rope scaling under the names that transformers gives it; empty without any."""

    def value(name: str) -> Any:
        return metadata.get(f"{architecture}.rope.{name}")

    kind = value("scaling.type")
    if kind in (None, "none"):
        linear = value("scale_linear")
        return {"rope_type": "linear", "factor": linear} if linear and linear != 1.0 else {}
    scaling = {
        "rope_type": kind,
        "factor": value("scaling.factor"),
        "original_max_position_embeddings": value("scaling.original_context_length"),
        "attention_scale": value("scaling.attn_factor"),
    }
    return {name: given for name, given in scaling.items() if given is not None}


def _attention_factor(found: Mapping[str, Any], factor: float) -> float:
    if found.get("attention_factor") is not None:
        return float(found["attention_factor"])
    if found.get("attention_scale") is not None:  # GGUF counts from YaRN's rule
        return float(found["attention_scale"]) * _mscale(factor)
    if found.get("mscale") and found.get("mscale_all_dim"):
        return _mscale(factor, float(found["mscale"])) / _mscale(factor, float(found["mscale_all_dim"]))
    return _mscale(factor)


def _mscale(factor: float, weight: float = 1.0) -> float:
    """YaRN's rule of thumb for how much sharper attention must be."""
    return 0.1 * weight * math.log(factor) + 1.0 if factor > 1.0 else 1.0
