"""What a step costs, learned from the steps that ran."""

from __future__ import annotations

MEMORY = 0.98
"""What one step's weight decays to with each later one: about the last 50 steps count."""

STALL_FACTOR = 3.0
"""How much longer than a step of decodes alone a step with prompts beside them may take."""

LEAST_CHUNK = 16
"""Prompt tokens computed beside running streams even when the factor leaves room for fewer."""


class CostMeter:
    """Fits step time = base + slope x tokens by exponentially weighted least squares.

    The slope is the marginal cost of one more token, which is what a queue of prompts costs per token.
    """

    def __init__(self) -> None:
        self._weight = self._x = self._y = self._xx = self._xy = 0.0
        self._decode_step = 0.0

    def observe(self, tokens: int, decoding: int, seconds: float) -> None:
        """Adds one step of `tokens` tokens in all, `decoding` of them next tokens of running streams."""
        self._weight = self._weight * MEMORY + 1.0
        self._x = self._x * MEMORY + tokens
        self._y = self._y * MEMORY + seconds
        self._xx = self._xx * MEMORY + tokens * tokens
        self._xy = self._xy * MEMORY + tokens * seconds
        if tokens == decoding:
            self._decode_step += (seconds - self._decode_step) * (0.1 if self._decode_step else 1.0)

    @property
    def seconds_per_prefill_token(self) -> float:
        """The marginal cost of a prompt token; 0 only before the first step."""
        if not self._x:
            return 0.0
        average = self._y / self._x
        variance = self._weight * self._xx - self._x * self._x
        if variance < 1e-6 * self._weight * self._xx:
            return average
        slope = (self._weight * self._xy - self._x * self._y) / variance
        return min(max(slope, 0.1 * average), average)

    @property
    def seconds_per_decode_step(self) -> float:
        """The usual time of a step in which running streams get one token each."""
        return self._decode_step

    def prefill_allowance(self, decoding: int, limit: int) -> int:
        """How many prompt tokens the next step may compute beside `decoding` streams, at most `limit`."""
        if not decoding or not self.seconds_per_prefill_token:
            return limit
        spare = (STALL_FACTOR - 1.0) * self._decode_step / self.seconds_per_prefill_token
        return max(min(limit, LEAST_CHUNK), min(limit, int(spare)))
