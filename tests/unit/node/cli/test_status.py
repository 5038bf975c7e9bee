"""The live status of a node, line by line, and the rates in it."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any, cast

import pytest
from rich.console import Console

from engine.interface import EngineStats
from node.cli.rates import WINDOW_S, Rates
from node.cli.status import Status, render
from node.decisions import RecordedDecision
from node.served import Served
from overlay.core.types import NodeId
from overlay.core.views import PeerState
from tests.unit.node.fakes import peer_view
from tests.unit.node.observations import PEER, SELF, decision, request


def test_rates_are_of_the_last_seconds_only() -> None:
    rates, served = Rates(), Served()
    rates.sample(0.0, served)
    served.requests, served.generated_tokens = 100, 1000
    rates.sample(1.0, served)
    assert (rates.requests_per_s, rates.tokens_per_s) == (100.0, 1000.0)
    for second in range(2, 30):
        rates.sample(float(second), served)
    assert rates.requests_per_s == 0.0
    served.requests += 20
    rates.sample(30.0, served)
    assert rates.requests_per_s == pytest.approx(20 / WINDOW_S)


def test_hits_are_of_the_window_or_else_of_all() -> None:
    rates, served = Rates(), Served()
    rates.sample(0.0, served)
    before = rates.hit_rate
    assert before is None
    served.prompt_tokens, served.cached_tokens = 100, 50
    rates.sample(1.0, served)
    assert rates.hit_rate == 0.5
    for second in range(2, 30):
        rates.sample(float(second), served)
    assert rates.hit_rate == 0.5
    served.prompt_tokens, served.cached_tokens = 200, 150
    rates.sample(30.0, served)
    assert rates.hit_rate == 1.0


def test_a_node_that_restarted_has_no_negative_rate() -> None:
    rates = Rates()
    rates.sample(0.0, Served(requests=50, generated_tokens=500))
    rates.sample(1.0, Served(requests=2, generated_tokens=20))
    assert rates.requests_per_s == 0.0
    rates.sample(2.0, Served(requests=4, generated_tokens=40))
    assert rates.tokens_per_s == 20.0


def node(*peers: object, draining: bool = False, last: object = None, ready: bool = True) -> Any:
    stats = EngineStats(running=2, waiting=1, kv_blocks_total=100, kv_blocks_used=10, kv_blocks_cached=60)
    return SimpleNamespace(
        served=Served(3, 100, 40, 30),
        engine=SimpleNamespace(stats=stats, ready=ready),
        mesh=SimpleNamespace(peers=lambda: peers),
        admission=SimpleNamespace(draining=draining),
        in_flight=SimpleNamespace(count=4),
        decisions=SimpleNamespace(last=last),
    )


def shown(what: Any) -> dict[str, str]:
    status = Status(cast(Any, what))
    status.sample(0.0)
    return dict(status.lines(100.0))


def test_a_node_alone_says_so() -> None:
    lines = shown(node())
    assert lines["mesh"] == "no other node yet"
    assert lines["last"] == "no request yet"


def test_nodes_load_and_hits_are_shown() -> None:
    dead = SimpleNamespace(connected=False, state=PeerState.DEAD)
    lines = shown(node(peer_view(NodeId("b")), dead))
    assert lines["mesh"] == "2 nodes, 1 out of reach"
    assert lines["engine"].startswith("2 running, 1 waiting; ")
    assert lines["cache"] == "40% of prompt tokens found; blocks 10% in use, 60% cached"


@pytest.mark.parametrize(("target", "where"), [(SELF, "here"), (PEER, "to bbbbbbbb")])
def test_the_last_decision_is_told_with_its_reason(target: NodeId, where: str) -> None:
    last = RecordedDecision(request(), decision(target), 90.0)
    assert shown(node(last=last))["last"] == f"8 tokens {where}, 10 s ago: 3 ms expected"


def test_trouble_is_told() -> None:
    assert shown(node(draining=True))["mesh"] == "draining: 4 requests are being finished"
    assert "restarting" in shown(node(ready=False))["engine"]


@pytest.mark.parametrize("width", [40, 80, 200])
def test_every_line_leaves_room_for_an_interrupt(width: int) -> None:
    """A ^C that wraps at the right edge would leave a line of the display behind."""
    lines = [("mesh", "2 nodes"), ("last", "x" * 300)]
    console = Console(width=width, record=True)
    with console.capture() as captured:
        console.print(render(lines))
    assert all(len(line) <= width - 2 for line in captured.get().splitlines())
    assert len(captured.get().splitlines()) == 2
