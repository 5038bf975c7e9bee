"""What gossip costs on the wire, framing included, in steady state."""

from __future__ import annotations

from overlay.sim.report import Workload, run_overlay


def test_a_changed_block_costs_each_neighbour_at_most_12_bytes() -> None:
    report = run_overlay(6, workload=Workload(steady_s=60.0, changes_per_s=10.0))
    assert report.bytes_per_change is not None
    assert report.bytes_per_change <= 12.0


def test_an_idle_pair_costs_at_most_300_bytes_a_second() -> None:
    for nodes in (2, 6):
        report = run_overlay(nodes, workload=Workload(steady_s=120.0))
        assert 2 * report.bytes_per_node_per_s / (nodes - 1) <= 300.0
