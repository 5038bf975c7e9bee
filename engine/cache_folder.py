"""The folder where the engine keeps what it can compute again: `$XDG_CACHE_HOME/rumormill`."""

from __future__ import annotations

import fcntl
import os
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from engine.errors import EngineConfigError


def cache_folder(*parts: str) -> Path:
    """A folder below the cache root, made if need be. Raises EngineConfigError when that is impossible."""
    root = os.environ.get("XDG_CACHE_HOME") or str(Path.home() / ".cache")
    folder = Path(root, "rumormill", *parts)
    try:
        folder.mkdir(parents=True, exist_ok=True)
    except OSError as error:
        raise _unwritable(folder, error) from error
    return folder


@contextmanager
def locked(path: Path) -> Iterator[None]:
    """Lets one process at a time make something slow; the others then find it made."""
    try:
        file = path.open("w")
    except OSError as error:
        raise _unwritable(path.parent, error) from error
    with file:
        fcntl.flock(file, fcntl.LOCK_EX)
        yield


def write_atomically(path: Path, content: bytes) -> None:
    """Writes a file that readers see whole or not at all."""
    try:
        descriptor, temporary = tempfile.mkstemp(dir=path.parent)
        with os.fdopen(descriptor, "wb") as file:
            file.write(content)
        Path(temporary).replace(path)
    except OSError as error:
        raise _unwritable(path.parent, error) from error


def _unwritable(folder: Path, error: OSError) -> EngineConfigError:
    return EngineConfigError(
        f"can't write the cache folder {folder} ({error.strerror or error});"
        " set XDG_CACHE_HOME to a writable folder"
    )
