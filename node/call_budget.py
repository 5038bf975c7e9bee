"""How many calls one caller may make: at the same time, and per second."""

from __future__ import annotations

import time
from collections import OrderedDict
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass

from node import limits
from node.errors import TooManyCallsError
from overlay.core.tokens import TokenBucket


@dataclass(slots=True, eq=False)
class _Account:
    bucket: TokenBucket
    live: int = 0


class CallBudget:
    """One account per caller. Those that have been quiet for longest are forgotten first."""

    def __init__(self, clock: Callable[[], float] = time.monotonic) -> None:
        self._clock = clock
        self._accounts: OrderedDict[str, _Account] = OrderedDict()

    def __len__(self) -> int:
        return len(self._accounts)

    @contextmanager
    def call(self, caller: str) -> Iterator[None]:
        """Covers one call; raises TooManyCallsError."""
        account = self._account(caller)
        if account.live >= limits.MAX_LIVE_CALLS:
            raise TooManyCallsError(f"{caller} has {limits.MAX_LIVE_CALLS} calls open; end some first")
        if not account.bucket.take(self._clock(), 1.0):
            raise TooManyCallsError(
                f"{caller} makes over {limits.CALLS_PER_S:.0f} calls a second; wait a second"
            )
        account.live += 1
        try:
            yield
        finally:
            account.live -= 1

    def _account(self, caller: str) -> _Account:
        account = self._accounts.get(caller)
        if account is None:
            self._forget_the_quiet()
            bucket = TokenBucket.full(self._clock(), limits.CALLS_PER_S, limits.CALLS_AT_ONCE)
            account = self._accounts[caller] = _Account(bucket)
        self._accounts.move_to_end(caller)
        return account

    def _forget_the_quiet(self) -> None:
        if len(self._accounts) < limits.MAX_CALLERS:
            return
        for caller, account in self._accounts.items():
            if not account.live:
                del self._accounts[caller]
                return
        raise TooManyCallsError(f"{limits.MAX_CALLERS} callers have calls open; come back later")
