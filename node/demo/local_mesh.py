"""Several nodes as processes of this machine, on loopback, each with its own state folder."""

from __future__ import annotations

import json
import os
import re
import select
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from types import TracebackType
from typing import IO, Any

from certs.roles import Role
from certs.token import MeshToken
from node.client import Client
from node.errors import NodeError

START_SECONDS = 120.0
MEET_SECONDS = 30.0
STOP_SECONDS = 10.0
REPORT_SECONDS = 0.5


class DemoError(NodeError):
    """The demonstration can't go on."""


@dataclass(frozen=True, slots=True)
class LocalNode:
    """One started process, and what it said of itself when ready."""

    process: subprocess.Popen[str]
    log: Path
    node_id: str
    grpc: str


class LocalMesh:
    """A context manager: everything it started has ended when it is left, however it is left."""

    def __init__(self, nodes: int, options: list[str], *, report: Callable[[str], None]) -> None:
        """`options` are passed to every `rumormill up`."""
        self._count = nodes
        self._options = options
        self._report = report
        self._processes: list[subprocess.Popen[str]] = []
        self._folder = tempfile.TemporaryDirectory(prefix="rumormill-demo-")
        self.token = str(MeshToken.make())
        self.nodes: list[LocalNode] = []

    def __enter__(self) -> LocalMesh:
        try:
            self._start()
        except BaseException:
            self._stop()
            raise
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._stop()

    def client(self, index: int) -> Client:
        """An operator's client of one node."""
        return Client.from_token(self.nodes[index].grpc, self.token, Role.OPERATOR)

    def _start(self) -> None:
        for index in range(self._count):
            self._report(f"starting node {index + 1} of {self._count}")
            self._processes.append(self._spawn(index))
        deadline = time.monotonic() + START_SECONDS
        for index, process in enumerate(self._processes):
            name = f"node {index + 1} of {self._count}"
            ready = _read_ready(process, self._log(index), deadline, name, self._report)
            self.nodes.append(LocalNode(process, self._log(index), ready["node_id"], ready["grpc"]))
        self._report("waiting until the nodes see one another")
        self._wait_until_met()

    def _spawn(self, index: int) -> subprocess.Popen[str]:
        environment = {key: value for key, value in os.environ.items() if not key.startswith("RUMORMILL_")}
        environment["RUMORMILL_TOKEN"] = self.token
        command = [sys.executable, "-m", "node.cli", "up", "--json", "--until-eof", "--listen", "127.0.0.1"]
        command += ["--grpc-port", "0", "--http-port", "0", "--state-dir", str(self._folder_of(index))]
        command += ["--log-level", "info", "--log-format", "json"]
        with self._log(index).open("w") as log:
            # In a session of its own: Ctrl-C reaches this program alone, which ends the nodes in order;
            # with a pipe, so that they end too if this program is killed.
            return subprocess.Popen(
                [*command, *self._options],
                stdin=subprocess.PIPE,
                stdout=subprocess.PIPE,
                stderr=log,
                text=True,
                env=environment,
                start_new_session=True,
            )

    def _wait_until_met(self) -> None:
        deadline = time.monotonic() + MEET_SECONDS
        for index in range(self._count):
            with self.client(index) as client:
                while (
                    sum(peer.connected and peer.HasField("load") for peer in client.peers()) < self._count - 1
                ):
                    if time.monotonic() > deadline:
                        raise DemoError(
                            f"the nodes did not find each other within {MEET_SECONDS:.0f} s; "
                            "is multicast on the loopback interface blocked?"
                        )
                    time.sleep(0.1)

    def _stop(self) -> None:
        for process in self._processes:
            if process.poll() is None:
                process.send_signal(signal.SIGTERM)
        deadline = time.monotonic() + STOP_SECONDS
        for process in self._processes:
            try:
                process.wait(max(deadline - time.monotonic(), 0.1))
            except subprocess.TimeoutExpired:
                process.kill()
                process.wait()
            for pipe in (process.stdin, process.stdout):
                if pipe:
                    pipe.close()
        self._folder.cleanup()

    def _folder_of(self, index: int) -> Path:
        folder = Path(self._folder.name) / f"node-{index + 1}"
        folder.mkdir(exist_ok=True)
        return folder

    def _log(self, index: int) -> Path:
        return self._folder_of(index) / "log"


def _read_ready(
    process: subprocess.Popen[str], log: Path, deadline: float, name: str, report: Callable[[str], None]
) -> dict[str, Any]:
    """The line a node prints when it serves; raises DemoError with its last words when it doesn't."""
    assert process.stdout is not None
    line = None
    while line is None and time.monotonic() < deadline:
        report(f"{name}: {_stage(log)}")
        line = _read_line(process.stdout, REPORT_SECONDS)
    if not line:
        said = log.read_text().strip().splitlines()
        raise DemoError(f"a node did not start: {said[-1] if said else 'it said nothing'}")
    ready: dict[str, Any] = json.loads(line)
    return ready


def _stage(log: Path) -> str:
    """What a node's start is busy with, as it logged."""
    stages = re.findall(r'"stage": "([^"]*)"', log.read_text())
    return stages[-1] if stages else "starting"


def _read_line(stream: IO[str], seconds: float) -> str | None:
    """A line, empty at the end of the stream; None if there is none in time."""
    readable, _, _ = select.select([stream], [], [], seconds)
    return stream.readline() if readable else None
