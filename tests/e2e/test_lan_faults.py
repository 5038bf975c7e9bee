"""Real processes on real hosts that are stopped, killed, or cut off: the mesh is whole again within a minute.

And no healthy node was declared dead by a healthy node.
"""

from __future__ import annotations

import signal
from collections.abc import AsyncIterator, Iterator
from contextlib import AsyncExitStack
from pathlib import Path

import pytest

from certs.token import MeshToken
from tests.e2e.lan import Lan, new_lan
from tests.e2e.test_lan import Host, is_whole, running
from tests.unit.overlay.net.meshes import eventually

pytestmark = [pytest.mark.e2e, pytest.mark.soak, pytest.mark.timeout(400)]

SEED = ("10.77.0.1:7070", "--no-mdns")
DECLARED_S = 90.0
"""The longest suspicion, and a broken connection's time to be noticed, on a busy machine."""

WHOLE_S = 60.0


@pytest.fixture
def lan() -> Iterator[Lan]:
    with new_lan() as made:
        yield made


@pytest.fixture
async def mesh(lan: Lan, tmp_path: Path) -> AsyncIterator[tuple[AsyncExitStack, MeshToken, list[Host]]]:
    """Four members; the first is the others' seed."""
    token = MeshToken.make()
    async with AsyncExitStack() as stack:
        hosts = [
            await stack.enter_async_context(running(lan.plug_in(number), tmp_path, token, *SEED))
            for number in range(1, 5)
        ]
        await eventually(lambda: is_whole(*hosts), WHOLE_S)
        yield stack, token, hosts


async def test_a_stopped_process_that_goes_on_is_back_and_blames_nobody(
    mesh: tuple[AsyncExitStack, MeshToken, list[Host]],
) -> None:
    _, _, (a, b, c, stopped) = mesh
    stopped.process.send_signal(signal.SIGSTOP)
    await eventually(lambda: all(stopped.node_id in host.dead for host in (a, b, c)), DECLARED_S)
    stopped.process.send_signal(signal.SIGCONT)
    await eventually(lambda: is_whole(a, b, c, stopped), WHOLE_S)
    assert [host.mourned - {stopped.node_id} for host in (a, b, c)] == [set()] * 3
    assert stopped.mourned == set()


async def test_a_killed_process_that_is_restarted_is_back(
    lan: Lan, tmp_path: Path, mesh: tuple[AsyncExitStack, MeshToken, list[Host]]
) -> None:
    stack, token, (a, b, c, killed) = mesh
    killed.process.kill()
    await eventually(lambda: all(killed.node_id in host.dead for host in (a, b, c)), DECLARED_S)
    again = await stack.enter_async_context(running(f"{lan.name}-4", tmp_path, token, *SEED))
    await eventually(lambda: is_whole(a, b, c, again), WHOLE_S)
    assert again.node_id == killed.node_id
    assert [host.mourned - {killed.node_id} for host in (a, b, c)] == [set()] * 3
    assert again.mourned == set()


async def test_a_mesh_cut_in_two_is_whole_again_once_it_is_joined(
    lan: Lan, mesh: tuple[AsyncExitStack, MeshToken, list[Host]]
) -> None:
    """The cut lasts until every node of each half has given up every node of the other."""
    _, _, (a, b, c, d) = mesh
    lan.split([3, 4])
    halves = {host: ({a, b}, {c, d})[host in (c, d)] for host in (a, b, c, d)}
    lost = {host: {other.node_id for other in (a, b, c, d) if other not in halves[host]} for host in halves}
    await eventually(lambda: all(host.dead == lost[host] for host in halves), DECLARED_S)
    assert is_whole(a, b)
    assert is_whole(c, d)
    lan.join([3, 4])
    await eventually(lambda: is_whole(a, b, c, d), WHOLE_S)
    assert all(host.mourned == lost[host] for host in halves)
