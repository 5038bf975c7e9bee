"""Asks peers to describe themselves, while somebody watches."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Mapping
from typing import Protocol

import grpc
import grpc.aio

from node.portrait import MAX_RUNS, Portrait, portrait_from_pb
from overlay.core.types import NodeId, short_id
from overlay.core.views import PeerView
from overlay.net.errors import MalformedFrameError, PeerUnreachableError
from rumormill.v1 import overlay_pb2, overlay_pb2_grpc

log = logging.getLogger(__name__)

ROUND_SECONDS = 2.0
ANSWER_SECONDS = 1.5
MAX_ASKED = 32
"""Peers asked in a round: as many as a picture can show in some detail."""


class Peers(Protocol):
    """What asking needs of the mesh."""

    def peers(self) -> tuple[PeerView, ...]: ...

    def is_reachable(self, node_id: NodeId) -> bool: ...

    def channel(self, node_id: NodeId) -> grpc.aio.Channel: ...


class PeerPortraits:
    """The latest portrait of each peer that gave one."""

    def __init__(self, mesh: Peers) -> None:
        self._mesh = mesh
        self._portraits: dict[NodeId, Portrait] = {}

    @property
    def latest(self) -> Mapping[NodeId, Portrait]:
        return self._portraits

    async def keep(self) -> None:
        """Asks again and again, until cancelled."""
        try:
            while True:
                await self.ask()
                await asyncio.sleep(ROUND_SECONDS)
        finally:
            self._portraits.clear()

    async def ask(self) -> None:
        """One round."""
        wanted = [
            peer.node_id
            for peer in self._mesh.peers()
            if peer.connected and self._mesh.is_reachable(peer.node_id)
        ][:MAX_ASKED]
        answers = await asyncio.gather(*map(self._ask, wanted))
        self._portraits = {
            node_id: answer for node_id, answer in zip(wanted, answers, strict=True) if answer is not None
        }

    async def _ask(self, node_id: NodeId) -> Portrait | None:
        request = overlay_pb2.DescribeRequest(runs=MAX_RUNS)
        try:
            stub = overlay_pb2_grpc.OverlayStub(self._mesh.channel(node_id))
            return portrait_from_pb(await stub.Describe(request, timeout=ANSWER_SECONDS))
        except (grpc.aio.AioRpcError, PeerUnreachableError, MalformedFrameError) as error:
            log.debug("node %s does not describe itself: %s", short_id(node_id), error)
            return None
