"""What a node shows of itself on dashboards, its own and its peers': counts and hashes, no text or tokens."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field

from engine.errors import EngineDiedError
from engine.interface import EngineClient
from engine.outline import CachedRun
from node.own_blocks import OwnBlocks
from node.traffic import Traffic
from overlay.core.types import NodeId
from overlay.net.codec import NODE_ID_BYTES, node_id_bytes, node_id_from_bytes
from overlay.net.errors import MalformedFrameError
from overlay.net.mesh import Mesh
from rumormill.v1 import overlay_pb2

MAX_RUNS = 64
"""What a picture of a cache can show; about 4 KiB on the wire."""

MAX_CONNECTED = 512
MAX_SENT = 512
"""Peers that a portrait names: more than have streams with one node."""

FRESH_SECONDS = 1.0
"""However many dashboards ask, the engine is asked this often."""


@dataclass(frozen=True, slots=True)
class Portrait:
    """One node as it says it is; of a peer, hearsay."""

    connected: tuple[NodeId, ...] = ()
    sent: Mapping[NodeId, int] = field(default_factory=dict)
    cached_blocks: int = 0
    runs: tuple[CachedRun, ...] = ()


class SelfPortrait:
    """This node's own portrait, made when somebody asks."""

    def __init__(
        self,
        mesh: Mesh,
        engine: EngineClient,
        blocks: OwnBlocks,
        traffic: Traffic,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self._mesh = mesh
        self._engine = engine
        self._blocks = blocks
        self._traffic = traffic
        self._clock = clock
        self._lock = asyncio.Lock()
        self._runs: tuple[CachedRun, ...] = ()
        self._runs_at = float("-inf")

    async def now(self) -> Portrait:
        """The portrait, its runs at most `FRESH_SECONDS` old."""
        async with self._lock:
            if self._clock() - self._runs_at >= FRESH_SECONDS:
                self._runs = await self._outline()
                self._runs_at = self._clock()
        connected = [peer.node_id for peer in self._mesh.peers() if peer.connected]
        return Portrait(
            connected=tuple(connected[:MAX_CONNECTED]),
            sent=dict(sorted(self._traffic.sent.items(), key=lambda item: -item[1])[:MAX_SENT]),
            cached_blocks=len(self._blocks),
            runs=self._runs,
        )

    async def _outline(self) -> tuple[CachedRun, ...]:
        try:
            return await self._engine.outline(MAX_RUNS)
        except EngineDiedError:
            return ()  # with the engine its cache is gone


def portrait_to_pb(portrait: Portrait, runs: int) -> overlay_pb2.DescribeResponse:
    """A portrait as it travels, with at most `runs` runs."""
    return overlay_pb2.DescribeResponse(
        connected=b"".join(map(node_id_bytes, portrait.connected)),
        sent=[
            overlay_pb2.Sent(node_id=node_id_bytes(node_id), requests=count)
            for node_id, count in portrait.sent.items()
        ],
        cached_blocks=portrait.cached_blocks,
        runs=[
            overlay_pb2.CachedRun(
                parent=0 if run.parent is None else run.parent + 1,
                depth=run.depth,
                blocks=run.blocks,
                hits=run.hits,
                running=run.running,
                first_hash=run.first_hash,
                last_hash=run.last_hash,
            )
            for run in portrait.runs[:runs]
        ],
    )


def portrait_from_pb(message: overlay_pb2.DescribeResponse) -> Portrait:
    """A peer's portrait; raises MalformedFrameError for one that is too large or no tree."""
    ids = message.connected
    if len(ids) > MAX_CONNECTED * NODE_ID_BYTES or len(message.sent) > MAX_SENT:
        raise MalformedFrameError("a portrait names too many peers")
    if len(message.runs) > MAX_RUNS:
        raise MalformedFrameError(f"a portrait has {len(message.runs)} runs, over {MAX_RUNS}")
    return Portrait(
        connected=tuple(
            node_id_from_bytes(ids[at : at + NODE_ID_BYTES]) for at in range(0, len(ids), NODE_ID_BYTES)
        ),
        sent={node_id_from_bytes(sent.node_id): sent.requests for sent in message.sent},
        cached_blocks=message.cached_blocks,
        runs=_runs(message),
    )


def _runs(message: overlay_pb2.DescribeResponse) -> tuple[CachedRun, ...]:
    runs: list[CachedRun] = []
    for run in message.runs:
        if run.parent > len(runs):
            raise MalformedFrameError("a portrait has a run before its parent")
        above = runs[run.parent - 1] if run.parent else None
        depth = above.depth + above.blocks if above else 0
        if run.depth != depth or not run.blocks:
            raise MalformedFrameError("a portrait has a run that does not continue its parent")
        runs.append(
            CachedRun(
                parent=run.parent - 1 if run.parent else None,
                depth=depth,
                blocks=run.blocks,
                hits=run.hits,
                running=run.running,
                first_hash=run.first_hash,
                last_hash=run.last_hash,
            )
        )
    return tuple(runs)
