"""Every script in this folder, in the simulated world."""

from __future__ import annotations

from pathlib import Path

import pytest

from overlay.sim.runner import ScriptRunner
from overlay.sim.script import load

SCRIPTS = sorted(Path(__file__).parent.glob("*.txt"))


@pytest.mark.parametrize("path", SCRIPTS, ids=lambda path: path.stem)
def test_script(path: Path) -> None:
    ScriptRunner(load(path)).run()


def test_there_are_scripts() -> None:
    assert len(SCRIPTS) >= 8
