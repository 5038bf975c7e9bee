"""Runs the HTTP door on the node's own event loop, over a socket that is bound already."""

from __future__ import annotations

import asyncio
import contextlib
import socket
import ssl
from collections.abc import Collection, Iterator
from typing import cast

import uvicorn
from starlette.types import ASGIApp

from node import limits
from node.errors import StartupError
from node.http.acceptor import Acceptor
from node.http.patience import PatientProtocol
from node.http.tls import HttpCertificate

STOP_GRACE_SECONDS = 2


class _Server(uvicorn.Server):
    """The node handles signals and takes connections itself; the rest is uvicorn's."""

    def __init__(self, config: uvicorn.Config, certificate: HttpCertificate | None) -> None:
        super().__init__(config)
        self._certificate = certificate

    @contextlib.contextmanager
    def capture_signals(self) -> Iterator[None]:
        yield

    async def startup(self, sockets: list[socket.socket] | None = None) -> None:
        (listener,) = sockets or []
        acceptor = Acceptor(listener, self._make_protocol, self._connections, self._tls)
        self.servers = [acceptor]  # type: ignore[list-item]  # uvicorn closes it, and no more
        self.started = True

    def _make_protocol(self) -> PatientProtocol:
        return PatientProtocol(self.config, self.server_state, app_state={})

    def _connections(self) -> Collection[PatientProtocol]:
        return cast(Collection[PatientProtocol], self.server_state.connections)

    def _tls(self) -> ssl.SSLContext | None:
        return self._certificate.context() if self._certificate is not None else None


class HttpServer:
    """Serves an application until stopped, over TLS when it has a certificate."""

    def __init__(
        self,
        application: ASGIApp,
        listener: socket.socket,
        certificate: HttpCertificate | None = None,
    ) -> None:
        self.port: int = listener.getsockname()[1]
        self._listener = listener
        config = uvicorn.Config(
            application,
            http=PatientProtocol,
            ws="none",
            log_config=None,
            log_level="error",  # what clients do wrong is answered, not logged
            access_log=False,
            lifespan="off",
            h11_max_incomplete_event_size=limits.MAX_HEADER_BYTES,
            timeout_keep_alive=limits.KEEP_ALIVE_S,
            timeout_graceful_shutdown=STOP_GRACE_SECONDS,
        )
        self._server = _Server(config, certificate)
        self._task: asyncio.Task[None] | None = None

    async def start(self) -> None:
        """Returns once requests are served; raises StartupError when that fails."""
        self._task = asyncio.create_task(self._server.serve(sockets=[self._listener]))
        while not self._server.started:
            if self._task.done():
                raise StartupError("the HTTP server did not start")
            await asyncio.sleep(0.01)

    async def stop(self) -> None:
        if self._task is not None:
            self._server.should_exit = True
            await self._task
