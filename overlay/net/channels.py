"""gRPC channels to peers, each pinned to the leaf that its peer was met with."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable
from dataclasses import dataclass

import grpc
import grpc.aio

from overlay.core.limits import MAX_FRAME_BYTES, MAX_MEMBERS
from overlay.core.types import NodeId, short_id
from overlay.net.errors import PeerUnreachableError
from overlay.net.first_contact import Contact
from overlay.net.security import TransportSecurity
from overlay.net.tasks import TaskGroup

log = logging.getLogger(__name__)

RETIRED_GRACE_S = 600.0
"""A replaced channel keeps the calls that run on it this long."""

DATA_MESSAGE_BYTES = 4 << 20
"""gRPC's own default, stated: a prompt of a million token ids fits."""

_COMMON = (
    # Each channel its own connection: a slow answer must not delay gossip, nor the reverse.
    ("grpc.use_local_subchannel_pool", 1),
    ("grpc.keepalive_time_ms", 10_000),
    ("grpc.keepalive_timeout_ms", 5_000),
    ("grpc.http2.max_pings_without_data", 0),
    ("grpc.initial_reconnect_backoff_ms", 200),
    ("grpc.min_reconnect_backoff_ms", 200),
    ("grpc.max_reconnect_backoff_ms", 2_000),
    ("grpc.enable_http_proxy", 0),
    ("grpc.enable_retries", 0),
)


def gossip_channel(contact: Contact, security: TransportSecurity) -> grpc.aio.Channel:
    """A channel for one gossip stream."""
    return _channel(contact, security, (("grpc.max_receive_message_length", MAX_FRAME_BYTES),))


def data_channel(contact: Contact, security: TransportSecurity) -> grpc.aio.Channel:
    """A channel for requests."""
    return _channel(contact, security, (("grpc.max_receive_message_length", DATA_MESSAGE_BYTES),))


def _channel(
    contact: Contact, security: TransportSecurity, options: tuple[tuple[str, int], ...]
) -> grpc.aio.Channel:
    return grpc.aio.secure_channel(
        contact.target,
        security.channel_credentials(contact.leaf),
        options=(*_COMMON, *options, ("grpc.ssl_target_name_override", contact.server_name)),
    )


@dataclass(slots=True, eq=False)
class _Kept:
    contact: Contact
    revision: object
    channel: grpc.aio.Channel


class DataChannels:
    """One kept channel per peer that was met at an address; the data plane's.

    `on_broken(node_id)` is called when a channel can't connect: its peer may have moved, or have a
    new leaf.
    """

    def __init__(self, security: TransportSecurity, on_broken: Callable[[NodeId], None]) -> None:
        self._security = security
        self._on_broken = on_broken
        self._contacts: dict[NodeId, Contact] = {}
        self._kept: dict[NodeId, _Kept] = {}
        self._tasks = TaskGroup("data channels")

    def __contains__(self, node_id: NodeId) -> bool:
        return node_id in self._contacts

    def met(self, contact: Contact) -> None:
        """A peer was met; a channel that leads elsewhere is replaced at its next use."""
        if contact.node_id in self._contacts or len(self._contacts) < MAX_MEMBERS:
            self._contacts[contact.node_id] = contact

    def forget(self, node_id: NodeId) -> None:
        self._contacts.pop(node_id, None)
        self._retire(node_id)

    def get(self, node_id: NodeId) -> grpc.aio.Channel:
        """The channel to a peer; raises PeerUnreachableError."""
        contact = self._contacts.get(node_id)
        if contact is None:
            raise PeerUnreachableError(f"node {short_id(node_id)} can't be dialled at any address it told")
        kept, revision = self._kept.get(node_id), self._security.revision
        if kept is None or kept.contact != contact or kept.revision is not revision:
            self._retire(node_id)
            kept = self._kept[node_id] = _Kept(contact, revision, data_channel(contact, self._security))
        elif kept.channel.get_state() is grpc.ChannelConnectivity.TRANSIENT_FAILURE:
            self._on_broken(node_id)
        return kept.channel

    def _retire(self, node_id: NodeId) -> None:
        kept = self._kept.pop(node_id, None)
        if kept is not None:
            self._tasks.spawn(_close_later(kept.channel))

    async def close(self) -> None:
        channels = [kept.channel for kept in self._kept.values()]
        self._kept.clear()
        self._contacts.clear()
        await asyncio.gather(*(channel.close() for channel in channels))
        await self._tasks.close()


async def _close_later(channel: grpc.aio.Channel) -> None:
    try:
        await channel.close(RETIRED_GRACE_S)
    except asyncio.CancelledError:
        await channel.close()
        raise
