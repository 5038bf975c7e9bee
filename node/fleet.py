"""All nodes of a mesh at once, found through one of them, on the caller's event loop."""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from dataclasses import dataclass

import grpc
import grpc.aio

from certs.credentials import Credentials
from node.client import ANSWER_SECONDS, CONNECT_SECONDS, ClientError
from node.client_calls import failure
from overlay.core.types import Address
from rumormill.v1 import admin_pb2, admin_pb2_grpc, inference_pb2_grpc

DIAL_SECONDS = 2.0
"""For each address that a peer told."""


@dataclass(frozen=True, slots=True, eq=False)
class Member:
    """One node, reached directly. Raises ClientError."""

    node_id: str
    address: str
    channel: grpc.aio.Channel

    async def status(self, seconds: float = ANSWER_SECONDS) -> admin_pb2.GetStatusResponse:
        stub = admin_pb2_grpc.AdminStub(self.channel)
        try:
            return await stub.GetStatus(admin_pb2.GetStatusRequest(), timeout=seconds)
        except grpc.aio.AioRpcError as error:
            raise failure(self.address, error) from None

    async def peers(self, seconds: float = ANSWER_SECONDS) -> list[admin_pb2.Peer]:
        stub = admin_pb2_grpc.AdminStub(self.channel)
        try:
            return list((await stub.ListPeers(admin_pb2.ListPeersRequest(), timeout=seconds)).peers)
        except grpc.aio.AioRpcError as error:
            raise failure(self.address, error) from None

    async def flush_cache(self) -> None:
        stub = admin_pb2_grpc.AdminStub(self.channel)
        try:
            await stub.FlushCache(admin_pb2.FlushCacheRequest(), timeout=ANSWER_SECONDS)
        except grpc.aio.AioRpcError as error:
            raise failure(self.address, error) from None

    @property
    def inference(self) -> inference_pb2_grpc.InferenceAsyncStub:
        return inference_pb2_grpc.InferenceStub(self.channel)


class Fleet:
    """An async context manager; `first` is the node that was named, `members` all that can be reached."""

    def __init__(self, address: str, credentials: Credentials) -> None:
        self._address = address
        self._credentials = credentials
        self.members: dict[str, Member] = {}
        self.unreachable: set[str] = set()

    async def __aenter__(self) -> Fleet:
        """Raises ClientError when the named node doesn't answer."""
        channel = self._channel(self._address)
        try:
            await asyncio.wait_for(channel.channel_ready(), CONNECT_SECONDS)
            self.first = Member("", self._address, channel)
            status = await self.first.status()
        except TimeoutError:
            await channel.close()
            raise ClientError(
                f"no node of this mesh answers at {self._address}: is one running there "
                "(`rumormill up`), and is it of the same mesh (--token)?",
                grpc.StatusCode.UNAVAILABLE,
            ) from None
        except BaseException:
            await channel.close()
            raise
        self.first = Member(status.node_id, self._address, channel)
        self.members[status.node_id] = self.first
        return self

    async def __aexit__(self, *exception: object) -> None:
        await asyncio.gather(*(member.channel.close() for member in self.members.values()))

    async def find(self, peers: Sequence[admin_pb2.Peer]) -> None:
        """Reaches for those of the peers that are connected to the first node and not reached yet."""
        here = {peer.node_id for peer in peers if peer.connected} | {self.first.node_id}
        for node_id in self.members.keys() - here:
            await self.members.pop(node_id).channel.close()
        self.unreachable &= here
        sought = [peer for peer in peers if peer.connected and peer.node_id not in self.members]
        await asyncio.gather(*(self._reach(peer) for peer in sought if peer.node_id not in self.unreachable))

    async def _reach(self, peer: admin_pb2.Peer) -> None:
        """The first of a peer's addresses at which that very node answers."""
        for told in peer.addresses:
            address = str(Address(told.host, told.port))
            channel = self._channel(address)
            try:
                await asyncio.wait_for(channel.channel_ready(), DIAL_SECONDS)
                member = Member(peer.node_id, address, channel)
                if (await member.status(DIAL_SECONDS)).node_id == peer.node_id:
                    self.members[peer.node_id] = member
                    return
            except (TimeoutError, ClientError):
                pass
            await channel.close()
        self.unreachable.add(peer.node_id)

    def _channel(self, address: str) -> grpc.aio.Channel:
        return grpc.aio.secure_channel(
            address,
            self._credentials.channel_credentials(),
            options=(("grpc.ssl_target_name_override", self._credentials.any_node_name),),
        )
