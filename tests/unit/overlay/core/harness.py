"""One core driven by hand: what it is told, and what it wants done."""

from __future__ import annotations

import random
from base64 import b32encode
from collections.abc import Mapping
from hashlib import sha256
from typing import TypeVar

from overlay.core.actions import Action, Close, Dial, Persist, Send, SetTimer
from overlay.core.core import Core
from overlay.core.events import Event, LinkId, LinkUp, MessageReceived, Started, TimerFired
from overlay.core.hashes import to_array
from overlay.core.heads import head_payload
from overlay.core.messages import Ack, Bye, ByeReason, Delta, Head, Heads, Hello, Message, Probe, Snapshot
from overlay.core.options import CoreOptions
from overlay.core.timing import Timing
from overlay.core.types import Address, Epoch, NodeId, Version
from overlay.sim.signer import SimSigner

M = TypeVar("M")
MODEL = b"model"
KEY = b"0123456789abcdef"


def node_id(name: str) -> NodeId:
    return NodeId(b32encode(sha256(name.encode()).digest()).decode().rstrip("=").lower())


IDS = sorted(node_id(str(number)) for number in range(9))
LOWEST, ME, PEER, OTHER, HIGHEST = IDS[0], IDS[3], IDS[5], IDS[6], IDS[8]
ADDRESS = {each: Address(f"10.0.0.{number}", 7070) for number, each in enumerate(IDS)}


class Harness:
    """A core, its clock, and everything it has asked for since last looked at."""

    def __init__(
        self,
        own_id: NodeId = ME,
        seeds: tuple[Address, ...] = (),
        stored: Mapping[str, bytes] | None = None,
        **options: object,
    ) -> None:
        self.now = 100.0
        self.timer: float | None = None
        self.actions: list[Action] = []
        settings = {
            "node_id": own_id,
            "addresses": (ADDRESS[own_id],),
            "model": MODEL,
            "model_name": "m",
            "digest_key": KEY,
            "signer": SimSigner(own_id),
            "seeds": seeds,
            "timing": Timing.lan(),
        } | options
        self.core = Core(CoreOptions(**settings), random.Random(1), 1_000, stored or {})  # type: ignore[arg-type]  # the names are checked by CoreOptions
        self.tell(Started())

    def tell(self, event: Event) -> list[Action]:
        actions = self.core.handle(self.now, event)
        for action in actions:
            if isinstance(action, SetTimer):
                self.timer = action.at
        self.actions += actions
        return actions

    def run(self, seconds: float, living: tuple[int, ...] = ()) -> None:
        """Lets time pass; the peers of `living` links answer probes at once."""
        end = self.now + seconds
        while self.timer is not None and self.timer <= end:
            self.now, self.timer = max(self.now, self.timer), None
            for action in self.tell(TimerFired()):
                if isinstance(action, Send) and action.link in living and isinstance(action.message, Probe):
                    self.receive(action.link, Ack(action.message.sequence, 10))
        self.now = end

    def receive(self, link: int, message: Message) -> list[Action]:
        return self.tell(MessageReceived(LinkId(link), message))

    def connect(
        self, link: int, peer: NodeId = PEER, dialled: Address | None = None, **fields: object
    ) -> None:
        self.tell(LinkUp(LinkId(link), peer, dialled))
        self.receive(link, hello(peer, **fields))

    def sent(self, kind: type[M], link: int | None = None) -> list[M]:
        sends = [action for action in self.actions if isinstance(action, Send)]
        return [s.message for s in sends if isinstance(s.message, kind) and link in (None, s.link)]

    def byes(self) -> list[tuple[int, ByeReason]]:
        """Streams ended from here, each of which must be closed too."""
        closed = {a.link for a in self.actions if isinstance(a, Close)}
        sends = [action for action in self.actions if isinstance(action, Send)]
        byes = [(s.link, s.message.reason) for s in sends if isinstance(s.message, Bye)]
        assert all(link in closed for link, _ in byes)
        return [(int(link), reason) for link, reason in byes]

    def dials(self) -> list[Dial]:
        return [action for action in self.actions if isinstance(action, Dial)]

    def persisted(self) -> dict[str, bytes]:
        return {a.key: a.value for a in self.actions if isinstance(a, Persist)}

    def clear(self) -> None:
        self.actions.clear()

    def held(self, origin: NodeId = PEER) -> set[int]:
        replica = self.core.follower.replicas.get(origin)
        return set(replica.hashes().tolist()) if replica is not None else set()


def hello(peer: NodeId, **fields: object) -> Hello:
    signer = SimSigner(peer)
    values = {
        "major": 1,
        "minor": 0,
        "node_id": peer,
        "epoch": Epoch(10),
        "incarnation": 10,
        "addresses": (ADDRESS[peer],),
        "model": MODEL,
        "model_name": "m",
        "http_url": "",
        "gossip_key": signer.gossip_key,
        "gossip_key_certificate": signer.certificate,
    } | fields
    return Hello(**values)  # type: ignore[arg-type]  # the names are checked by Hello


def delta(
    span: tuple[int, int], added: list[int], removed: list[int], epoch: int = 10, origin: NodeId | None = None
) -> Delta:
    versions = (Version(span[0]), Version(span[1]))
    return Delta(origin, Epoch(epoch), *versions, to_array(added), to_array(removed))


def snapshot(
    version: int,
    blocks: list[int],
    chunk: int = 0,
    chunks: int = 1,
    epoch: int = 10,
    origin: NodeId | None = None,
) -> Snapshot:
    return Snapshot(origin, Epoch(epoch), Version(version), chunk, chunks, to_array(blocks))


def heads(
    core: Core, origin: NodeId, version: int, blocks: set[int], epoch: int = 10, relayed: bool = False
) -> Heads:
    """A head that `origin` signed, as it tells it itself or as a relay passes it on."""
    digest = core.own._digester.digest(to_array(blocks))
    bare = Head(None, Epoch(epoch), Version(version), Version(0), digest.count, digest.low, digest.high)
    signer = SimSigner(origin)
    signature = signer.sign(head_payload(origin, bare))
    name = origin if relayed else None
    key = (signer.gossip_key, signer.certificate) if relayed else (b"", b"")
    fields = (bare.epoch, bare.version, bare.floor, bare.count, bare.digest_low, bare.digest_high)
    return Heads((Head(name, *fields, signature, *key),))
