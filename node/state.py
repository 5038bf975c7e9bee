"""A node's folder on disk: token, key, epoch and known peers."""

from __future__ import annotations

import fcntl
import os
from pathlib import Path

from certs.files import write_atomically
from node.errors import StartupError


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
        try:
            descriptor = os.open(self.path / "lock", os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o600)
        except OSError as error:
            raise StartupError(
                f"state folder {self.path} can't be used: {error.strerror}; choose one with --state-dir"
            ) from None
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
