"""Takes connections from a listening socket, up to a number that counts those still shaking hands."""

from __future__ import annotations

import asyncio
import logging
import socket
import ssl
from collections.abc import Callable, Collection

from node import limits
from node.http.patience import PatientProtocol

log = logging.getLogger(__name__)

PAUSE_S = 0.1
"""Between tries when the process has no descriptor left."""


class Acceptor:
    """Stands where uvicorn keeps an asyncio server, which would take any number."""

    def __init__(
        self,
        listener: socket.socket,
        make_protocol: Callable[[], PatientProtocol],
        connections: Callable[[], Collection[PatientProtocol]],
        tls: Callable[[], ssl.SSLContext | None],
    ) -> None:
        """`connections` are those open now; `tls` is asked at each handshake. Serves at once."""
        self._listener = listener
        self._make_protocol = make_protocol
        self._connections = connections
        self._tls = tls
        self._handshakes: dict[asyncio.Task[None], None] = {}
        listener.setblocking(False)
        self._accepting = asyncio.create_task(self._accept())

    def close(self) -> None:
        self._accepting.cancel()
        for handshake in self._handshakes:
            handshake.cancel()

    async def wait_closed(self) -> None:
        await asyncio.gather(self._accepting, *self._handshakes, return_exceptions=True)

    async def _accept(self) -> None:
        loop = asyncio.get_running_loop()
        while True:
            try:
                connection, _ = await loop.sock_accept(self._listener)
            except OSError as error:
                log.warning("no HTTP connection can be taken: %s", error)
                await asyncio.sleep(PAUSE_S)
                continue
            full = len(self._handshakes) + len(self._connections()) >= limits.MAX_HTTP_CONNECTIONS
            if full and not self._make_room():
                connection.close()
                continue
            handshake = asyncio.create_task(self._serve(loop, connection))
            self._handshakes[handshake] = None
            handshake.add_done_callback(self._handshakes.pop)

    async def _serve(self, loop: asyncio.AbstractEventLoop, connection: socket.socket) -> None:
        context = self._tls()
        timeout = limits.HTTP_HANDSHAKE_S if context is not None else None
        try:
            await loop.connect_accepted_socket(
                self._make_protocol, connection, ssl=context, ssl_handshake_timeout=timeout
            )
        except OSError as error:  # TLS's errors are among them
            log.debug("a handshake failed: %s", error)

    def _make_room(self) -> bool:
        """The longest handshake gives way, else whoever has waited longest without a request."""
        if self._handshakes:
            next(iter(self._handshakes)).cancel()
            return True
        idle = [(each.idle_since, each) for each in self._connections() if each.idle_since is not None]
        if idle:
            min(idle, key=lambda each: each[0])[1].transport.abort()
        return bool(idle)
