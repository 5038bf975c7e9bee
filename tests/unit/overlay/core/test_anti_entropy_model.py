"""Two cores and a lossy, reordering, duplicating channel between them, against a plain model of sets."""

from __future__ import annotations

import random

from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, precondition, rule

from overlay.core.actions import Persist, Send, SetTimer
from overlay.core.core import Core
from overlay.core.events import (
    Event,
    LinkDown,
    LinkId,
    LinkUp,
    LocalBlocks,
    LocalCleared,
    MessageReceived,
    Started,
    TimerFired,
)
from overlay.core.messages import Bye, Hello, Message
from overlay.core.options import CoreOptions
from overlay.core.timing import Timing
from overlay.core.types import BlockHash
from overlay.sim.signer import SimSigner
from tests.unit.overlay.core.harness import ADDRESS, KEY, ME, MODEL, PEER

BLOCKS = st.lists(st.integers(0, 30).map(BlockHash), max_size=6)
TIMING = Timing(
    flush_s=0.05, flush_max_s=0.2, heartbeat_s=0.2, want_retry_s=0.1, head_refresh_s=0.5, suspicion=1e6
)


class Pair(RuleBasedStateMachine):
    """The writer ME and its follower PEER; hypothesis decides the fate of every frame."""

    def __init__(self) -> None:
        super().__init__()
        self.now = 0.0
        self.link = 0
        self.runs = 0
        self.disk: dict[str, bytes] = {}
        self.blocks: set[int] = set()
        self.history: dict[tuple[int, int], set[int]] = {}
        self.wire: list[tuple[str, int, Message]] = []
        self.cores: dict[str, Core] = {}
        self.timers: dict[str, float] = {}
        self._start("writer")
        self._start("follower")
        self._connect()

    def _start(self, who: str) -> None:
        self.runs += 1
        own_id = ME if who == "writer" else PEER
        options = CoreOptions(
            own_id, (ADDRESS[own_id],), MODEL, "m", KEY, SimSigner(own_id, self.runs), timing=TIMING
        )
        stored = self.disk if who == "writer" else {}
        unix_ms = 10**6 + self.runs * 7919 % 500 * 1000  # clocks step back, too
        self.cores[who] = Core(options, random.Random(self.runs), unix_ms, stored)
        self._tell(who, Started())

    def _tell(self, who: str, event: Event) -> None:
        other = "follower" if who == "writer" else "writer"
        for action in self.cores[who].handle(self.now, event):
            if isinstance(action, SetTimer):
                self.timers[who] = action.at
            elif isinstance(action, Send) and action.link == self.link:
                if isinstance(action.message, Hello):
                    self._tell_later(other, action.message)
                elif not isinstance(action.message, Bye):
                    self.wire.append((other, self.link, action.message))
            elif isinstance(action, Persist) and who == "writer":
                self.disk[action.key] = action.value
        own = self.cores["writer"].own
        self.history[own.epoch, own.version] = set(own.hashes().tolist())
        self._check()

    def _tell_later(self, who: str, message: Message) -> None:
        self.hellos.append((who, message))

    def _connect(self) -> None:
        if self.link:
            self._tell("writer", LinkDown(LinkId(self.link)))
            self._tell("follower", LinkDown(LinkId(self.link)))
        self.link += 1
        self.wire.clear()
        self.hellos: list[tuple[str, Message]] = []
        self._tell("writer", LinkUp(LinkId(self.link), PEER, ADDRESS[PEER]))
        self._tell("follower", LinkUp(LinkId(self.link), ME))
        for who, hello in self.hellos:
            self._tell(who, MessageReceived(LinkId(self.link), hello))

    def _deliver(self, index: int) -> None:
        who, link, message = self.wire.pop(index)
        if link == self.link:
            self._tell(who, MessageReceived(LinkId(link), message))

    def _pass_time(self, seconds: float) -> None:
        end = self.now + seconds
        while True:
            due = [(at, who) for who, at in self.timers.items() if at <= end]
            if not due:
                break
            at, who = min(due)
            self.now = max(self.now, at)
            del self.timers[who]
            self._tell(who, TimerFired())
        self.now = end

    @rule(stored=BLOCKS, removed=BLOCKS)
    def change(self, stored: list[BlockHash], removed: list[BlockHash]) -> None:
        self.blocks = self.blocks - set(removed) | set(stored)
        self._tell("writer", LocalBlocks(stored, removed))

    @rule()
    def clear(self) -> None:
        self.blocks = set()
        self._tell("writer", LocalCleared())

    @rule(seconds=st.sampled_from([0.01, 0.06, 0.3]))
    def wait(self, seconds: float) -> None:
        self._pass_time(seconds)

    @precondition(lambda self: self.wire)
    @rule(data=st.data())
    def deliver_any(self, data: st.DataObject) -> None:
        self._deliver(data.draw(st.integers(0, len(self.wire) - 1)))

    @precondition(lambda self: self.wire)
    @rule(data=st.data())
    def lose_any(self, data: st.DataObject) -> None:
        self.wire.pop(data.draw(st.integers(0, len(self.wire) - 1)))

    @precondition(lambda self: self.wire)
    @rule(data=st.data())
    def duplicate_any(self, data: st.DataObject) -> None:
        self.wire.append(self.wire[data.draw(st.integers(0, len(self.wire) - 1))])

    @rule()
    def reconnect(self) -> None:
        self._connect()

    @rule(keep_disk=st.booleans())
    def restart_the_writer(self, keep_disk: bool) -> None:
        if not keep_disk:
            self.disk.clear()
        self.blocks = set()
        self._tell("follower", LinkDown(LinkId(self.link)))
        self.link += 1
        self._start("writer")
        self.link -= 1
        self._connect()

    @rule()
    def settle(self) -> None:
        """All that is sent arrives for a while: the follower must come to agree."""
        for _ in range(60):
            self._pass_time(0.05)
            while self.wire:
                self._deliver(0)
        assert self._held() == self.blocks

    def _held(self) -> set[int]:
        replica = self.cores["follower"].follower.replicas.get(ME)
        return set(replica.hashes().tolist()) if replica is not None else set()

    def _check(self) -> None:
        """After every single event: the replica is what the origin had at its version."""
        core = self.cores.get("follower")
        replica = core.follower.replicas.get(ME) if core is not None else None
        if replica is not None and replica.version:
            assert self._held() == self.history[replica.epoch, replica.version]


TestPair = Pair.TestCase
TestPair.settings = settings(max_examples=40, stateful_step_count=40, deadline=None)
