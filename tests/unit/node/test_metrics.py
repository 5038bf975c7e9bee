"""What /metrics exposes, and that the documents and the dashboard speak of just that."""

from __future__ import annotations

import json
import random
import re
from pathlib import Path
from types import SimpleNamespace
from typing import Any, cast

import pytest
from prometheus_client.parser import text_string_to_metric_families

from engine.interface import EngineStats
from node.live_metrics import register_live_metrics
from node.metrics import Metrics
from node.observer import Observer
from node.request import Chunk
from node.served import Served
from node.tracing import PassingTracer
from overlay.core.router import Router
from overlay.core.types import NodeId
from overlay.core.views import PeerView
from tests.unit.node.fakes import NAMESPACE, FakeHearsay, peer_view
from tests.unit.node.observations import PEER, SELF, decision, done, request, route

ROOT = Path(__file__).parents[3]
DASHBOARD = ROOT / "docker/grafana/rumormill.json"
ADDED_BY_PROMETHEUS = {"instance", "le"}


class Node:
    """As much of a node as is measured."""

    def __init__(self) -> None:
        self.peers: tuple[PeerView, ...] = (peer_view(NodeId("b")),)
        self.mesh = SimpleNamespace(
            gossip_bytes={("sent", "heads"): 10, ("received", "load"): 20}, peers=lambda: self.peers
        )
        self.router = Router(FakeHearsay(), NAMESPACE.model, "cost", random.Random(1))
        self.engine = SimpleNamespace(stats=EngineStats())
        self.served = Served()
        self.metrics = Metrics()
        register_live_metrics(self.metrics, cast(Any, self))

    def samples(self) -> dict[tuple[str, frozenset[tuple[str, str]]], float]:
        """Every sample by name and labels, as a scraper reads it."""
        text = self.metrics.text().decode()
        return {
            (sample.name, frozenset(sample.labels.items())): sample.value
            for family in text_string_to_metric_families(text)
            for sample in family.samples
        }

    def value(self, name: str, **labels: str) -> float:
        return self.samples()[name, frozenset(labels.items())]


def test_live_metrics_are_read_where_they_live() -> None:
    node = Node()
    node.engine.stats = EngineStats(
        running=2,
        waiting=3,
        queued_prefill_tokens=77,
        kv_blocks_total=10,
        kv_blocks_used=4,
        kv_blocks_cached=6,
    )
    node.served = Served(5, 100, 30, 12)
    node.router.quarantine.failed(NodeId("b"), 1e12)
    assert node.value("rumormill_engine_requests", state="running") == 2
    assert node.value("rumormill_engine_requests", state="waiting") == 3
    assert node.value("rumormill_queued_prompt_tokens") == 77
    states = ("used", "cached", "total")
    assert [node.value("rumormill_kv_blocks", state=state) for state in states] == [4, 6, 10]
    assert node.value("rumormill_served_requests_total") == 5
    kinds = ("cached", "computed", "generated")
    assert [node.value("rumormill_served_tokens_total", kind=kind) for kind in kinds] == [30, 70, 12]
    assert node.value("rumormill_members", state="alive") == 1
    assert node.value("rumormill_quarantined_peers") == 1
    assert node.value("rumormill_rtt_seconds", peer="b") == pytest.approx(0.001)
    assert node.value("rumormill_replica_age_seconds", peer="b") == pytest.approx(0.1)
    assert node.value("rumormill_gossip_bytes_total", direction="received", kind="load") == 20


def test_a_peer_that_is_gone_has_no_metric() -> None:
    node = Node()
    node.peers = ()
    assert not any("peer" in dict(labels) for _, labels in node.samples())


def exercised() -> Node:
    """A node on which everything has happened once."""
    node = Node()
    observer = Observer(SELF, node.metrics, PassingTracer())
    with observer.entered(request()) as entered:
        entered.saw(route(PEER))
        entered.moved(PEER, "busy", ValueError())
        with entered.attempt(decision(SELF), request()):
            entered.saw(Chunk("x", (1,), 0))
        entered.saw(done(SELF))
    observer.refused("r1")
    return node


def exposed() -> dict[str, dict[str, set[str]]]:
    """The values of each label of each metric."""
    found: dict[str, dict[str, set[str]]] = {}
    for name, labels in exercised().samples():
        values = found.setdefault(name, {})
        for label, value in labels:
            values.setdefault(label, set()).add(value)
    return found


def test_the_documents_list_what_is_exposed() -> None:
    text = (ROOT / "docs/operations.md").read_text()
    listed = set(re.findall(r"^\| `(rumormill_\w+)`", text, re.MULTILINE))
    names = {
        re.sub(r"_(bucket|sum|count|created)$", "", name)
        for name in exposed()
        if name.startswith("rumormill_") and not name.endswith("_created")
    }
    assert listed == names


def queries() -> list[tuple[str, str]]:
    """(panel title, expression) of everything that the dashboard asks Prometheus."""
    dashboard = json.loads(DASHBOARD.read_text())
    return [(panel["title"], target["expr"]) for panel in dashboard["panels"] for target in panel["targets"]]


@pytest.mark.parametrize(("title", "query"), queries())
def test_every_metric_and_label_the_dashboard_asks_for_exists(title: str, query: str) -> None:
    known = exposed()
    selectors = re.findall(r"\b((?:rumormill|process)_\w+)(?:\{([^}]*)\})?", query)
    assert selectors, f"{title} asks for nothing"
    labels = set(ADDED_BY_PROMETHEUS)
    for name, matchers in selectors:
        assert name in known, f"{title}: {name}"
        labels |= known[name].keys()
        for label, operator, value in re.findall(r'(\w+)(=~?)"([^"]*)"', matchers):
            assert label in known[name] or label in ADDED_BY_PROMETHEUS, f"{title}: {name} {label}"
            if operator == "=":
                assert value in known[name][label], f"{title}: {name} {label}={value}"
    for grouping in re.findall(r"(?:by|ignoring) \(([^)]*)\)", query.replace("ignoring(", "ignoring (")):
        assert {label.strip() for label in grouping.split(",")} <= labels, title


def test_the_dashboard_shows_each_thing_once() -> None:
    dashboard = json.loads(DASHBOARD.read_text())
    panels = dashboard["panels"]
    assert len({panel["id"] for panel in panels}) == len({panel["title"] for panel in panels}) == len(panels)
    cells = [
        (x, y)
        for panel in panels
        for x in range(panel["gridPos"]["x"], panel["gridPos"]["x"] + panel["gridPos"]["w"])
        for y in range(panel["gridPos"]["y"], panel["gridPos"]["y"] + panel["gridPos"]["h"])
    ]
    assert len(cells) == len(set(cells)), "panels overlap"
    assert max(x for x, _ in cells) < 24
