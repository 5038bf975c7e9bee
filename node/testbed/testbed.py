"""A running testbed: its nodes, whom they see, and how to wait for them."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from pathlib import Path

from certs.roles import Role
from node.client import Client, ClientError
from node.demo.workload import load_subjects, make_workload
from node.testbed import containers
from node.testbed.containers import FOLDER, Container
from node.testbed.errors import TestbedError
from node.testbed.secrets import OPERATOR_FILE
from node.testbed.workload import Workload
from rumormill.v1 import overlay_pb2

HEALTHY_SECONDS = 180.0
WHOLE_SECONDS = 120.0
POLL_SECONDS = 0.2

PROMPTS = 64
SHARED_CHARACTERS, OWN_CHARACTERS = 600, 300
"""Of a prompt: what those of its subject share, and its own question."""
MAX_TOKENS = 16


@dataclass(frozen=True, slots=True)
class Load:
    """How a workload asks: requests a second, and from which seed its prompts are drawn."""

    rate: float
    seed: int


class Testbed:
    """Of the containers that run now. Every method raises TestbedError."""

    __test__ = False

    def __init__(self, secrets: Path = FOLDER / "secrets") -> None:
        try:
            self._token = (secrets / OPERATOR_FILE).read_text().strip()
        except OSError as error:
            raise TestbedError(f"no testbed runs here ({error}); start one: rumormill testbed up") from None

    def nodes(self) -> list[Container]:
        found = containers.nodes()
        if not found:
            raise TestbedError("no testbed runs here; start one: rumormill testbed up")
        return found

    def pick(self, names: Sequence[str], count: int) -> list[Container]:
        """The nodes of these names; without names the last `count`."""
        found = {node.name: node for node in self.nodes()}
        if missing := set(names) - set(found):
            raise TestbedError(f"no node is called {missing.pop()}; there are {', '.join(found)}")
        chosen = [found[name] for name in names] or list(found.values())[-count:]
        if len(chosen) >= len(found):
            raise TestbedError("nobody would be left to ask; strike fewer nodes")
        return chosen

    def client(self, address: str) -> Client:
        """As the mesh's operator."""
        return Client.from_token(address, self._token, Role.OPERATOR)

    def workload(self, load: Load) -> Workload:
        """One that enters at every healthy node."""
        entries = {node.name: node.grpc for node in self.nodes() if node.is_healthy}
        if not entries:
            raise TestbedError("no node is healthy; see `rumormill testbed nodes`, or start anew")
        prompts = [
            f"{request.prompt[:SHARED_CHARACTERS]}\n\n{request.prompt[-OWN_CHARACTERS:]}"
            for request in make_workload(load_subjects(), PROMPTS, 1, load.seed)
        ]
        return Workload(entries, self.client, prompts, rate=load.rate, max_tokens=MAX_TOKENS)

    def wait_healthy(self, names: Iterable[str]) -> list[Container]:
        """Those nodes, once Docker calls them healthy."""
        wanted = set(names)

        def all_healthy() -> bool:
            healthy = {node.name for node in self.nodes() if node.is_healthy}
            return wanted <= healthy

        self._wait(all_healthy, HEALTHY_SECONDS, f"{', '.join(sorted(wanted))} did not become healthy")
        return [node for node in self.nodes() if node.name in wanted]

    def wait_whole(self) -> float:
        """Until every healthy node is connected to all the others; how many seconds that took."""
        started = time.monotonic()
        alive = [node for node in self.nodes() if node.is_healthy]
        for node in alive:
            self._wait(
                lambda node=node: self.seen_by(node) == len(alive) - 1,  # type: ignore[misc]
                WHOLE_SECONDS,
                f"{node.name} does not see all {len(alive) - 1} others",
            )
        return time.monotonic() - started

    def seen_by(self, node: Container) -> int:
        """How many peers a node is connected to and calls alive; -1 when it doesn't answer."""
        try:
            with self.client(node.grpc) as client:
                peers = client.peers()
        except ClientError:
            return -1
        return sum(p.connected and p.state == overlay_pb2.MEMBER_STATE_ALIVE for p in peers)

    def _wait(self, until: Callable[[], bool], seconds: float, otherwise: str) -> None:
        deadline = time.monotonic() + seconds
        while not until():
            if time.monotonic() > deadline:
                raise TestbedError(f"{otherwise} within {seconds:.0f} s; see `docker logs`")
            time.sleep(POLL_SECONDS)
