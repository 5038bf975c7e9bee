"""Real meshes on loopback: a gRPC server with mutual TLS around each."""

from __future__ import annotations

import asyncio
import time
from collections.abc import AsyncIterator, Callable
from functools import partial
from pathlib import Path

import grpc
import grpc.aio

from certs.credentials import Credentials
from certs.token import MeshToken
from certs.token_source import node_credentials
from overlay.core.timing import Timing
from overlay.core.types import Address
from overlay.net.bootstrap import Seeds
from overlay.net.mesh import Mesh, MeshOptions
from rumormill.v1 import overlay_pb2 as pb
from rumormill.v1 import overlay_pb2_grpc

TOKEN = MeshToken(bytes(range(32)))
FAST = Timing(
    heartbeat_s=0.2,
    ack_s=0.2,
    flush_s=0.02,
    flush_max_s=0.1,
    gossip_s=0.05,
    dial_first_s=0.05,
    dial_max_s=0.4,
)
DEADLINE_S = 15.0


class Servicer(overlay_pb2_grpc.OverlayServicer):
    def __init__(self, mesh: Mesh) -> None:
        self._mesh = mesh

    async def Gossip(  # noqa: N802  the generated name
        self,
        request_iterator: AsyncIterator[pb.Frame],
        context: grpc.aio.ServicerContext[pb.Frame, pb.Frame],
    ) -> AsyncIterator[pb.Frame]:
        async for frame in self._mesh.gossip(request_iterator, context):
            yield frame

    async def Forward(  # noqa: N802  the generated name
        self,
        request: pb.ForwardRequest,
        context: grpc.aio.ServicerContext[pb.ForwardRequest, pb.ForwardResponse],
    ) -> AsyncIterator[pb.ForwardResponse]:
        yield pb.ForwardResponse(tokens=pb.Tokens(token_ids=request.prompt.ids))


class Member:
    """One node of a mesh: its gRPC server and its Mesh."""

    def __init__(
        self,
        state_dir: Path,
        *,
        token: MeshToken = TOKEN,
        seeds: tuple[str | Address, ...] = (),
        mdns: bool = False,
        port: int = 0,
        credentials: Credentials | None = None,
        interceptors: tuple[grpc.aio.ServerInterceptor, ...] = (),
        model: bytes = b"model",
        told: Address | None = None,
        bind: str = "127.0.0.1",
        addresses_now: Callable[[int], tuple[Address, ...]] | None = None,
        timing: Timing = FAST,
    ) -> None:
        self.credentials = credentials or node_credentials(token, state_dir)
        self.server = grpc.aio.server(
            interceptors=interceptors,
            options=(("grpc.so_reuseport", 0), ("grpc.http2.min_ping_interval_without_data_ms", 5_000)),
        )
        self.port = self.server.add_secure_port(f"{bind}:{port}", self.credentials.server_credentials())
        self.address = Address("127.0.0.1", self.port)
        options = MeshOptions(
            listen=addresses_now(self.port) if addresses_now else (told or self.address,),
            addresses_now=partial(addresses_now, self.port) if addresses_now else None,
            seeds=Seeds(seeds),
            model=model,
            model_name="test",
            http_url="",
            state_dir=state_dir,
            mdns=mdns,
            timing=timing,
        )
        self.mesh = Mesh(options, self.credentials)
        servicer = Servicer(self.mesh)  # type: ignore[abstract]  # nothing calls Describe
        overlay_pb2_grpc.add_OverlayServicer_to_server(servicer, self.server)

    async def __aenter__(self) -> Member:
        await self.server.start()
        await self.mesh.start()
        return self

    async def __aexit__(self, *_: object) -> None:
        await self.mesh.leave()
        await self.server.stop(0.5)

    async def crash(self) -> None:
        """Ends without a word to the peers."""
        await self.server.stop(None)
        await self.mesh._transport.close()
        await self.mesh.leave()

    def sees(self, *others: Member) -> bool:
        """Whether exactly `others` are alive and connected."""
        alive = {peer.node_id for peer in self.mesh.peers() if peer.connected and peer.state.value == "alive"}
        return alive == {other.mesh.node_id for other in others}


async def eventually(condition: Callable[[], bool], deadline_s: float = DEADLINE_S) -> None:
    """Waits until a condition holds; fails when it doesn't in time."""
    until = time.monotonic() + deadline_s
    while not condition():
        assert time.monotonic() < until, "the condition didn't come true in time"
        await asyncio.sleep(0.02)
