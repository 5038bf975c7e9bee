"""The simulator's scripts on both transports, in real time: the outcome that each script expects."""

from __future__ import annotations

from pathlib import Path

import pytest

from overlay.sim.script import load
from tests.unit.overlay.net.live import LiveRunner, make_nodes

SCRIPTS = Path(__file__).parents[3] / "sim"


@pytest.mark.parametrize("transport", ["memory", "grpc"])
@pytest.mark.parametrize("name", ["meet", "leave", "restart"])
async def test_script(name: str, transport: str, tmp_path: Path) -> None:
    script = load(SCRIPTS / f"{name}.txt")
    await LiveRunner(script, make_nodes(transport, script.nodes, tmp_path)).run()
