"""Mesh members on hosts of a LAN: what mDNS, cables and addresses do to them."""

from __future__ import annotations

import asyncio
import json
import shutil
import subprocess
import sys
from collections.abc import AsyncIterator, Iterator
from contextlib import AsyncExitStack, asynccontextmanager, suppress
from pathlib import Path

import pytest

from certs.token import MeshToken
from node.doctor.check import Check, Severity
from node.doctor.multicast import check_multicast
from tests.e2e.lan import Lan, new_lan, within_soon
from tests.unit.overlay.net.meshes import eventually

pytestmark = pytest.mark.e2e

ROOT = Path(__file__).parents[2]


@pytest.fixture
def lan() -> Iterator[Lan]:
    with new_lan() as made:
        yield made


class Host:
    """A member's process; `peers` is whom it last said it is connected to, `reachable` whom it can call.

    `dead` is whom it last believed dead, `mourned` whom it ever did.
    """

    def __init__(self, process: asyncio.subprocess.Process) -> None:
        self.process = process
        self.node_id = ""
        self.peers: set[str] = set()
        self.reachable: set[str] = set()
        self.dead: set[str] = set()
        self.mourned: set[str] = set()
        self.said = ""

    async def follow(self) -> None:
        assert self.process.stdout is not None
        async for line in self.process.stdout:
            told = json.loads(line)
            if isinstance(told, str):
                self.node_id = told
            else:
                self.peers, self.reachable, self.dead = map(set, told)
                self.mourned |= self.dead

    async def listen(self) -> None:
        assert self.process.stderr is not None
        async for line in self.process.stderr:
            self.said += line.decode()


@asynccontextmanager
async def running(namespace: str, folder: Path, token: MeshToken, *seeds: str) -> AsyncIterator[Host]:
    process = await asyncio.create_subprocess_exec(
        "ip", "netns", "exec", namespace,
        sys.executable, "-m", "tests.e2e.lan_host", str(folder / namespace), str(token), *seeds,
        cwd=ROOT, stdout=asyncio.subprocess.PIPE, stderr=asyncio.subprocess.PIPE,
    )  # fmt: skip
    host = Host(process)
    following = [asyncio.create_task(host.follow()), asyncio.create_task(host.listen())]
    try:
        yield host
    finally:
        with suppress(ProcessLookupError):  # a test may have killed it
            process.terminate()
        await process.wait()
        await asyncio.gather(*following)
        assert "Traceback" not in host.said, host.said


def is_whole(*hosts: Host) -> bool:
    """Whether each is connected to all the others and to nobody else, and can send them requests."""
    ids = {host.node_id for host in hosts}
    return "" not in ids and all(host.peers == host.reachable == ids - {host.node_id} for host in hosts)


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
        late = lan.plug_in(4, multicast=False)
        d = await stack.enter_async_context(running(late, tmp_path, token, "10.77.0.1"))
        await eventually(lambda: is_whole(a, b, d), 30)
        await eventually(lambda: "--peer HOST:PORT" in c.said, 30)
        assert not c.peers
        assert c.said.count("no peer found") == 1


async def test_a_new_address_and_a_pulled_cable_heal(lan: Lan, tmp_path: Path) -> None:
    token = MeshToken.make()
    async with AsyncExitStack() as stack:
        # With IPv6 they would not even notice.
        a, b = [
            await stack.enter_async_context(running(lan.plug_in(number, ipv6=False), tmp_path, token))
            for number in (1, 2)
        ]
        await eventually(lambda: is_whole(a, b), 30)
        lan.withdraw(2)
        lan.assign(2, 22)
        await eventually(lambda: not is_whole(a, b), 40)
        await eventually(lambda: is_whole(a, b), 60)
        lan.cable(1, "down")
        await eventually(lambda: not a.peers and not b.peers, 40)
        lan.cable(1, "up")
        await eventually(lambda: is_whole(a, b), 60)


async def test_hosts_meet_by_link_local_addresses_alone(lan: Lan, tmp_path: Path) -> None:
    token = MeshToken.make()
    async with AsyncExitStack() as stack:
        a, b, c = [
            await stack.enter_async_context(running(lan.plug_in(number, ipv4=False), tmp_path, token))
            for number in (1, 2, 3)
        ]
        await eventually(lambda: is_whole(a, b, c), 30)


async def test_a_host_that_starts_before_its_network_is_found_later(lan: Lan, tmp_path: Path) -> None:
    token = MeshToken.make()
    early = lan.plug_in(1, ipv4=False, cable=False)
    async with AsyncExitStack() as stack:
        a = await stack.enter_async_context(running(early, tmp_path, token))
        b = await stack.enter_async_context(running(lan.plug_in(2), tmp_path, token))
        await eventually(lambda: bool(a.node_id and b.node_id), 30)
        lan.cable(1, "up")
        lan.assign(1)
        await eventually(lambda: is_whole(a, b), 60)


async def test_the_doctor_tells_what_multicast_does(lan: Lan, tmp_path: Path) -> None:
    mine, alone = lan.plug_in(1), lan.plug_in(2, multicast=False)

    async def examined(host: str) -> Check:
        (check,) = await within_soon(host, lambda: asyncio.run(check_multicast()))
        return check

    async with running(lan.plug_in(3), tmp_path, MeshToken.make()) as other:
        await eventually(lambda: bool(other.node_id), 30)
        heard, unheard = await asyncio.gather(examined(mine), examined(alone))
        assert "out and in" in heard.detail
        assert (unheard.severity, "nobody else spoke" in unheard.detail) == (Severity.OK, True)
        block(mine)
        blocked = await examined(mine)
        assert (blocked.severity, "--peer" in blocked.remedy) == (Severity.WARNING, True)


def block(host: str) -> None:
    """A firewall in front of mDNS."""
    rule = ["iptables", "-A", "INPUT", "-p", "udp", "--dport", "5353", "-j", "DROP"]
    try:
        subprocess.run(["ip", "netns", "exec", host, *rule], check=True, capture_output=True)
    except (OSError, subprocess.CalledProcessError):
        pytest.skip("no iptables here")


async def test_a_copy_of_a_host_is_told_of(lan: Lan, tmp_path: Path) -> None:
    """Somebody cloned a machine, state folder and all."""
    token = MeshToken.make()
    first, copy = lan.plug_in(1), lan.plug_in(2)
    async with running(first, tmp_path, token) as a:
        await eventually(lambda: bool(a.node_id), 30)
        shutil.copytree(tmp_path / first, tmp_path / copy)
        async with running(copy, tmp_path, token, "10.77.0.1") as b:
            await eventually(lambda: "another machine (10.77.0.2" in a.said, 30)
            await eventually(lambda: "10.77.0.1:7070 is a copy of this one" in b.said, 30)
            assert a.node_id == b.node_id
