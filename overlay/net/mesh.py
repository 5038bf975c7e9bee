"""A node's part in its mesh: what the rest of the node needs of the overlay."""

from __future__ import annotations

import asyncio
import logging
import random
import secrets
import time
from collections.abc import AsyncIterator, Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path

import grpc.aio

from overlay.core import events, views
from overlay.core.core import Core
from overlay.core.options import CoreOptions
from overlay.core.timing import Timing
from overlay.core.types import Address, BlockHash, Load, NodeId, short_id
from overlay.net.bootstrap import Seeds, follow_seeds
from overlay.net.channels import DataChannels
from overlay.net.discovery import Discovery
from overlay.net.driver import Driver
from overlay.net.errors import DialError
from overlay.net.first_contact import first_contact
from overlay.net.grpc_transport import GossipContext, GrpcTransport, serve_stream
from overlay.net.hash_domain import HashDomain
from overlay.net.security import TransportSecurity
from overlay.net.signer import GossipSigner
from overlay.net.store import Store
from overlay.net.targets import is_link_local
from overlay.net.tasks import TaskGroup
from overlay.net.transport import Frames, Stream
from rumormill.v1 import overlay_pb2 as pb

log = logging.getLogger(__name__)

STORE_FOLDER = "overlay"
RECHECK_S = 10.0
"""A connected peer that can't be dialled for requests is tried again this often."""

REMEET_S = 600.0
"""A connected peer is met again this often, so that its channel knows its newest leaf."""

CERTIFICATES_S = 1.0
"""The certificates behind live streams are looked at this often: streams outlive revocation."""

ADDRESSES_S = 5.0
"""This node's own addresses are looked at this often."""

LONELY_S = 10.0
"""A node that has met nobody by then says so, once."""


@dataclass(frozen=True, slots=True)
class MeshOptions:
    """How this node appears to its peers, and where it looks for them.

    `listen` are the addresses that peers are told to dial, but for link-local ones, which mDNS alone
    tells. `http_url` may be empty. `addresses_now` says where this node listens as networks come and go;
    without it `listen` holds for ever.
    """

    listen: tuple[Address, ...]
    seeds: Seeds
    model: bytes
    model_name: str
    http_url: str
    state_dir: Path
    mdns: bool = True
    addresses_now: Callable[[], tuple[Address, ...]] | None = None
    timing: Timing = field(default_factory=Timing.lan)


class Mesh:
    """Membership, the prefix index and channels to peers, on the loop that calls `start`.

    Everything but `start` and `leave` returns at once. What is published or reported before `start`
    is told to the peers afterwards.
    """

    def __init__(
        self,
        options: MeshOptions,
        security: TransportSecurity,
        *,
        on_news: Callable[[views.Notification], None] | None = None,
    ) -> None:
        """Raises StoredStateError for damaged state."""
        self.node_id = NodeId(security.node_id)
        self._options = options
        self._security = security
        self._on_news = on_news
        self._addresses = options.listen
        self._seeds = options.seeds
        self._tasks = TaskGroup("mesh")
        self._checking: set[NodeId] = set()
        self._unreachable: set[NodeId] = set()
        self._domain = HashDomain(security.block_hash_key)
        self._channels = DataChannels(security, self._check)
        self._transport = GrpcTransport(security, self._channels.met)
        store = Store(options.state_dir / STORE_FOLDER)
        self._driver = Driver(
            Core(self._core_options(), _rng(), int(time.time() * 1000), store.load()),
            self.node_id,
            self._transport,
            store,
            self._domain,
            self._notice,
        )
        self._discovery: Discovery | None = None

    def _core_options(self) -> CoreOptions:
        options, security = self._options, self._security
        return CoreOptions(
            node_id=self.node_id,
            addresses=_told(options.listen),
            model=options.model,
            model_name=options.model_name,
            digest_key=self._domain.digest_key,
            signer=GossipSigner(security),
            http_url=options.http_url,
            seeds=self._seeds.all,
            timing=options.timing,
        )

    async def start(self) -> None:
        """Joins the mesh; the gRPC server already listens."""
        self._driver.start()
        self._tasks.spawn(follow_seeds(self._seeds, self._driver.handle))
        self._tasks.spawn(self._recheck())
        self._tasks.spawn(self._check_certificates())
        self._tasks.spawn(self._follow_addresses())
        self._tasks.spawn(self._warn_when_lonely())
        if self._options.mdns:
            self._discovery = Discovery(
                self.node_id, self._addresses, lambda: self._security.discovery_tags, self._hint
            )
            self._discovery.start()

    async def leave(self) -> None:
        """Says Bye to every peer, closes what is open, and leaves no task behind."""
        await self._tasks.close()
        discovery, self._discovery = self._discovery, None
        await asyncio.gather(self._driver.stop(), *([discovery.stop()] if discovery else []))
        await self._transport.close()
        await self._channels.close()

    # -- this node ----------------------------------------------------------------------------------

    @property
    def mesh_id(self) -> str:
        return self._security.mesh_id

    @property
    def addresses(self) -> tuple[Address, ...]:
        """Where peers are told to dial this node."""
        return _told(self._addresses)

    @property
    def gossip_bytes(self) -> Mapping[tuple[str, str], int]:
        """(direction, kind) -> bytes; direction is "sent" or "received", kind a frame's name."""
        return self._driver.gossip_bytes

    def publish(self, stored: Iterable[int], removed: Iterable[int], *, cleared: bool = False) -> None:
        """Blocks that the engine now holds or holds no more; `cleared` first empties the set."""
        if cleared:
            self._driver.handle(events.LocalCleared())
        added, gone = [BlockHash(h) for h in stored], [BlockHash(h) for h in removed]
        if added or gone:
            self._driver.handle(events.LocalBlocks(added, gone))

    def report_load(self, load: Load) -> None:
        """How busy this node is now; epoch and sequence are stamped here."""
        self._driver.handle(events.LocalLoad(load))

    def own_load(self) -> Load:
        """The last reported load, stamped: it rides on RPC answers."""
        return self._driver.core.own_load()

    async def readdress(self, addresses: tuple[Address, ...]) -> None:
        """This node is reachable at other addresses now."""
        if addresses == self._addresses:
            return
        log.info("this node's addresses are now %s", ", ".join(map(str, addresses)))
        if _told(addresses) != _told(self._addresses):
            self._driver.handle(events.AddressesChanged(_told(addresses)))
        self._addresses = addresses
        if self._discovery is not None:
            await self._discovery.readdress(addresses)

    # -- peers --------------------------------------------------------------------------------------

    def observe_load(self, node_id: NodeId, load: Load) -> None:
        """A load report that rode on an RPC answer of a peer."""
        self._driver.handle(events.PeerLoad(node_id, load))

    def note_forwarded(self, node_id: NodeId, hashes: Sequence[BlockHash]) -> None:
        """A prompt with these block hashes was sent to a peer: it will soon have them cached."""
        self._driver.handle(events.Forwarded(node_id, hashes))

    def match(self, hashes: Sequence[BlockHash]) -> Mapping[NodeId, int]:
        """How many leading blocks of a prompt each peer is believed to have cached."""
        return self._driver.core.match(hashes)

    def peers(self) -> tuple[views.PeerView, ...]:
        """Every peer known, candidates and the dead included, sorted by id."""
        return self._driver.core.peers(asyncio.get_running_loop().time())

    def channel(self, node_id: NodeId) -> grpc.aio.Channel:
        """The kept, pinned data channel to a peer; raises PeerUnreachableError."""
        return self._channels.get(node_id)

    def is_reachable(self, node_id: NodeId) -> bool:
        """Whether requests can be sent to a peer: it answered at one of the addresses it told."""
        return node_id in self._channels

    async def gossip(
        self, request_iterator: AsyncIterator[pb.Frame], context: GossipContext
    ) -> AsyncIterator[pb.Frame]:
        """The server side of Overlay.Gossip."""
        frames: Frames = serve_stream(request_iterator, context, self._security, self._driver.accept)
        try:
            async for frame in frames:
                yield frame
        finally:
            await frames.aclose()

    # -- reachability -------------------------------------------------------------------------------

    def _hint(self, hint: events.AddressHint) -> None:
        """mDNS says where a node listens; one that told no address itself may be dialled there."""
        self._driver.handle(hint)
        node_id = hint.node_id
        if node_id is not None and node_id not in self._channels and self._driver.streams(node_id):
            self._check(node_id)

    def _check(self, node_id: NodeId) -> None:
        """Finds out, in the background, where a peer can be dialled for requests."""
        if node_id not in self._checking:
            self._checking.add(node_id)
            self._tasks.spawn(self._find(node_id))

    async def _find(self, node_id: NodeId) -> None:
        reasons = []
        try:
            for address in self._addresses_of(node_id):
                try:
                    self._channels.met(await first_contact(address, node_id, self._security))
                    self._unreachable.discard(node_id)
                    return
                except DialError as error:
                    reasons.append(str(error))
            # One that told no address is on a link that needs none; mDNS will tell.
            if reasons or self._discovery is None:
                self._warn_unreachable(node_id, "; ".join(reasons) or "it told no address")
        finally:
            self._checking.discard(node_id)

    def _warn_unreachable(self, node_id: NodeId, reasons: str) -> None:
        connected = any(peer.node_id == node_id and peer.connected for peer in self.peers())
        if node_id in self._unreachable or not connected:
            return
        self._unreachable.add(node_id)
        log.warning(
            "node %s is in the mesh but can't be dialled, so it gets no requests from here (%s); "
            "open its port, or tell it the right address with --advertise",
            short_id(node_id),
            reasons,
        )

    def _addresses_of(self, node_id: NodeId) -> tuple[Address, ...]:
        told = next((peer.addresses for peer in self.peers() if peer.node_id == node_id), ())
        heard = self._discovery.heard(node_id) if self._discovery is not None else ()
        return tuple(dict.fromkeys((*told, *heard)))

    async def _recheck(self) -> None:
        while True:
            await asyncio.sleep(RECHECK_S)
            now = time.monotonic()
            for peer in self.peers():
                if not peer.connected:
                    continue
                if peer.node_id not in self._channels or now - self._channels.met_at(peer.node_id) > REMEET_S:
                    self._check(peer.node_id)

    async def _check_certificates(self) -> None:
        while True:
            await asyncio.sleep(CERTIFICATES_S)
            for node_id in self._driver.drop_where(self._stream_refusal):
                self._channels.forget_if(node_id, lambda leaf: self._refusal(leaf) is not None)

    def _stream_refusal(self, stream: Stream) -> str | None:
        refusal = self._refusal(stream.certificate) if stream.certificate is not None else None
        if refusal is not None:
            log.warning("the stream to node %s is cut: %s", short_id(stream.peer), refusal)
        return refusal

    def _refusal(self, certificate: bytes) -> str | None:
        try:
            self._security.identify(certificate)
        except ValueError as error:
            return str(error)
        return None

    async def _follow_addresses(self) -> None:
        while self._options.addresses_now is not None:
            await asyncio.sleep(ADDRESSES_S)
            await self.readdress(self._options.addresses_now())

    async def _warn_when_lonely(self) -> None:
        await asyncio.sleep(LONELY_S)
        if not any(peer.connected for peer in self.peers()):
            log.warning(
                "no peer found in %g s; start one with the same token, or name one with --peer HOST:PORT. "
                "`rumormill doctor` says what may be in the way",
                LONELY_S,
            )

    # -- news ---------------------------------------------------------------------------------------

    def _notice(self, news: views.Notification) -> None:
        if isinstance(news, views.Connected):
            log.info("connected to node %s", short_id(news.node_id))
            # One that was dialled has been met; one that dialled may be new, or back with a new leaf.
            leaves = [stream.certificate for stream in self._driver.streams(news.node_id)]
            if not any(leaf is not None and self._channels.knows(news.node_id, leaf) for leaf in leaves):
                self._check(news.node_id)
        elif isinstance(news, views.Disconnected):
            log.info("disconnected from node %s: %s", short_id(news.node_id), news.reason)
        elif isinstance(news, views.DialProblem):
            is_seed = news.address in self._seeds
            log.log(logging.WARNING if is_seed else logging.INFO, "%s", news.reason)
        elif isinstance(news, views.PeerMisbehaved):
            log.warning("node %s broke the protocol: %s", short_id(news.node_id), news.detail)
        elif news.state is None:
            self._channels.forget(news.node_id)
            self._unreachable.discard(news.node_id)
        if self._on_news is not None:
            self._on_news(news)


def _told(addresses: tuple[Address, ...]) -> tuple[Address, ...]:
    """Without those that mean nothing on other links."""
    return tuple(address for address in addresses if not is_link_local(address.host))


def _rng() -> random.Random:
    return random.Random(secrets.randbits(64))
