"""The demonstration shows what it claims, and leaves nothing behind."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import time
from pathlib import Path

import psutil
import pytest

from tests.e2e.conftest import ROOT, rumormill

pytestmark = [pytest.mark.e2e, pytest.mark.timeout(600)]

POLICIES = ("cost", "local", "random")


def test_cost_finds_more_in_caches_and_no_policy_changes_an_answer() -> None:
    shown = rumormill("demo", "--json").json()
    policies = shown["policies"]
    assert set(policies) == set(POLICIES)
    assert all(policy["requests"] >= 48 and policy["failed"] == 0 for policy in policies.values())
    assert policies["cost"]["hit_rate"] > policies["local"]["hit_rate"]
    assert policies["cost"]["hit_rate"] > policies["random"]["hit_rate"]
    assert shown["identical_answers"] == policies["cost"]["requests"]
    local = [request for request in shown["requests"] if request["policy"] == "local"]
    assert all(request["entry"] == request["served_by"] for request in local)
    assert len({request["subject"] for request in local}) >= 8


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM, signal.SIGKILL])
def test_however_it_ends_nothing_it_started_is_left(tmp_path: Path, number: signal.Signals) -> None:
    demo = subprocess.Popen(
        [sys.executable, "-m", "node.cli", "demo"],
        cwd=ROOT,
        env=os.environ | {"TMPDIR": str(tmp_path)},
        stdout=subprocess.DEVNULL,
        stderr=subprocess.PIPE,
        text=True,
        start_new_session=True,
    )
    started = wait_for_descendants(demo.pid, 4)
    os.killpg(demo.pid, number)
    _, said = demo.communicate(timeout=60)
    _, alive = psutil.wait_procs(started, timeout=10)
    assert alive == []
    assert "Traceback" not in said
    if number is not signal.SIGKILL:
        assert demo.returncode == 130
        assert list(tmp_path.iterdir()) == []


def wait_for_descendants(pid: int, count: int) -> list[psutil.Process]:
    """Once the nodes have begun to start their engines."""
    deadline = time.monotonic() + 60
    while time.monotonic() < deadline:
        time.sleep(0.05)
        found = psutil.Process(pid).children(recursive=True)
        if len(found) >= count:
            return found
    pytest.fail("the demonstration started no nodes")
