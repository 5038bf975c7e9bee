"""Real hosts: network namespaces joined by a bridge. Needs root and the `ip` command."""

from __future__ import annotations

import asyncio
import ctypes
import os
import shutil
import subprocess
import threading
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import TypeVar

import pytest

Result = TypeVar("Result")

_CLONE_NEWNET = 0x40000000


def ip(*arguments: str, namespace: str | None = None) -> None:
    prefix = ["ip", "-n", namespace] if namespace else ["ip"]
    subprocess.run([*prefix, *arguments], check=True, capture_output=True)


class Lan:
    """A switch and the hosts plugged into it; host `n` has 10.77.0.n, or link-local IPv6 alone."""

    def __init__(self, name: str) -> None:
        self.name = name
        self.switch = f"{name}-switch"
        self.namespaces = [self.switch]
        ip("netns", "add", self.switch)
        ip("link", "add", "br0", "type", "bridge", namespace=self.switch)
        ip("link", "set", "br0", "up", namespace=self.switch)

    def plug_in(
        self, number: int, *, multicast: bool = True, ipv4: bool = True, ipv6: bool = True, cable: bool = True
    ) -> str:
        """A new host's namespace."""
        host, port = f"{self.name}-{number}", f"port{number}"
        ip("netns", "add", host)
        self.namespaces.append(host)
        ip("link", "add", "eth0", "netns", host, "type", "veth", "peer", "name", port, "netns", self.switch)
        ip("link", "set", port, "master", "br0", "up" if cable else "down", namespace=self.switch)
        if not multicast:
            ip("link", "set", port, "type", "bridge_slave", "mcast_flood", "off", namespace=self.switch)
        ip("link", "set", "lo", "up", namespace=host)
        # No time is spent on finding out whether another host has the same address.
        within(host, lambda: Path("/proc/sys/net/ipv6/conf/eth0/accept_dad").write_text("0"))
        if not ipv6:
            within(host, lambda: Path("/proc/sys/net/ipv6/conf/eth0/disable_ipv6").write_text("1"))
        if ipv4:
            self.assign(number)
        ip("link", "set", "eth0", "up", namespace=host)
        return host

    def assign(self, number: int, last: int | None = None) -> None:
        """Gives a host its address, or another one."""
        address = f"10.77.0.{last or number}/24"
        ip("address", "add", address, "dev", "eth0", namespace=f"{self.name}-{number}")

    def withdraw(self, number: int) -> None:
        host = f"{self.name}-{number}"
        ip("address", "delete", f"10.77.0.{number}/24", "dev", "eth0", namespace=host)

    def cable(self, number: int, state: str) -> None:
        ip("link", "set", f"port{number}", state, namespace=self.switch)

    def split(self, numbers: Sequence[int]) -> None:
        """Moves some hosts' cables to a switch of their own."""
        ip("link", "add", "br1", "type", "bridge", namespace=self.switch)
        ip("link", "set", "br1", "up", namespace=self.switch)
        for number in numbers:
            ip("link", "set", f"port{number}", "master", "br1", namespace=self.switch)

    def join(self, numbers: Sequence[int]) -> None:
        """Ends a split."""
        for number in numbers:
            ip("link", "set", f"port{number}", "master", "br0", namespace=self.switch)
        ip("link", "delete", "br1", namespace=self.switch)

    def remove(self) -> None:
        for namespace in self.namespaces:
            ip("netns", "delete", namespace)


@contextmanager
def new_lan() -> Iterator[Lan]:
    """Skips the test where there can be none."""
    if os.geteuid() != 0 or shutil.which("ip") is None:
        pytest.skip("needs root and the ip command")
    try:
        made = Lan(f"rm{os.getpid()}")
    except subprocess.CalledProcessError as error:
        pytest.skip(f"no network namespaces here: {error.stderr.decode().strip()}")
    try:
        yield made
    finally:
        made.remove()


def within(namespace: str, work: Callable[[], Result]) -> Result:
    """Runs `work` on a host; sockets that it opens stay there."""
    results: list[Result] = []

    def run() -> None:
        libc = ctypes.CDLL(None, use_errno=True)
        with Path(f"/run/netns/{namespace}").open() as entry:
            if libc.setns(entry.fileno(), _CLONE_NEWNET):
                raise OSError(ctypes.get_errno(), "setns")
        results.append(work())

    thread = threading.Thread(target=run)
    thread.start()
    thread.join()
    assert results, "the work on the host failed"
    return results[0]


async def within_soon(namespace: str, work: Callable[[], Result]) -> Result:
    """As `within`, beside this loop's other work."""
    return await asyncio.to_thread(within, namespace, work)
