"""What every transport must do, checked on both."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from contextlib import AsyncExitStack, asynccontextmanager
from dataclasses import dataclass, field
from pathlib import Path

import grpc
import grpc.aio
import pytest

from certs.token_source import node_credentials
from overlay.core.types import Address, NodeId
from overlay.net.errors import DialError, RefusedError, SelfDialError, StreamLostError, WrongPeerError
from overlay.net.grpc_transport import GrpcTransport, serve_stream
from overlay.net.memory_transport import MemoryNetwork, MemoryTransport
from overlay.net.transport import Frames, Stream, Transport
from rumormill.v1 import overlay_pb2 as pb
from rumormill.v1 import overlay_pb2_grpc
from tests.unit.overlay.net.meshes import TOKEN, eventually

NOBODY = NodeId("a" * 52)


@dataclass
class End:
    """A node that keeps the streams it accepts, and answers each frame with a probe one higher."""

    node_id: NodeId
    address: Address
    transport: Transport
    accepted: list[Stream] = field(default_factory=list)
    received: list[int] = field(default_factory=list)
    ended: list[str] = field(default_factory=list)

    def accept(self, stream: Stream) -> Frames:
        self.accepted.append(stream)
        return self._answers(stream)

    async def _answers(self, stream: Stream) -> Frames:
        try:
            async for frame in stream.frames():
                self.received.append(frame.probe.sequence)
                yield pb.Frame(probe=pb.Probe(sequence=frame.probe.sequence + 1))
        except StreamLostError as error:
            self.ended.append(str(error))
        except asyncio.CancelledError:
            # gRPC cancels the handler of a call whose client is gone.
            self.ended.append("cancelled")
            raise
        else:
            self.ended.append("")


class Servicer(overlay_pb2_grpc.OverlayServicer):
    def __init__(self, security: object) -> None:
        self.security = security
        self.end: End | None = None

    async def Gossip(  # noqa: N802  the generated name
        self,
        request_iterator: AsyncIterator[pb.Frame],
        context: grpc.aio.ServicerContext[pb.Frame, pb.Frame],
    ) -> AsyncIterator[pb.Frame]:
        assert self.end is not None
        frames = serve_stream(request_iterator, context, self.security, self.end.accept)  # type: ignore[arg-type]
        async for frame in frames:
            yield frame


@asynccontextmanager
async def grpc_end(folder: Path) -> AsyncIterator[End]:
    security = node_credentials(TOKEN, folder)
    server = grpc.aio.server()
    port = server.add_secure_port("127.0.0.1:0", security.server_credentials())
    transport = GrpcTransport(security, lambda contact: None)
    servicer = Servicer(security)  # type: ignore[abstract]  # nothing calls Forward
    servicer.end = End(NodeId(security.node_id), Address("127.0.0.1", port), transport)
    overlay_pb2_grpc.add_OverlayServicer_to_server(servicer, server)
    await server.start()
    yield servicer.end
    await transport.close()
    await server.stop(None)


@pytest.fixture(params=["grpc", "memory"])
async def ends(request: pytest.FixtureRequest, tmp_path: Path) -> AsyncIterator[tuple[End, End]]:
    async with AsyncExitStack() as stack:
        if request.param == "grpc":
            a = await stack.enter_async_context(grpc_end(tmp_path / "a"))
            b = await stack.enter_async_context(grpc_end(tmp_path / "b"))
        else:
            network = MemoryNetwork()
            a, b = (memory_end(network, number) for number in (1, 2))
            for end in (a, b):
                stack.push_async_callback(end.transport.close)
        yield a, b


def memory_end(network: MemoryNetwork, number: int) -> End:
    node_id, address = NodeId("ab"[number - 1] * 52), Address("memory", number)
    end: End
    transport = MemoryTransport(network, node_id, lambda: end.accept)
    end = End(node_id, address, transport)
    network.listen(address, transport)
    return end


class Script:
    """Outgoing frames, fed by the test."""

    def __init__(self) -> None:
        self.queue: asyncio.Queue[pb.Frame | None] = asyncio.Queue()

    def send(self, sequence: int) -> None:
        self.queue.put_nowait(pb.Frame(probe=pb.Probe(sequence=sequence)))

    def end(self) -> None:
        self.queue.put_nowait(None)

    async def frames(self) -> Frames:
        while (frame := await self.queue.get()) is not None:
            yield frame


async def test_frames_flow_both_ways_in_order_until_the_dialler_ends(ends: tuple[End, End]) -> None:
    a, b = ends
    script = Script()
    stream = await a.transport.dial(b.address, b.node_id, script.frames())
    assert stream.peer == b.node_id
    incoming = stream.frames()
    for sequence in range(100):
        script.send(sequence)
    answers = [(await anext(incoming)).probe.sequence for _ in range(100)]
    assert answers == list(range(1, 101))
    assert b.received == list(range(100))
    assert b.accepted[0].peer == a.node_id
    script.end()
    assert [frame async for frame in incoming] == []
    assert b.ended == [""]


async def test_an_address_without_a_node_refuses(ends: tuple[End, End]) -> None:
    a, _ = ends
    with pytest.raises(RefusedError, match="nobody listens"):
        await a.transport.dial(Address("127.0.0.1", 1), None, Script().frames())


async def test_another_node_than_meant_is_not_talked_to(ends: tuple[End, End]) -> None:
    a, b = ends
    with pytest.raises(WrongPeerError):
        await a.transport.dial(b.address, NOBODY, Script().frames())
    assert not b.accepted


async def test_a_node_that_dials_itself_is_told(ends: tuple[End, End]) -> None:
    a, _ = ends
    with pytest.raises(SelfDialError):
        await a.transport.dial(a.address, None, Script().frames())


async def test_an_aborted_stream_ends_for_both(ends: tuple[End, End]) -> None:
    a, b = ends
    script = Script()
    stream = await a.transport.dial(b.address, None, script.frames())
    incoming = stream.frames()
    script.send(1)
    assert (await anext(incoming)).probe.sequence == 2
    b.accepted[0].abort()
    with pytest.raises(StreamLostError):
        await anext(incoming)


async def test_a_dialler_that_vanishes_is_noticed(ends: tuple[End, End]) -> None:
    a, b = ends
    script = Script()
    stream = await a.transport.dial(b.address, None, script.frames())
    script.send(1)
    await eventually(lambda: b.received == [1])
    stream.abort()
    await a.transport.close()
    await eventually(lambda: len(b.ended) == 1)


def test_every_dial_failure_is_a_dial_error() -> None:
    assert all(issubclass(kind, DialError) for kind in (RefusedError, SelfDialError, WrongPeerError))
