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
        self.level = min(self.burst, self.level + (now - self.at) * self.rate)
        self.at = now
        if self.level < amount:
            return False
        self.level -= amount
        return True
