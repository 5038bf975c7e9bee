"""The delaying proxy: whole streams, in order, never too soon."""

from __future__ import annotations

import asyncio
import random
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager, suppress

import pytest
from click.testing import CliRunner

from node.testbed.delay_proxy import SEGMENT_BYTES, Conditions, DelayProxy, Schedule, main

LOCAL = "127.0.0.1"
CUT = (ConnectionResetError, asyncio.IncompleteReadError)


@asynccontextmanager
async def echo_behind(conditions: Conditions) -> AsyncIterator[tuple[str, int]]:
    """The address of a proxy to a server that sends back all it gets, and ends when its client does."""

    echoing: set[asyncio.Task[None]] = set()

    async def echo(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        task = asyncio.current_task()
        assert task is not None
        echoing.add(task)
        with suppress(ConnectionError):
            while data := await reader.read(4096):
                writer.write(data)
                await writer.drain()
        writer.close()
        with suppress(ConnectionError):
            await writer.wait_closed()

    server = await asyncio.start_server(echo, LOCAL, 0)
    proxy = DelayProxy(server.sockets[0].getsockname()[:2], conditions, random.Random(1))
    try:
        yield await proxy.start(LOCAL, 0)
    finally:
        await proxy.stop()
        await asyncio.gather(*echoing)
        server.close()


async def exchange(address: tuple[str, int], data: bytes) -> bytes:
    """What comes back, to the end, of what was sent and ended."""
    reader, writer = await asyncio.open_connection(*address)
    writer.write(data)
    writer.write_eof()
    answer = await reader.read()
    await end(writer)
    return answer


async def end(writer: asyncio.StreamWriter) -> None:
    writer.close()
    with suppress(ConnectionError):
        await writer.wait_closed()


async def test_a_stream_arrives_whole_and_in_order_whatever_the_link() -> None:
    data = random.Random(2).randbytes(300_000)
    async with echo_behind(Conditions(0.002, 0.01, 0.01)) as address:
        answers = await asyncio.gather(*(exchange(address, data) for _ in range(3)))
    assert answers == [data] * 3


async def test_nothing_comes_back_before_two_round_trips() -> None:
    """One connects, the other carries the data."""
    clock = asyncio.get_running_loop().time
    async with echo_behind(Conditions(delay_s=0.03)) as address:
        started = clock()
        assert await exchange(address, b"ping") == b"ping"
        assert clock() - started >= 4 * 0.03 - 0.002  # two sleeps may each end a clock tick early


def test_chunks_keep_their_order_and_their_least_delay() -> None:
    schedule = Schedule(Conditions(0.05, 0.05, 0.2), random.Random(3))
    arrivals = [(now, schedule.arrival(now, 100)) for now in (n / 1000 for n in range(1000))]
    assert [at for _, at in arrivals] == sorted(at for _, at in arrivals)
    assert all(at >= now + 0.05 for now, at in arrivals)


def test_a_loss_costs_a_retransmission_and_is_as_frequent_as_told() -> None:
    conditions = Conditions(delay_s=0.15, loss=0.1)
    late = sum(
        Schedule(conditions, random.Random(seed)).arrival(0.0, SEGMENT_BYTES) > 0.4 for seed in range(2000)
    )
    assert 150 <= late <= 250
    assert conditions.retransmission_s == pytest.approx(0.3)
    longer = sum(
        Schedule(conditions, random.Random(seed)).arrival(0.0, 5 * SEGMENT_BYTES) > 0.4
        for seed in range(2000)
    )
    assert 700 <= longer <= 920  # 1 - 0.9^5 is 41 %


async def test_a_connection_ends_when_nobody_answers_behind_the_proxy() -> None:
    proxy = DelayProxy((LOCAL, 1), Conditions(), random.Random(1))
    address = await proxy.start(LOCAL, 0)
    reader, writer = await asyncio.open_connection(*address)
    with pytest.raises(CUT):
        await asyncio.wait_for(reader.readexactly(1), 10)
    await end(writer)
    await proxy.stop()


async def test_stopping_cuts_what_is_under_way() -> None:
    async with echo_behind(Conditions(delay_s=60)) as address:
        reader, writer = await asyncio.open_connection(*address)
        writer.write(b"x")
    with pytest.raises(CUT):
        await asyncio.wait_for(reader.readexactly(1), 10)
    await end(writer)


@pytest.mark.parametrize(
    ("arguments", "says"),
    [
        (["--listen", "1", "--listen", "2", "--to", "h:1"], "as many"),
        (["--listen", "x", "--to", "h:1"], "HOST:PORT"),
        (["--listen", "1", "--to", ":1"], "HOST:PORT"),
        (["--listen", "1", "--to", "h:1", "--loss", "1"], "0<=x<1"),
    ],
)
def test_wrong_use_is_named(arguments: list[str], says: str) -> None:
    outcome = CliRunner().invoke(main, arguments)
    assert outcome.exit_code == 2
    assert says in outcome.output
