"""gRPC channels to peers, each pinned to the leaf that its peer was met with."""

from __future__ import annotations

import asyncio
import math
import ssl
import time
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
    # A connection that idles away would have to be made anew, when the peer may have a new leaf.
    ("grpc.client_idle_timeout_ms", 2**31 - 1),
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


@dataclass(frozen=True, slots=True)
class _Meeting:
    """A contact, with the own credentials and the time it was made at."""

    contact: Contact
    revision: object
    at: float


@dataclass(slots=True, eq=False)
class _Kept:
    meeting: _Meeting
    channel: grpc.aio.Channel


class DataChannels:
    """One kept channel per peer that was met at an address; the data plane's.

    `on_outdated(node_id)` is called when a peer should be met again: its channel can't connect (it may
    have moved, or have a new leaf), or this node has new credentials. What works is used meanwhile.
    """

    def __init__(self, security: TransportSecurity, on_outdated: Callable[[NodeId], None]) -> None:
        self._security = security
        self._on_outdated = on_outdated
        self._met: dict[NodeId, _Meeting] = {}
        self._kept: dict[NodeId, _Kept] = {}
        self._tasks = TaskGroup("data channels")

    def __contains__(self, node_id: NodeId) -> bool:
        return node_id in self._met

    def knows(self, node_id: NodeId, leaf: bytes) -> bool:
        """Whether a peer was met with this leaf (PEM)."""
        meeting = self._met.get(node_id)
        return meeting is not None and _same_certificate(meeting.contact.leaf, leaf)

    def met_at(self, node_id: NodeId) -> float:
        """When a peer was last met (monotonic seconds); minus infinity if never."""
        meeting = self._met.get(node_id)
        return meeting.at if meeting is not None else -math.inf

    def met(self, contact: Contact) -> None:
        """A peer was met; a channel that leads elsewhere is replaced at its next use."""
        if contact.node_id in self._met or len(self._met) < MAX_MEMBERS:
            self._met[contact.node_id] = _Meeting(contact, self._security.revision, time.monotonic())

    def forget_if(self, node_id: NodeId, is_refused: Callable[[bytes], bool]) -> None:
        """Forgets a peer whose pinned leaf is refused now."""
        meeting = self._met.get(node_id)
        if meeting is not None and is_refused(meeting.contact.leaf):
            self.forget(node_id)

    def forget(self, node_id: NodeId) -> None:
        self._met.pop(node_id, None)
        self._retire(node_id)

    def get(self, node_id: NodeId) -> grpc.aio.Channel:
        """The channel to a peer; raises PeerUnreachableError."""
        meeting = self._met.get(node_id)
        if meeting is None:
            raise PeerUnreachableError(f"node {short_id(node_id)} can't be dialled at any address it told")
        kept = self._kept.get(node_id)
        if kept is None or _differ(kept.meeting, meeting):
            self._retire(node_id)
            kept = self._kept[node_id] = _Kept(meeting, data_channel(meeting.contact, self._security))
        elif meeting.revision is not self._security.revision or _is_broken(kept.channel):
            self._on_outdated(node_id)
        return kept.channel

    def _retire(self, node_id: NodeId) -> None:
        kept = self._kept.pop(node_id, None)
        if kept is not None:
            self._tasks.spawn(_close_later(kept.channel))

    async def close(self) -> None:
        channels = [kept.channel for kept in self._kept.values()]
        self._kept.clear()
        self._met.clear()
        await asyncio.gather(*(channel.close() for channel in channels))
        await self._tasks.close()


def _same_certificate(one: bytes, other: bytes) -> bool:
    """Compares two PEMs by what is in them, however their lines are broken."""
    return ssl.PEM_cert_to_DER_cert(one.decode("ascii")) == ssl.PEM_cert_to_DER_cert(other.decode("ascii"))


def _differ(old: _Meeting, new: _Meeting) -> bool:
    return old.contact != new.contact or old.revision is not new.revision


def _is_broken(channel: grpc.aio.Channel) -> bool:
    return channel.get_state() is grpc.ChannelConnectivity.TRANSIENT_FAILURE


async def _close_later(channel: grpc.aio.Channel) -> None:
    try:
        await channel.close(RETIRED_GRACE_S)
    except asyncio.CancelledError:
        await channel.close()
        raise
