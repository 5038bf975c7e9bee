"""A TCP proxy that makes a link long, unsteady and lossy: `python -m node.testbed.delay_proxy --help`.

For kernels without netem, and for no more of the network than one link. A proxy can't lose a segment of a TCP
stream; what the receiver sees of a loss is that the segment and all behind it come a retransmission later.
"""

from __future__ import annotations

import asyncio
import contextlib
import random
import signal
from collections.abc import Sequence
from dataclasses import dataclass

import click

SEGMENT_BYTES = 1448
"""Of a TCP segment on Ethernet: what one loss takes."""

CHUNK_BYTES = 16 << 10
WINDOW_BYTES = 4 << 20
"""Under way in one direction of a connection; then the sender waits, as by a TCP window."""

SHORTEST_RETRANSMISSION_S = 0.2
"""Linux's least retransmission time-out, TCP_RTO_MIN."""

CONNECT_S = 10.0


@dataclass(frozen=True, slots=True)
class Conditions:
    """Of one direction of a link: `delay_s` each way, plus up to `jitter_s` more; `loss` of a segment."""

    delay_s: float = 0.0
    jitter_s: float = 0.0
    loss: float = 0.0

    @property
    def retransmission_s(self) -> float:
        return max(SHORTEST_RETRANSMISSION_S, 2 * (self.delay_s + self.jitter_s))


class Schedule:
    """When each chunk of one direction arrives: never before the chunk ahead of it."""

    def __init__(self, conditions: Conditions, rng: random.Random) -> None:
        self._conditions = conditions
        self._rng = rng
        self._last = 0.0

    def arrival(self, now: float, size: int) -> float:
        conditions = self._conditions
        at = now + conditions.delay_s + self._rng.uniform(0, conditions.jitter_s)
        for _ in range(-(-size // SEGMENT_BYTES)):
            if self._rng.random() < conditions.loss:
                at += conditions.retransmission_s
        self._last = max(self._last, at)
        return self._last


class DelayProxy:
    """Listens at one address and passes every connection on to another, as late as the conditions say."""

    def __init__(self, target: tuple[str, int], conditions: Conditions, rng: random.Random) -> None:
        self._target = target
        self._conditions = conditions
        self._rng = rng
        self._server: asyncio.Server | None = None
        self._connections: set[asyncio.Task[None]] = set()

    async def start(self, host: str, port: int) -> tuple[str, int]:
        """The address listened at, which tells the port where 0 was asked for. Raises OSError."""
        self._server = await asyncio.start_server(self._accept, host, port, limit=CHUNK_BYTES)
        address = self._server.sockets[0].getsockname()
        return str(address[0]), int(address[1])

    async def stop(self) -> None:
        """Cuts every connection."""
        if self._server is not None:
            self._server.close()
        for connection in self._connections:
            connection.cancel()
        await asyncio.gather(*self._connections, return_exceptions=True)

    async def _accept(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        task = asyncio.current_task()
        assert task is not None
        self._connections.add(task)
        try:
            await self._serve(reader, writer)
        except* (OSError, asyncio.CancelledError):
            writer.transport.abort()  # the far side failed, or `stop`
        finally:
            with contextlib.suppress(OSError):
                await writer.wait_closed()
            self._connections.discard(task)

    async def _serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        await asyncio.sleep(2 * self._conditions.delay_s)  # the handshake's round trip
        async with asyncio.timeout(CONNECT_S):
            far_reader, far_writer = await asyncio.open_connection(*self._target, limit=CHUNK_BYTES)
        try:
            async with asyncio.TaskGroup() as directions:
                directions.create_task(self._carry(reader, far_writer))
                directions.create_task(self._carry(far_reader, writer))
        except BaseException:
            far_writer.transport.abort()
            raise
        far_writer.close()
        writer.close()
        await far_writer.wait_closed()

    async def _carry(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        """One direction, until its end has been passed on."""
        schedule = Schedule(self._conditions, self._rng)
        under_way: asyncio.Queue[tuple[float, bytes]] = asyncio.Queue(WINDOW_BYTES // CHUNK_BYTES)
        async with asyncio.TaskGroup() as both:
            both.create_task(_deliver(under_way, writer))
            clock = asyncio.get_running_loop().time
            chunk = b"."
            while chunk:
                chunk = await reader.read(CHUNK_BYTES)
                await under_way.put((schedule.arrival(clock(), len(chunk)), chunk))


async def _deliver(under_way: asyncio.Queue[tuple[float, bytes]], writer: asyncio.StreamWriter) -> None:
    clock = asyncio.get_running_loop().time
    while True:
        at, chunk = await under_way.get()
        await asyncio.sleep(at - clock())
        if not chunk:
            writer.write_eof()
            return
        writer.write(chunk)
        await writer.drain()


def _address(text: str, *, default_host: str = "") -> tuple[str, int]:
    host, _, port = text.rpartition(":")
    host = host.strip("[]") or default_host
    if not host or not port.isdecimal() or not 0 <= int(port) < 65536:
        raise click.BadParameter(f"{text!r} is not HOST:PORT")
    return host, int(port)


@click.command()
@click.option("--listen", multiple=True, required=True, metavar="[HOST:]PORT", help="Loopback by default.")
@click.option("--to", multiple=True, required=True, metavar="HOST:PORT", help="One for each --listen.")
@click.option("--delay-ms", type=click.FloatRange(0), default=0.0, show_default=True, help="One way.")
@click.option("--jitter-ms", type=click.FloatRange(0), default=0.0, show_default=True, help="At most.")
@click.option("--loss", type=click.FloatRange(0, 1, max_open=True), default=0.0, help="Of segments, 0 to 1.")
@click.option("--seed", type=int, help="Of jitter and loss; random by default.")
def main(
    listen: Sequence[str], to: Sequence[str], delay_ms: float, jitter_ms: float, loss: float, seed: int | None
) -> None:
    """Pass TCP connections on, late: both directions of each have the delay, the jitter and the loss."""
    if len(listen) != len(to):
        raise click.UsageError(f"{len(listen)} --listen and {len(to)} --to: give as many of both")
    conditions = Conditions(delay_ms / 1000, jitter_ms / 1000, loss)
    links = [(_address(a, default_host="127.0.0.1"), _address(b)) for a, b in zip(listen, to, strict=True)]
    asyncio.run(_run(links, conditions, random.Random(seed)))


async def _run(
    links: Sequence[tuple[tuple[str, int], tuple[str, int]]], conditions: Conditions, rng: random.Random
) -> None:
    stop = asyncio.Event()
    for number in (signal.SIGINT, signal.SIGTERM):
        asyncio.get_running_loop().add_signal_handler(number, stop.set)
    async with contextlib.AsyncExitStack() as stack:
        for near, far in links:
            proxy = DelayProxy(far, conditions, rng)
            host, port = await proxy.start(*near)
            stack.push_async_callback(proxy.stop)
            click.echo(f"{host}:{port} -> {far[0]}:{far[1]}")
        await stop.wait()


if __name__ == "__main__":
    main()
