"""The health probe: what it asks, and the exit status that tells of the answer."""

from __future__ import annotations

import socket
import ssl
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from http.server import BaseHTTPRequestHandler, HTTPServer
from pathlib import Path

import pytest

from node.probe import main
from node.testbed.secrets import make_http_certificate


@contextmanager
def node_that_says(status: int, tls: Path | None = None) -> Iterator[str]:
    """The port of a server with a health page, over TLS when it is given the folder of a certificate."""

    class Page(BaseHTTPRequestHandler):
        def do_GET(self) -> None:
            self.send_response(status if self.path == "/health" else 404)
            self.end_headers()

        def log_message(self, format: str, *args: object) -> None:  # noqa: A002 - http.server's name
            pass

    server = HTTPServer(("127.0.0.1", 0), Page)
    if tls is not None:
        context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
        context.load_cert_chain(tls / "http.crt", tls / "http.key")
        server.socket = context.wrap_socket(server.socket, server_side=True)
    thread = threading.Thread(target=server.serve_forever)
    thread.start()
    try:
        yield str(server.server_port)
    finally:
        server.shutdown()
        server.server_close()
        thread.join()


@pytest.mark.parametrize(("status", "ready", "alive"), [(200, 0, 0), (503, 1, 0)])
def test_a_node_that_drains_is_alive_and_not_ready(status: int, ready: int, alive: int) -> None:
    with node_that_says(status) as port:
        assert main(["--port", port]) == ready
        assert main(["--port", port, "--alive"]) == alive


def test_a_node_with_tls_is_asked_over_tls(tmp_path: Path) -> None:
    make_http_certificate(tmp_path)
    with node_that_says(200, tmp_path) as port:
        assert main(["--port", port]) == 0


def test_silence_is_neither(capsys: pytest.CaptureFixture[str]) -> None:
    with socket.socket() as unused:
        unused.bind(("127.0.0.1", 0))
        port = str(unused.getsockname()[1])
        assert main(["--port", port]) == 1
        assert main(["--port", port, "--alive"]) == 1
    assert f"port {port}" in capsys.readouterr().err


def test_the_port_is_the_nodes_own(monkeypatch: pytest.MonkeyPatch) -> None:
    with node_that_says(200) as port:
        monkeypatch.setenv("RUMORMILL_HTTP_PORT", port)
        assert main([]) == 0
