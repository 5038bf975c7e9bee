"""Real nodes, as real processes of this machine, for as long as the tests that share them run."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest

from node.demo.local_mesh import LocalMesh

ROOT = Path(__file__).parents[2]
COMMAND_SECONDS = 400


@dataclass(frozen=True, slots=True)
class Outcome:
    """What a finished command said."""

    status: int
    out: str
    err: str

    def json(self) -> Any:
        assert self.status == 0, self.err
        return json.loads(self.out)

    def refusal(self) -> str:
        """The one line of a command that failed, without a stack trace."""
        assert self.status != 0, self.out
        assert "Traceback" not in self.err
        lines = [line for line in self.err.strip().splitlines() if line.startswith("rumormill: ")]
        assert len(lines) == 1, self.err
        return lines[0]


def rumormill(*arguments: str, stdin: str = "", home: Path | None = None, **environment: str) -> Outcome:
    """Runs the installed command to its end."""
    env = {key: value for key, value in os.environ.items() if not key.startswith("RUMORMILL_")}
    if home is not None:
        env["XDG_STATE_HOME"] = str(home)
    done = subprocess.run(
        [sys.executable, "-m", "node.cli", *arguments],
        input=stdin,
        capture_output=True,
        text=True,
        timeout=COMMAND_SECONDS,
        env=env | environment,
        check=False,
    )
    return Outcome(done.returncode, done.stdout, done.stderr)


@pytest.fixture(scope="session")
def mesh() -> Iterator[LocalMesh]:
    """Two nodes that see one another."""
    with LocalMesh(2, ["--threads", "1", "--kv-memory-mib", "128"], report=lambda text: None) as local_mesh:
        yield local_mesh


@pytest.fixture
def node(mesh: LocalMesh) -> list[str]:
    """Options that make a command call the first node."""
    return ["--node", mesh.nodes[0].grpc, "--token", mesh.token]


@contextmanager
def serving(state_dir: Path, *options: str) -> Iterator[dict[str, str]]:
    """A node of its own on free loopback ports; what it said of itself when it was ready."""
    command = [sys.executable, "-m", "node.cli", "up", "--json", "--listen", "127.0.0.1"]
    command += ["--grpc-port", "0", "--http-port", "0", "--state-dir", str(state_dir), "--threads", "1"]
    env = {key: value for key, value in os.environ.items() if not key.startswith("RUMORMILL_")}
    node = subprocess.Popen(
        [*command, *options], stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True, env=env
    )
    try:
        assert node.stdout is not None
        line = node.stdout.readline()
        if not line:
            pytest.fail(f"the node did not start: {node.communicate()[1]}")
        yield json.loads(line)
    finally:
        node.terminate()
        said = node.communicate(timeout=30)[1]
    assert "Traceback" not in said
