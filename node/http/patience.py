"""HTTP/1.1 on a connection whose client must get on: slow headers, bodies and readers are cut off.

Slow clients hold connections for next to nothing (Slowloris, 2009); uvicorn times none of them.
"""

from __future__ import annotations

import asyncio
import time

import h11
from uvicorn.protocols.http.h11_impl import H11Protocol

from node import limits


class PatientProtocol(H11Protocol):
    """Each phase has one deadline, however the client spreads its bytes over it."""

    idle_since: float | None = None
    """When the wait for a request's headers began, in monotonic seconds; None while there is a request."""

    _phase: object = None
    _deadline: asyncio.TimerHandle | None = None
    _stall: asyncio.TimerHandle | None = None

    def connection_made(self, transport: asyncio.Transport) -> None:  # type: ignore[override]
        super().connection_made(transport)
        self._follow()

    def data_received(self, data: bytes) -> None:
        super().data_received(data)
        self._follow()

    def on_response_complete(self) -> None:
        super().on_response_complete()
        self._follow()

    def pause_writing(self) -> None:
        super().pause_writing()
        self._stall = self.loop.call_later(limits.STALL_S, self.transport.abort)

    def resume_writing(self) -> None:
        super().resume_writing()
        _cancel(self._stall)

    def connection_lost(self, exc: Exception | None) -> None:
        _cancel(self._deadline)
        _cancel(self._stall)
        super().connection_lost(exc)

    def _follow(self) -> None:
        """Starts the deadline of a phase when the phase begins."""
        phase = self.conn.their_state
        if phase is self._phase:
            return
        self._phase = phase
        _cancel(self._deadline)
        self.idle_since = time.monotonic() if phase is h11.IDLE else None
        if phase is h11.IDLE:
            self._deadline = self.loop.call_later(limits.HEADER_S, self.transport.abort)
        elif phase is h11.SEND_BODY:
            self._deadline = self.loop.call_later(limits.BODY_S, self.transport.abort)


def _cancel(timer: asyncio.TimerHandle | None) -> None:
    if timer is not None:
        timer.cancel()
