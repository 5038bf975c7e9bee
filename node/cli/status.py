"""What `rumormill up` shows of a running node on a terminal: three calm lines, renewed once a second."""

from __future__ import annotations

import asyncio
import time
from dataclasses import dataclass
from typing import TYPE_CHECKING

from rich.console import Console, ConsoleOptions, RenderableType, RenderResult
from rich.table import Table
from rich.text import Text

from node.cli.rates import Rates, share
from node.cli.screen import live
from overlay.core.types import short_id
from overlay.core.views import PeerState

if TYPE_CHECKING:
    from node.decisions import RecordedDecision
    from node.node import Node

INTERVAL_S = 1.0
MARGIN = 3


class Status:
    """The lines for one node; rates are of the last seconds."""

    def __init__(self, node: Node) -> None:
        self._node = node
        self._rates = Rates()

    def sample(self, now: float) -> None:
        """Takes down how far the node is now."""
        self._rates.sample(now, self._node.served)

    def lines(self, unix_time_s: float) -> list[tuple[str, str]]:
        """(heading, text) of each line."""
        stats = self._node.engine.stats
        total = max(stats.kv_blocks_total, 1)
        engine = (
            f"{stats.running} running, {stats.waiting} waiting; {self._rates.requests_per_s:.1f} requests/s, "
            f"{self._rates.tokens_per_s:.0f} tokens/s"
        )
        found = self._rates.hit_rate
        cache = "" if found is None else f"{share(found)} of prompt tokens found; "
        cache += (
            f"blocks {stats.kv_blocks_used / total:.0%} in use, {stats.kv_blocks_cached / total:.0%} cached"
        )
        return [
            ("mesh", self._mesh()),
            ("engine", engine if self._node.engine.ready else "restarting after it died"),
            ("cache", cache),
            ("last", _told(self._node.decisions.last, unix_time_s)),
        ]

    def _mesh(self) -> str:
        if self._node.admission.draining:
            return f"draining: {self._node.in_flight.count} requests are being finished"
        peers = self._node.mesh.peers()
        alive = sum(peer.connected and peer.state is PeerState.ALIVE for peer in peers)
        trouble = sum(peer.state in (PeerState.SUSPECT, PeerState.DEAD) for peer in peers)
        text = f"{alive + 1} nodes" if alive else "no other node yet"
        return f"{text}, {trouble} out of reach" if trouble else text


def _told(last: RecordedDecision | None, unix_time_s: float) -> str:
    if last is None:
        return "no request yet"
    decision = last.decision
    where = "here" if decision.chosen.is_self else f"to {short_id(decision.target)}"
    ago = max(unix_time_s - last.unix_time_s, 0)
    return f"{len(last.request.token_ids)} tokens {where}, {ago:.0f} s ago: {decision.reason}"


@dataclass(frozen=True, slots=True)
class _Narrower:
    """Leaves the right edge of the terminal free, of spaces too: a ^C that wraps would upset the display."""

    content: Table

    def __rich_console__(self, console: Console, options: ConsoleOptions) -> RenderResult:
        width = max(options.max_width - MARGIN, 1)
        yield from console.render(self.content, options.update(width=width, max_width=width))


def render(lines: list[tuple[str, str]]) -> RenderableType:
    """The lines, cut to the terminal's width."""
    grid = Table.grid(padding=(0, 2, 0, 0))
    grid.add_column(style="dim", no_wrap=True)
    grid.add_column(no_wrap=True, overflow="ellipsis")
    for heading, text in lines:
        grid.add_row(heading, Text(text))
    return _Narrower(grid)


async def show_status(node: Node) -> None:
    """Shows the node until cancelled; leaves nothing behind."""
    status = Status(node)
    with live(whole=False) as display:
        while True:
            status.sample(time.monotonic())
            display.update(render(status.lines(time.time())), refresh=True)
            await asyncio.sleep(INTERVAL_S)
