"""Gossip streams inside one process, for tests of everything above the transport."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from contextlib import aclosing

from google.protobuf.message import DecodeError

from overlay.core.types import Address, NodeId
from overlay.net.errors import (
    MalformedFrameError,
    RefusedError,
    SelfDialError,
    StreamLostError,
    WrongPeerError,
)
from overlay.net.tasks import TaskGroup
from overlay.net.transport import Accept, Frames
from rumormill.v1 import overlay_pb2 as pb

QUEUE_FRAMES = 64
"""Frames on the wire at once in one direction; a full wire blocks the sender."""


class MemoryNetwork:
    """Where memory transports find one another by address."""

    def __init__(self) -> None:
        self._listeners: dict[Address, MemoryTransport] = {}

    def listen(self, address: Address, transport: MemoryTransport) -> None:
        self._listeners[address] = transport

    def unlisten(self, address: Address) -> None:
        self._listeners.pop(address, None)

    def at(self, address: Address) -> MemoryTransport:
        """Raises RefusedError."""
        if address not in self._listeners:
            raise RefusedError(f"nobody listens at {address}; is a node running there?")
        return self._listeners[address]


class MemoryTransport:
    """A node on a MemoryNetwork; frames are serialized and parsed as on a real wire."""

    def __init__(self, network: MemoryNetwork, node_id: NodeId, accept: Callable[[], Accept]) -> None:
        self.node_id = node_id
        self.accept = accept
        self._network = network
        self._tasks = TaskGroup("memory transport")
        self._streams: list[MemoryStream] = []

    async def dial(self, address: Address, node_id: NodeId | None, outgoing: Frames) -> MemoryStream:
        await asyncio.sleep(0)
        other = self._network.at(address)
        if other is self:
            raise SelfDialError(f"{address} leads to this node itself")
        if node_id is not None and other.node_id != node_id:
            raise WrongPeerError(f"node {other.node_id} answers at {address}, not {node_id}")
        here, there = MemoryStream(other.node_id), MemoryStream(self.node_id)
        here.other, there.other = there, here
        self._carry(outgoing, there)
        other.take(there, here)
        self._streams.append(here)
        return here

    def take(self, stream: MemoryStream, other_end: MemoryStream) -> None:
        """Takes the accepting end of a stream that a peer dialled."""
        self._streams.append(stream)
        self._carry(self.accept()(stream), other_end)

    def _carry(self, outgoing: Frames, to: MemoryStream) -> None:
        self._tasks.spawn(_carry(outgoing, to))

    async def close(self) -> None:
        for stream in self._streams:
            stream.abort()
        await self._tasks.close()


class MemoryStream:
    """One end of a stream; `wire` holds what the other end has sent."""

    def __init__(self, peer: NodeId) -> None:
        self.peer = peer
        self.certificate = None
        self.wire: asyncio.Queue[bytes | None] = asyncio.Queue(QUEUE_FRAMES)
        self.other: MemoryStream | None = None
        self.broken = asyncio.Event()

    async def frames(self) -> Frames:
        while True:
            data = await self._next()
            if data is None:
                return
            try:
                frame = pb.Frame.FromString(data)
            except DecodeError as error:
                raise MalformedFrameError(str(error)) from error
            yield frame

    async def _next(self) -> bytes | None:
        reading = asyncio.ensure_future(self.wire.get())
        breaking = asyncio.ensure_future(self.broken.wait())
        try:
            done, _ = await asyncio.wait((reading, breaking), return_when=asyncio.FIRST_COMPLETED)
        finally:
            reading.cancel()
            breaking.cancel()
        if reading not in done:
            raise StreamLostError("the connection is gone")
        return reading.result()

    def abort(self) -> None:
        self.broken.set()
        if self.other is not None:
            self.other.broken.set()


async def _carry(outgoing: Frames, to: MemoryStream) -> None:
    async with aclosing(outgoing):
        async for frame in outgoing:
            await to.wire.put(frame.SerializeToString())
    await to.wire.put(None)
