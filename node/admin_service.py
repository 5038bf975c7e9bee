"""The gRPC door for operators: rumormill.v1.Admin."""

from __future__ import annotations

import asyncio
import time
from collections import Counter
from collections.abc import AsyncIterator
from contextlib import aclosing
from typing import Protocol

import grpc.aio

from engine.process import EngineProcess
from node import wire
from node.admission import Admission
from node.authorization import caller
from node.decisions import DecisionFeed
from node.grpc_errors import grpc_statuses
from node.in_flight import InFlight
from node.own_blocks import OwnBlocks
from node.request import Request
from node.request_builder import RequestBuilder, SamplingOptions
from node.served import Served
from node.tenants import Tenants
from node.version import VERSION
from overlay.core.router import Router
from overlay.core.routing import Decision
from overlay.core.views import PeerState, PeerView
from overlay.net.codec import encode_load
from overlay.net.mesh import Mesh
from rumormill.v1 import admin_pb2, admin_pb2_grpc, overlay_pb2

MEMBER_STATES = {
    PeerState.CANDIDATE: overlay_pb2.MEMBER_STATE_UNSPECIFIED,
    PeerState.ALIVE: overlay_pb2.MEMBER_STATE_ALIVE,
    PeerState.SUSPECT: overlay_pb2.MEMBER_STATE_SUSPECT,
    PeerState.DEAD: overlay_pb2.MEMBER_STATE_DEAD,
    PeerState.LEFT: overlay_pb2.MEMBER_STATE_LEFT,
}


class Administered(Protocol):
    """What an operator looks at and steers: a node, once it has started."""

    admission: Admission
    blocks: OwnBlocks
    builder: RequestBuilder
    decisions: DecisionFeed
    engine: EngineProcess
    in_flight: InFlight
    mesh: Mesh
    router: Router
    started_at: float
    tenants: Tenants

    @property
    def http_url(self) -> str: ...

    @property
    def served(self) -> Served: ...

    def begin_drain(self) -> None: ...

    def explain(self, request: Request) -> Decision: ...


class AdminService(admin_pb2_grpc.AdminServicer):
    """Looks at one node, and stops it gently."""

    def __init__(self, node: Administered) -> None:
        self._node = node

    async def GetStatus(
        self,
        request: admin_pb2.GetStatusRequest,
        context: grpc.aio.ServicerContext[admin_pb2.GetStatusRequest, admin_pb2.GetStatusResponse],
    ) -> admin_pb2.GetStatusResponse:
        return _status(self._node)

    async def ListPeers(
        self,
        request: admin_pb2.ListPeersRequest,
        context: grpc.aio.ServicerContext[admin_pb2.ListPeersRequest, admin_pb2.ListPeersResponse],
    ) -> admin_pb2.ListPeersResponse:
        node, now = self._node, time.monotonic()
        return admin_pb2.ListPeersResponse(
            peers=[
                _peer(peer, node.router.quarantine.remaining(peer.node_id, now)) for peer in node.mesh.peers()
            ]
        )

    async def ExplainRoute(
        self,
        request: admin_pb2.ExplainRouteRequest,
        context: grpc.aio.ServicerContext[admin_pb2.ExplainRouteRequest, admin_pb2.ExplainRouteResponse],
    ) -> admin_pb2.ExplainRouteResponse:
        async with grpc_statuses(context):
            built = await asyncio.to_thread(
                self._node.builder.build,
                wire.prompt_from_pb(request),
                SamplingOptions(max_tokens=1),
                policy=request.policy,
                caller=self._node.tenants.caller(caller().uri),
            )
            return wire.decision_to_pb(self._node.explain(built), built)

    async def WatchRoutes(
        self,
        request: admin_pb2.WatchRoutesRequest,
        context: grpc.aio.ServicerContext[admin_pb2.WatchRoutesRequest, admin_pb2.RouteDecision],
    ) -> AsyncIterator[admin_pb2.RouteDecision]:
        async with aclosing(self._node.decisions.watch()) as decisions:
            async for recorded in decisions:
                yield admin_pb2.RouteDecision(
                    request_id=recorded.request.id,
                    unix_time_s=recorded.unix_time_s,
                    decision=wire.decision_to_pb(recorded.decision, recorded.request),
                )

    async def FlushCache(
        self,
        request: admin_pb2.FlushCacheRequest,
        context: grpc.aio.ServicerContext[admin_pb2.FlushCacheRequest, admin_pb2.FlushCacheResponse],
    ) -> admin_pb2.FlushCacheResponse:
        async with grpc_statuses(context):
            await self._node.engine.flush()
        return admin_pb2.FlushCacheResponse()

    async def CheckCache(
        self,
        request: admin_pb2.CheckCacheRequest,
        context: grpc.aio.ServicerContext[admin_pb2.CheckCacheRequest, admin_pb2.CheckCacheResponse],
    ) -> admin_pb2.CheckCacheResponse:
        async with grpc_statuses(context):
            return admin_pb2.CheckCacheResponse(problem=await self._node.engine.check())

    async def Drain(
        self,
        request: admin_pb2.DrainRequest,
        context: grpc.aio.ServicerContext[admin_pb2.DrainRequest, admin_pb2.DrainResponse],
    ) -> admin_pb2.DrainResponse:
        self._node.begin_drain()
        return admin_pb2.DrainResponse(running=self._node.in_flight.count)


def _status(node: Administered) -> admin_pb2.GetStatusResponse:
    load = node.mesh.own_load()
    totals = Counter[str]()
    for (direction, _kind), count in node.mesh.gossip_bytes.items():
        totals[direction] += count
    return admin_pb2.GetStatusResponse(
        node_id=node.mesh.node_id,
        mesh_id=node.mesh.mesh_id,
        version=VERSION,
        model=wire.model_to_pb(node.engine.info),
        policy=node.router.policy,
        uptime_s=time.monotonic() - node.started_at,
        epoch=load.epoch,
        load=encode_load(load),
        cached_blocks=len(node.blocks),
        addresses=[overlay_pb2.Address(host=a.host, port=a.port) for a in node.mesh.addresses],
        gossip_bytes=totals,
        http_url=node.http_url,
        draining=node.admission.draining,
        served=admin_pb2.Served(
            requests=node.served.requests,
            prompt_tokens=node.served.prompt_tokens,
            cached_tokens=node.served.cached_tokens,
            generated_tokens=node.served.generated_tokens,
        ),
    )


def _peer(peer: PeerView, quarantined_s: float) -> admin_pb2.Peer:
    return admin_pb2.Peer(
        node_id=peer.node_id,
        state=MEMBER_STATES[peer.state],
        connected=peer.connected,
        addresses=[overlay_pb2.Address(host=a.host, port=a.port) for a in peer.addresses],
        model=peer.model_name,
        rtt_s=peer.rtt_s or 0.0,
        load=encode_load(peer.load) if peer.load else None,
        load_age_s=peer.load_age_s or 0.0,
        cached_blocks=peer.cached_blocks,
        replica_age_s=peer.replica_age_s or 0.0,
        quarantined_s=quarantined_s,
        http_url=peer.http_url,
    )
