"""Blackhole routes, in a network namespace of the test's own."""

from __future__ import annotations

import os
import shutil
import subprocess
import sys

import pytest

from node.testbed.blackhole import route_message

SEND = "import socket; socket.socket(type=socket.SOCK_DGRAM).sendto(b'x', ('10.9.0.2', 9))"


def in_namespace(*steps: str) -> str:
    """Runs the steps one after the other; what was said by the one that failed, if any."""
    commands = ["ip link set lo up", "ip addr add 10.9.0.1/24 dev lo", *steps]
    done = subprocess.run(
        ["unshare", "--net", "sh", "-ec", "\n".join(commands)],
        capture_output=True,
        text=True,
        timeout=60,
        check=False,
    )
    return done.stderr if done.returncode else ""


@pytest.mark.skipif(
    os.geteuid() != 0 or not shutil.which("unshare") or not shutil.which("ip"),
    reason="needs root, unshare and ip",
)
def test_nothing_is_sent_to_an_address_while_its_route_is_there() -> None:
    send = f'"{sys.executable}" -c "{SEND}"'
    add, delete = (f'"{sys.executable}" -m node.testbed.blackhole {do} 10.9.0.2' for do in ("add", "delete"))
    assert in_namespace(send) == ""
    assert "Invalid argument" in in_namespace(add, send)
    assert in_namespace(add, add, delete, delete, send) == ""


def test_a_message_is_as_long_as_it_says() -> None:
    message = route_message(24, "10.0.0.1")
    assert int.from_bytes(message[:4], sys.byteorder) == len(message)
