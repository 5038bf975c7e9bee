"""What the core asks to be kept between runs, one file per key in the node's state folder."""

from __future__ import annotations

import logging
import os
from collections.abc import Mapping
from pathlib import Path

log = logging.getLogger(__name__)

MAX_VALUE_BYTES = 16 << 20


class Store:
    """Values replaced whole; a value that can't be written is a warning, never fatal."""

    def __init__(self, folder: Path) -> None:
        self._folder = folder

    def load(self) -> Mapping[str, bytes]:
        """Everything kept so far."""
        if not self._folder.is_dir():
            return {}
        return {
            path.name: path.read_bytes()
            for path in self._folder.iterdir()
            if path.is_file() and not path.name.startswith(".") and path.stat().st_size <= MAX_VALUE_BYTES
        }

    def save(self, key: str, value: bytes) -> None:
        """Replaces a value in one step, durably: an epoch must never fall."""
        path = self._folder / key
        temporary = self._folder / f".{key}"
        try:
            self._folder.mkdir(mode=0o700, parents=True, exist_ok=True)
            with temporary.open("wb") as file:
                file.write(value)
                file.flush()
                os.fsync(file.fileno())
            temporary.replace(path)
        except OSError as error:
            log.warning("can't keep %s in %s: %s", key, self._folder, error)
