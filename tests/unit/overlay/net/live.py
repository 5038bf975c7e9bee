"""Runs the simulator's scripts on real transports, in real time: the same steps, the same outcome."""

from __future__ import annotations

import asyncio
import random
import time
from collections.abc import AsyncIterator, Callable
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path
from typing import Protocol

import grpc
import grpc.aio

from certs.token_source import node_credentials
from overlay.core import events
from overlay.core.core import Core
from overlay.core.options import CoreOptions
from overlay.core.types import Address, BlockHash, NodeId
from overlay.core.views import MemberChanged, Notification, PeerState
from overlay.net.driver import Driver
from overlay.net.grpc_transport import GrpcTransport, serve_stream
from overlay.net.hash_domain import HashDomain
from overlay.net.memory_transport import MemoryNetwork, MemoryTransport
from overlay.net.signer import GossipSigner
from overlay.net.store import Store
from overlay.net.transport import Accept, Transport
from overlay.sim.script import Script, Step
from rumormill.v1 import overlay_pb2 as pb
from rumormill.v1 import overlay_pb2_grpc
from tests.unit.overlay.net.meshes import TOKEN

PATIENCE = 4.0
"""Real time on a busy machine against the virtual time of the scripts' deadlines."""

DOMAIN = HashDomain(b"key of the block hashes")


class Door(Protocol):
    """How one node is reached, and reaches others."""

    address: Address

    async def open(self, accept: Accept) -> Transport: ...

    async def shut(self) -> None: ...


class MemoryDoor:
    def __init__(self, network: MemoryNetwork, node_id: NodeId, number: int) -> None:
        self.address = Address(f"n{number}", 7070)
        self._network, self._node_id = network, node_id

    async def open(self, accept: Accept) -> Transport:
        transport = MemoryTransport(self._network, self._node_id, lambda: accept)
        self._network.listen(self.address, transport)
        return transport

    async def shut(self) -> None:
        self._network.unlisten(self.address)


class GrpcDoor(overlay_pb2_grpc.OverlayServicer):
    """A gRPC server with mutual TLS; it keeps its port when it is opened again."""

    def __init__(self, folder: Path) -> None:
        self.credentials = node_credentials(TOKEN, folder)
        self._prepare(0)

    def _prepare(self, port: int) -> None:
        self._server = grpc.aio.server(options=(("grpc.so_reuseport", 0),))
        port = self._server.add_secure_port(f"127.0.0.1:{port}", self.credentials.server_credentials())
        self.address = Address("127.0.0.1", port)
        overlay_pb2_grpc.add_OverlayServicer_to_server(self, self._server)

    async def open(self, accept: Accept) -> Transport:
        self._accept = accept
        await self._server.start()
        return GrpcTransport(self.credentials, lambda _: None)

    async def shut(self) -> None:
        await self._server.stop(None)
        self._prepare(self.address.port)

    async def Gossip(  # noqa: N802  the generated name
        self,
        request_iterator: AsyncIterator[pb.Frame],
        context: grpc.aio.ServicerContext[pb.Frame, pb.Frame],
    ) -> AsyncIterator[pb.Frame]:
        frames = serve_stream(request_iterator, context, self.credentials, self._accept)
        try:
            async for frame in frames:
                yield frame
        finally:
            await frames.aclose()


@dataclass
class LiveNode:
    """One node: its driver while it runs, its disk, and the blocks its engine has."""

    node_id: NodeId
    door: Door
    signer: GossipSigner
    disk: Path
    blocks: set[int] = field(default_factory=set)
    driver: Driver | None = None
    transport: Transport | None = None

    @property
    def core(self) -> Core:
        assert self.driver is not None, "the node doesn't run"
        return self.driver.core


class LiveRunner:
    """One script on one kind of transport; `doors` makes node after node reachable."""

    def __init__(self, script: Script, nodes: list[LiveNode]) -> None:
        self.script, self.nodes = script, nodes
        self.deaths: list[tuple[int, int]] = []
        self.false_deaths: list[tuple[int, int]] = []
        self._fresh = 0

    async def run(self) -> None:
        """Runs every step; fails where an expectation isn't met in time."""
        try:
            for step in self.script.steps:
                await self._step(step)
        finally:
            for node in self.nodes:
                if node.driver is not None:
                    await self._stop(node, silently=False)

    async def _step(self, step: Step) -> None:
        nodes = [self.nodes[number] for number in step.nodes()]
        match step.verb:
            case "start":
                for node in nodes or self.nodes:
                    await self._start(node)
            case "store":
                first, self._fresh = self._fresh, self._fresh + int(step.number())
                self._store(nodes[0], [_scatter(block) for block in range(first, self._fresh)])
            case "share":
                self._store(nodes[1], sorted(nodes[0].blocks))
            case "remove":
                old = sorted(nodes[0].blocks)[: int(step.number())]
                nodes[0].blocks.difference_update(old)
                self._tell(nodes[0], events.LocalBlocks(removed=[BlockHash(block) for block in old]))
            case "clear":
                nodes[0].blocks.clear()
                self._tell(nodes[0], events.LocalCleared())
            case "crash" | "leave":
                await self._stop(nodes[0], silently=step.verb == "crash")
            case "run":
                await asyncio.sleep(step.number())
            case "expect":
                await self._expect(step)
            case _:
                raise ValueError(f"{step}: not on a real transport")

    async def _expect(self, step: Step) -> None:
        match step.words:
            case ("meet", *_):
                await self._until(step, self._acquainted)
            case ("converge", *_):
                await self._until(step, self._converged)
            case (_, "sees", _, wanted, *_):
                await self._until(step, lambda: self._sees(*step.nodes()) == wanted)
            case ("no", *kind, "deaths"):
                wrong = self.false_deaths if kind else self.deaths
                assert not wrong, f"{self.script.name}, {step}: {wrong}"
            case _:
                raise ValueError(f"{step}: not on a real transport")

    async def _until(self, step: Step, condition: Callable[[], bool]) -> None:
        deadline = time.monotonic() + PATIENCE * step.number()
        while not condition():
            assert time.monotonic() < deadline, f"{self.script.name}, {step}: not so in time"
            await asyncio.sleep(0.05)

    # -- nodes ------------------------------------------------------------------------------------

    async def _start(self, node: LiveNode) -> None:
        node.blocks.clear()
        seeds = [self.nodes[0].door.address] if node is not self.nodes[0] else []
        options = CoreOptions(
            node_id=node.node_id,
            addresses=(node.door.address,),
            model=b"model",
            model_name="live",
            digest_key=DOMAIN.digest_key,
            signer=node.signer,
            seeds=seeds,
        )
        store = Store(node.disk)
        core = Core(options, random.Random(str(node.door.address)), int(time.time() * 1000), store.load())
        node.transport = await node.door.open(lambda stream: driver.accept(stream))
        hear = partial(self._hear, node)
        driver = Driver(core, node.node_id, node.transport, store, DOMAIN, hear)
        node.driver = driver
        driver.start()

    async def _stop(self, node: LiveNode, *, silently: bool) -> None:
        driver, transport, node.driver = node.driver, node.transport, None
        assert driver is not None
        assert transport is not None
        if silently:  # what the core would still say finds every stream cut
            await node.door.shut()
            await transport.close()
        await driver.stop()
        if not silently:
            await transport.close()
            await node.door.shut()

    def _hear(self, node: LiveNode, news: Notification) -> None:
        if isinstance(news, MemberChanged) and news.state is PeerState.DEAD:
            subject = next(other for other in self.nodes if other.node_id == news.node_id)
            death = (self.nodes.index(node), self.nodes.index(subject))
            self.deaths.append(death)
            if node.driver is not None and subject.driver is not None:
                self.false_deaths.append(death)

    def _store(self, node: LiveNode, blocks: list[int]) -> None:
        node.blocks.update(blocks)
        self._tell(node, events.LocalBlocks(stored=[BlockHash(block) for block in blocks]))

    def _tell(self, node: LiveNode, event: events.Event) -> None:
        assert node.driver is not None
        node.driver.handle(event)

    # -- what holds -------------------------------------------------------------------------------

    def _running(self) -> list[LiveNode]:
        return [node for node in self.nodes if node.driver is not None]

    def _sees(self, observer: int, subject: int) -> str:
        peer = self.nodes[observer].core.table.get(self.nodes[subject].node_id)
        return peer.state.value if peer is not None else "unknown"

    def _acquainted(self) -> bool:
        return all(
            node.core.links.active(other.node_id) is not None
            and self._sees(self.nodes.index(node), self.nodes.index(other)) == "alive"
            for node in self._running()
            for other in self._running()
            if other is not node
        )

    def _converged(self) -> bool:
        return all(
            (replica := node.core.follower.replicas.get(other.node_id)) is not None
            and set(replica.hashes().tolist()) == other.blocks
            for node in self._running()
            for other in self._running()
            if other is not node
        )


def _scatter(block: int) -> int:
    """Spreads block numbers over 64 bits, as hashes are."""
    return (block + 1) * 0x9E3779B97F4A7C15 & (1 << 64) - 1


def make_nodes(transport: str, count: int, folder: Path) -> list[LiveNode]:
    """Nodes that talk over "grpc" or "memory"; their keys are real either way."""
    network, nodes = MemoryNetwork(), []
    for number in range(count):
        place = folder / f"n{number}"
        grpc_door = None
        if transport == "grpc":
            grpc_door = GrpcDoor(place)  # type: ignore[abstract]  # nothing calls its other methods
        security = grpc_door.credentials if grpc_door else node_credentials(TOKEN, place)
        node_id = NodeId(security.node_id)
        door: Door = grpc_door or MemoryDoor(network, node_id, number)
        nodes.append(LiveNode(node_id, door, GossipSigner(security), place / "overlay"))
    return nodes
