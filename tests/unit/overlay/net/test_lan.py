"""Real hosts: network namespaces joined by a bridge. Needs root and the `ip` command."""

from __future__ import annotations

import asyncio
import json
import os
import shutil
import subprocess
import sys
from collections.abc import AsyncIterator, Iterator
from contextlib import AsyncExitStack, asynccontextmanager
from pathlib import Path

import pytest

from certs.token import MeshToken
from tests.unit.overlay.net.meshes import eventually

ROOT = Path(__file__).parents[4]


def ip(*arguments: str, namespace: str | None = None) -> None:
    prefix = ["ip", "-n", namespace] if namespace else ["ip"]
    subprocess.run([*prefix, *arguments], check=True, capture_output=True)


class Lan:
    """A switch and the hosts plugged into it; host `n` has the address 10.77.0.n."""

    def __init__(self, name: str) -> None:
        self.name = name
        self.switch = f"{name}-switch"
        self.namespaces = [self.switch]
        ip("netns", "add", self.switch)
        ip("link", "add", "br0", "type", "bridge", namespace=self.switch)
        ip("link", "set", "br0", "up", namespace=self.switch)

    def plug_in(self, number: int, *, multicast: bool = True) -> str:
        """A new host's namespace."""
        host, port = f"{self.name}-{number}", f"port{number}"
        ip("netns", "add", host)
        self.namespaces.append(host)
        ip("link", "add", "eth0", "netns", host, "type", "veth", "peer", "name", port, "netns", self.switch)
        ip("link", "set", port, "master", "br0", "up", namespace=self.switch)
        if not multicast:
            ip("link", "set", port, "type", "bridge_slave", "mcast_flood", "off", namespace=self.switch)
        ip("link", "set", "lo", "up", namespace=host)
        ip("address", "add", f"10.77.0.{number}/24", "dev", "eth0", namespace=host)
        ip("link", "set", "eth0", "up", namespace=host)
        return host

    def cable(self, number: int, state: str) -> None:
        ip("link", "set", f"port{number}", state, namespace=self.switch)

    def remove(self) -> None:
        for namespace in self.namespaces:
            ip("netns", "delete", namespace)


@pytest.fixture
def lan() -> Iterator[Lan]:
    if os.geteuid() != 0 or shutil.which("ip") is None:
        pytest.skip("needs root and the ip command")
    try:
        made = Lan(f"rm{os.getpid()}")
    except subprocess.CalledProcessError as error:
        pytest.skip(f"no network namespaces here: {error.stderr.decode().strip()}")
    yield made
    made.remove()


class Host:
    """A member's process; `peers` is whom it last said it is connected to."""

    def __init__(self, process: asyncio.subprocess.Process) -> None:
        self.process = process
        self.node_id = ""
        self.peers: set[str] = set()

    async def follow(self) -> None:
        assert self.process.stdout is not None
        async for line in self.process.stdout:
            told = json.loads(line)
            if isinstance(told, str):
                self.node_id = told
            else:
                self.peers = set(told)


@asynccontextmanager
async def running(namespace: str, folder: Path, token: MeshToken, *seeds: str) -> AsyncIterator[Host]:
    process = await asyncio.create_subprocess_exec(
        "ip", "netns", "exec", namespace,
        sys.executable, "-m", "tests.unit.overlay.net.lan_host", str(folder / namespace), str(token), *seeds,
        cwd=ROOT, stdout=asyncio.subprocess.PIPE,
    )  # fmt: skip
    host = Host(process)
    following = asyncio.create_task(host.follow())
    try:
        yield host
    finally:
        process.terminate()
        await process.wait()
        await following


def is_whole(*hosts: Host) -> bool:
    ids = {host.node_id for host in hosts}
    return "" not in ids and all(host.peers == ids - {host.node_id} for host in hosts)


@pytest.mark.e2e
async def test_hosts_meet_by_mdns_alone_and_two_meshes_never_mix(lan: Lan, tmp_path: Path) -> None:
    ours, theirs = MeshToken.make(), MeshToken.make()
    async with AsyncExitStack() as stack:
        a, b, c, x, y = [
            await stack.enter_async_context(running(lan.plug_in(number), tmp_path, token))
            for number, token in ((1, ours), (2, ours), (3, ours), (4, theirs), (5, theirs))
        ]
        await eventually(lambda: is_whole(a, b, c) and is_whole(x, y), 30)


@pytest.mark.e2e
async def test_one_peer_is_enough_where_multicast_is_blocked(lan: Lan, tmp_path: Path) -> None:
    token = MeshToken.make()
    async with AsyncExitStack() as stack:
        a, b, c = [
            await stack.enter_async_context(
                running(lan.plug_in(number, multicast=False), tmp_path, token, *seeds)
            )
            for number, seeds in ((1, ()), (2, ("10.77.0.1:7070",)), (3, ()))
        ]
        await eventually(lambda: is_whole(a, b), 30)
        d = await stack.enter_async_context(running(lan.plug_in(4), tmp_path, token, "10.77.0.1"))
        await eventually(lambda: is_whole(a, b, d), 30)
        assert not c.peers


@pytest.mark.e2e
async def test_a_new_address_and_a_pulled_cable_heal(lan: Lan, tmp_path: Path) -> None:
    token = MeshToken.make()
    async with AsyncExitStack() as stack:
        a = await stack.enter_async_context(running(lan.plug_in(1), tmp_path, token))
        b = await stack.enter_async_context(running(lan.plug_in(2), tmp_path, token))
        await eventually(lambda: is_whole(a, b), 30)
        moved = f"{lan.name}-2"
        ip("address", "delete", "10.77.0.2/24", "dev", "eth0", namespace=moved)
        ip("address", "add", "10.77.0.22/24", "dev", "eth0", namespace=moved)
        await eventually(lambda: not is_whole(a, b), 40)
        await eventually(lambda: is_whole(a, b), 60)
        lan.cable(1, "down")
        await eventually(lambda: not a.peers and not b.peers, 40)
        lan.cable(1, "up")
        await eventually(lambda: is_whole(a, b), 60)
