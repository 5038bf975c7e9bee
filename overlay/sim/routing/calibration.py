"""What one engine can do, as measured on the real one; a small JSON file."""

from __future__ import annotations

import json
from bisect import bisect_left
from collections.abc import Mapping
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import Any

STALL_FACTOR = 3.0
"""Of the engine: a step with prompts beside running streams may take this many times one without."""

LEAST_CHUNK = 16
"""Of the engine: prompt tokens that are computed beside running streams however long a step gets."""


class CalibrationError(ValueError):
    """A calibration that can't be used; the message names what is wrong."""


@dataclass(frozen=True, slots=True)
class Calibration:
    """Costs in seconds. The defaults are the embedded 135 M model on two CPU threads.

    `decode_steps` are (streams in the batch, seconds for one token of each), rising; between them the
    cost is a straight line, and beyond the last it goes on as steep.
    """

    seconds_per_prefill_token: float = 1 / 540
    step_overhead_s: float = 0.003
    decode_steps: tuple[tuple[int, float], ...] = ((1, 0.025), (8, 0.045), (16, 0.070))
    prefill_tokens_per_step: int = 512
    max_running: int = 16
    kv_blocks: int = 1 << 40
    max_queued_tokens: int = 32_768

    def __post_init__(self) -> None:
        sizes = [size for size, _ in self.decode_steps]
        if not sizes or sizes[0] < 1 or sizes != sorted(set(sizes)):
            raise CalibrationError(
                "decode_steps needs (streams, seconds) pairs with rising, positive streams"
            )
        if min(seconds for _, seconds in self.decode_steps) <= 0 or self.step_overhead_s < 0:
            raise CalibrationError("a step takes more than 0 seconds")
        if not 0 < self.seconds_per_prefill_token < 10:
            raise CalibrationError("seconds_per_prefill_token must be above 0 and below 10")
        if min(self.prefill_tokens_per_step, self.max_running, self.kv_blocks, self.max_queued_tokens) < 1:
            raise CalibrationError("limits must be positive")

    @classmethod
    def datacenter(cls) -> Calibration:
        """A large model on a node of accelerators: 10,000 prompt tokens a second, wide batches."""
        return cls(
            seconds_per_prefill_token=1e-4,
            step_overhead_s=0.002,
            decode_steps=((1, 0.020), (64, 0.030), (128, 0.045)),
            prefill_tokens_per_step=8_192,
            max_running=128,
            max_queued_tokens=600_000,
        )

    @classmethod
    def from_json(cls, path: Path) -> Calibration:
        """Reads a file as `to_json` writes it. Raises CalibrationError."""
        try:
            values = json.loads(path.read_text("utf-8"))
        except (OSError, ValueError) as error:
            raise CalibrationError(f"{path} can't be read as JSON: {error}") from None
        if not isinstance(values, dict):
            raise CalibrationError(f"{path} doesn't hold an object")
        return cls._from(values, path)

    @classmethod
    def _from(cls, values: Mapping[str, Any], path: Path) -> Calibration:
        unknown = sorted(set(values) - set(cls.__dataclass_fields__))
        if unknown:
            raise CalibrationError(f"{path} has unknown fields: {', '.join(unknown)}")
        try:
            steps = tuple((int(size), float(seconds)) for size, seconds in values.get("decode_steps", ()))
            known = {**values, "decode_steps": steps} if steps else dict(values)
            return cls(**known)
        except (TypeError, ValueError) as error:
            raise CalibrationError(f"{path}: {error}") from None

    def to_json(self) -> str:
        return json.dumps(asdict(self), indent=2)

    def with_kv_blocks(self, blocks: int) -> Calibration:
        """The same engine with room for so many blocks."""
        return replace(self, kv_blocks=blocks)

    def decode_step_s(self, streams: int) -> float:
        """One token for each of so many streams; 0 for none."""
        if not streams:
            return 0.0
        points = self.decode_steps
        if len(points) == 1:
            return points[0][1]
        index = min(max(bisect_left(points, (streams, 0.0)), 1), len(points) - 1)
        (x0, y0), (x1, y1) = points[index - 1], points[index]
        return max(y0 + (streams - x0) * (y1 - y0) / (x1 - x0), points[0][1])

    def step_s(self, prompt_tokens: int, streams: int) -> float:
        """One step: so many prompt tokens, and one token for each of so many running streams."""
        return (
            self.step_overhead_s
            + self.decode_step_s(streams)
            + prompt_tokens * self.seconds_per_prefill_token
        )

    def prefill_allowance(self, streams: int) -> int:
        """Prompt tokens that a step may compute beside so many running streams."""
        limit = self.prefill_tokens_per_step
        if not streams:
            return limit
        spare = (STALL_FACTOR - 1.0) * self.decode_step_s(streams) / self.seconds_per_prefill_token
        return max(min(limit, LEAST_CHUNK), min(limit, int(spare)))

    def seconds_per_busy_prefill_token(self, streams: int) -> float:
        """What a prompt token takes while so many streams run beside it."""
        chunk = self.prefill_allowance(streams)
        return self.step_s(chunk, streams) / chunk
