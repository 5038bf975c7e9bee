"""Whether the node on this machine serves, for Docker, Kubernetes and systemd: `python -m node.probe`.

Exit status 0 when it does. A node that drains is alive but not ready. Run often, it imports next to nothing.
"""

from __future__ import annotations

import argparse
import http.client
import os
import ssl
import sys

TIMEOUT_S = 3.0


def status_of(port: int) -> int:
    """The HTTP status of the health page on a loopback port. Raises OSError or an HTTPException."""
    try:
        return _get(http.client.HTTPConnection("127.0.0.1", port, timeout=TIMEOUT_S))
    except (http.client.HTTPException, ConnectionResetError):  # it speaks TLS
        context = ssl.create_default_context()
        context.check_hostname = False  # whoever holds a port of this very machine is whom we ask
        context.verify_mode = ssl.CERT_NONE
        return _get(http.client.HTTPSConnection("127.0.0.1", port, timeout=TIMEOUT_S, context=context))


def _get(connection: http.client.HTTPConnection) -> int:
    try:
        connection.request("GET", "/health")
        return connection.getresponse().status
    finally:
        connection.close()


def main(arguments: list[str] | None = None) -> int:
    """The exit status; says on standard error what is wrong."""
    parser = argparse.ArgumentParser(prog="python -m node.probe", description=__doc__.splitlines()[0])
    port = int(os.environ.get("RUMORMILL_HTTP_PORT", "8080"))
    parser.add_argument("--port", type=int, default=port, help="HTTP port of the node (%(default)s)")
    parser.add_argument("--alive", action="store_true", help="any answer will do, such as one that it drains")
    options = parser.parse_args(arguments)
    try:
        status = status_of(options.port)
    except (OSError, http.client.HTTPException) as error:
        print(f"no answer on port {options.port}: {error}", file=sys.stderr)  # noqa: T201
        return 1
    if status == http.HTTPStatus.OK or options.alive:
        return 0
    print(f"the node says {status}", file=sys.stderr)  # noqa: T201
    return 1


if __name__ == "__main__":
    sys.exit(main())
