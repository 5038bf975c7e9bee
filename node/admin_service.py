"""The gRPC door for operators: rumormill.v1.Admin."""

from __future__ import annotations

from collections.abc import AsyncIterator
from contextlib import aclosing
from typing import TYPE_CHECKING

import grpc.aio

from node import wire
from node.authorization import caller
from node.grpc_errors import grpc_statuses
from node.request_builder import SamplingOptions
from overlay.core.views import PeerState, PeerView
from overlay.net.codec import encode_load
from rumormill.v1 import admin_pb2, admin_pb2_grpc, overlay_pb2

if TYPE_CHECKING:
    from node.node import Node

MEMBER_STATES = {
    PeerState.CANDIDATE: overlay_pb2.MEMBER_STATE_UNSPECIFIED,
    PeerState.ALIVE: overlay_pb2.MEMBER_STATE_ALIVE,
    PeerState.SUSPECT: overlay_pb2.MEMBER_STATE_SUSPECT,
    PeerState.DEAD: overlay_pb2.MEMBER_STATE_DEAD,
    PeerState.LEFT: overlay_pb2.MEMBER_STATE_LEFT,
}


class AdminService(admin_pb2_grpc.AdminServicer):
    """Looks at one node, and stops it gently."""

    def __init__(self, node: Node) -> None:
        self._node = node

    async def GetStatus(
        self,
        request: admin_pb2.GetStatusRequest,
        context: grpc.aio.ServicerContext[admin_pb2.GetStatusRequest, admin_pb2.GetStatusResponse],
    ) -> admin_pb2.GetStatusResponse:
        return self._node.status()

    async def ListPeers(
        self,
        request: admin_pb2.ListPeersRequest,
        context: grpc.aio.ServicerContext[admin_pb2.ListPeersRequest, admin_pb2.ListPeersResponse],
    ) -> admin_pb2.ListPeersResponse:
        node = self._node
        return admin_pb2.ListPeersResponse(
            peers=[_peer(peer, node.quarantined_s(peer)) for peer in node.mesh.peers()]
        )

    async def ExplainRoute(
        self,
        request: admin_pb2.ExplainRouteRequest,
        context: grpc.aio.ServicerContext[admin_pb2.ExplainRouteRequest, admin_pb2.ExplainRouteResponse],
    ) -> admin_pb2.ExplainRouteResponse:
        async with grpc_statuses(context):
            built = self._node.builder.build(
                wire.prompt_from_pb(request),
                SamplingOptions(max_tokens=1),
                policy=request.policy,
                salt=self._node.tenants.salt(caller().uri),
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

    async def Drain(
        self,
        request: admin_pb2.DrainRequest,
        context: grpc.aio.ServicerContext[admin_pb2.DrainRequest, admin_pb2.DrainResponse],
    ) -> admin_pb2.DrainResponse:
        self._node.begin_drain()
        return admin_pb2.DrainResponse(running=self._node.in_flight.count)


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
