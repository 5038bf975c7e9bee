"""Random fault schedules of 30 nodes: invariants 2 to 6, whatever happens."""

from __future__ import annotations

import os

import pytest

from overlay.sim.schedule import Schedule, ScheduleFailedError, ScheduleRunner
from overlay.sim.soak import commit, failures

SCHEDULES = int(os.environ.get("RUMORMILL_SCHEDULES", "500"))


@pytest.mark.soak
@pytest.mark.timeout(900)
def test_random_schedules() -> None:
    failed = list(failures(range(SCHEDULES), jobs=os.cpu_count() or 1))
    assert not failed, f"commit {commit()}: {failed[:3]}"


def test_a_failure_names_its_seed(monkeypatch: pytest.MonkeyPatch) -> None:
    runner = ScheduleRunner(Schedule(seed=41, nodes=5, steps=2))
    monkeypatch.setattr(runner.world, "wrong_replicas", lambda: ["n0 holds n1 wrongly"])
    with pytest.raises(ScheduleFailedError, match=r"seed 41 at .*n0 holds n1 wrongly.*Steps: "):
        runner.run()
