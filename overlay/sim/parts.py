"""What a simulated world is made of: its options, nodes, connections and tally."""

from __future__ import annotations

from base64 import b32encode
from collections import Counter
from dataclasses import dataclass, field
from hashlib import sha256

from overlay.core.core import Core
from overlay.core.events import Event, LinkId
from overlay.core.options import DEFAULT_INDEX_BYTES
from overlay.core.timing import Timing
from overlay.core.types import Address, NodeId
from overlay.sim.network import NetworkOptions

PORT = 7070


@dataclass(frozen=True, slots=True)
class WorldOptions:
    """A mesh to simulate. The first `seeds` nodes are every node's seeds."""

    nodes: int
    seed: int = 0
    seeds: int = 1
    network: NetworkOptions = field(default_factory=NetworkOptions)
    timing: Timing = field(default_factory=Timing.lan)
    full_mesh: int = 256
    degree: int = 16
    history: bool = True
    trace: bool = False
    count_bytes: bool = False
    index_bytes: int = DEFAULT_INDEX_BYTES


@dataclass(slots=True, eq=False)
class End:
    """One node's end of a stream; the times are those at which what it sent last arrives."""

    node: SimNode
    link: LinkId
    open: bool = True
    last_arrival: float = 0.0
    hello_arrival: float = 0.0
    other: End = field(init=False)


@dataclass(slots=True, eq=False)
class SimNode:
    """One node: its core while it runs, its disk, and the blocks its engine has."""

    number: int
    node_id: NodeId
    address: Address
    core: Core | None = None
    disk: dict[str, bytes] = field(default_factory=dict)
    blocks: set[int] = field(default_factory=set)
    links: dict[LinkId, End] = field(default_factory=dict)
    runs: int = 0
    born: int = 0
    """Its incarnation when it was last started."""
    timer: int = 0
    paused: bool = False
    waiting: list[Event] = field(default_factory=list)
    disturbed_at: float = float("-inf")
    history: dict[tuple[int, int], frozenset[int]] = field(default_factory=dict)
    last_seen: tuple[int, int] = (0, 0)

    @property
    def healthy(self) -> bool:
        return self.core is not None and not self.paused


@dataclass(slots=True)
class Tally:
    """What happened so far. Bytes are counted as the wire would carry them, when they are counted.

    `peak_bytes` is the most that any node sent within one second.
    """

    nodes: int
    frames: int = 0
    deaths: list[tuple[float, int, int]] = field(default_factory=list)
    false_deaths: list[tuple[float, int, int]] = field(default_factory=list)
    peak_bytes: int = 0
    _bytes: dict[type, int] = field(default_factory=dict)
    _second: int = -1
    _in_second: list[int] = field(default_factory=list)

    def sent(self, number: int, kind: type, size: int, now: float) -> None:
        """A node sent a frame of `size` bytes."""
        self._bytes[kind] = self._bytes.get(kind, 0) + size
        if int(now) != self._second:
            self._end_second()
            self._second = int(now)
        self._in_second[number] += size

    def bytes_by_kind(self) -> Counter[str]:
        """Bytes of all nodes so far, by kind of frame."""
        return Counter({kind.__name__: size for kind, size in self._bytes.items()})

    def _end_second(self) -> None:
        self.peak_bytes = max(self.peak_bytes, *self._in_second, 0)
        self._in_second = [0] * self.nodes

    def begin_anew(self) -> None:
        """Forgets the peak so far."""
        self._end_second()
        self.peak_bytes = 0


def make_node(number: int) -> SimNode:
    """A node that has never run; its id and address follow from its number."""
    digest = sha256(f"simulated node {number}".encode()).digest()
    node_id = NodeId(b32encode(digest).decode().rstrip("=").lower())
    host = f"10.{number >> 16 & 255}.{number >> 8 & 255}.{number & 255}"
    return SimNode(number, node_id, Address(host, PORT))
