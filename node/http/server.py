"""Runs the HTTP door on the node's own event loop, over a socket that is bound already."""

from __future__ import annotations

import asyncio
import contextlib
import socket
import ssl
from collections.abc import Iterator
from pathlib import Path

import uvicorn
from fastapi import FastAPI

from node.errors import StartupError

STOP_GRACE_SECONDS = 2
MAX_CONNECTIONS = 512
MAX_HEADER_BYTES = 64 << 10


class _Server(uvicorn.Server):
    """The node handles signals; the door only serves."""

    @contextlib.contextmanager
    def capture_signals(self) -> Iterator[None]:
        yield


class HttpServer:
    """Serves an application until stopped, over TLS when it has a certificate."""

    def __init__(
        self,
        application: FastAPI,
        listener: socket.socket,
        certificate: Path | None = None,
        key: Path | None = None,
    ) -> None:
        _check_chain(certificate, key)
        self.port: int = listener.getsockname()[1]
        self._listener = listener
        self._server = _Server(
            uvicorn.Config(
                application,
                log_config=None,
                log_level="warning",
                access_log=False,
                lifespan="off",
                limit_concurrency=MAX_CONNECTIONS,
                h11_max_incomplete_event_size=MAX_HEADER_BYTES,
                timeout_graceful_shutdown=STOP_GRACE_SECONDS,
                ssl_certfile=certificate,
                ssl_keyfile=key,
            )
        )
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


def _check_chain(certificate: Path | None, key: Path | None) -> None:
    """Raises StartupError for a certificate and key that don't work together."""
    if certificate is None:
        return
    try:
        ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER).load_cert_chain(certificate, key)
    except (OSError, ssl.SSLError) as error:
        raise StartupError(
            f"--http-cert {certificate} and --http-key {key} can't be used: {error.strerror or error}"
        ) from None
