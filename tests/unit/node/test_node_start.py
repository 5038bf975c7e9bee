"""What can happen to a node while it starts."""

from __future__ import annotations

import asyncio
import os
import signal
import time
from pathlib import Path

import pytest

from engine.tokenizer import Tokenizer
from node.config import make_config
from node.node import Node
from tests.unit.engine.conftest import make_folder

DEADLINE = 60.0


async def test_an_engine_that_dies_before_the_mesh_starts_comes_back(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    node = Node(
        make_config(
            {
                "model": str(make_folder(tmp_path / "model", "llama")),
                "state_dir": tmp_path / "state",
                "grpc_port": 0,
                "http_port": 0,
                "mdns": False,
                "threads": 1,
                "kv_memory_mib": 16,
            }
        )
    )
    load = Tokenizer.load

    def kill_first(source: str) -> Tokenizer:
        """Between the engine's start and the mesh's; in a thread, so the event loop hears of the death."""
        assert node.engine.pid is not None
        os.kill(node.engine.pid, signal.SIGKILL)
        ends = time.monotonic() + DEADLINE
        while node.engine.ready and time.monotonic() < ends:
            time.sleep(0.001)
        assert not node.engine.ready
        return load(source)

    monkeypatch.setattr(Tokenizer, "load", kill_first)
    await node.start()
    try:
        async with asyncio.timeout(DEADLINE):
            await node.engine.wait_ready()
            while not node.mesh.own_load().accepting:  # noqa: ASYNC110 - told by the engine's next report
                await asyncio.sleep(0.001)
    finally:
        await node.stop()
