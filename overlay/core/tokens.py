"""Token buckets: rates with bursts."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(slots=True, eq=False)
class TokenBucket:
    """Holds at most `burst` tokens and gains `rate` a second."""

    rate: float
    burst: float
    level: float
    at: float

    @classmethod
    def full(cls, now: float, rate: float, burst: float) -> TokenBucket:
        return cls(rate, burst, burst, now)

    def take(self, now: float, amount: float) -> bool:
        """Takes tokens if there are enough; a level below zero is never reached."""
        level = self.level + (now - self.at) * self.rate
        if level > self.burst:
            level = self.burst
        self.at = now
        self.level = level if level < amount else level - amount
        return level >= amount
