"""A node's folder on disk: token, key, epoch, known peers, and where its running process listens."""

from __future__ import annotations

import fcntl
import json
import os
from dataclasses import asdict, dataclass
from pathlib import Path

from certs.files import write_atomically
from node.errors import StartupError


@dataclass(frozen=True, slots=True)
class RunningNode:
    """What a running node says of itself to other programs of the same user."""

    pid: int
    node_id: str
    grpc: str
    http: str


class StateDir:
    """One node's state folder, private to the user."""

    def __init__(self, path: Path) -> None:
        self.path = path
        self._lock: int | None = None

    def create(self) -> None:
        """Makes the folder; raises StartupError when it can't be used."""
        try:
            self.path.mkdir(mode=0o700, parents=True, exist_ok=True)
        except OSError as error:
            raise StartupError(
                f"state folder {self.path} can't be made: {error}; choose one with --state-dir"
            ) from None

    def lock(self) -> None:
        """Claims the folder for this process until it ends."""
        descriptor = os.open(self.path / "lock", os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o600)
        try:
            fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            os.close(descriptor)
            raise StartupError(
                f"a node is already running with state folder {self.path}; "
                "for a second one choose another --grpc-port and --http-port (or --state-dir)"
            ) from None
        self._lock = descriptor

    def release(self) -> None:
        (self.path / "node.json").unlink(missing_ok=True)
        if self._lock is not None:
            os.close(self._lock)
            self._lock = None

    def read_token(self) -> str | None:
        try:
            return (self.path / "token").read_text().strip() or None
        except FileNotFoundError:
            return None

    def write_token(self, token: str) -> None:
        write_atomically(self.path / "token", f"{token}\n".encode())

    def announce(self, running: RunningNode) -> None:
        write_atomically(self.path / "node.json", json.dumps(asdict(running)).encode())

    def running(self) -> RunningNode | None:
        """The node that runs from this folder, or ran and was killed."""
        try:
            return RunningNode(**json.loads((self.path / "node.json").read_text()))
        except (FileNotFoundError, ValueError, TypeError):
            return None
