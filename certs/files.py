"""Files that must never be half written, and secrets that only their owner may read."""

from __future__ import annotations

import os
import secrets
from pathlib import Path
from typing import TypeAlias

Signature: TypeAlias = tuple[int, int, int, int]
"""Differs whenever a file's content may have changed: times of content and inode, size, inode."""


UNREADABLE: Signature = (0, 0, 0, 0)


def file_signature(path: Path) -> Signature | None:
    """None where there is no file, UNREADABLE where that can't be told."""
    try:
        status = path.stat()
    except (FileNotFoundError, NotADirectoryError):
        return None
    except OSError:
        return UNREADABLE
    return status.st_mtime_ns, status.st_ctime_ns, status.st_size, status.st_ino


def write_atomically(path: Path, content: bytes, mode: int = 0o600) -> None:
    """Replaces a file's content in one step, durably; raises OSError."""
    temporary = path.with_name(f".{path.name}.{secrets.token_hex(4)}")
    descriptor = os.open(temporary, os.O_WRONLY | os.O_CREAT | os.O_EXCL, mode)
    try:
        with os.fdopen(descriptor, "wb") as file:
            file.write(content)
            file.flush()
            os.fsync(file.fileno())
        temporary.replace(path)
    except BaseException:
        temporary.unlink(missing_ok=True)
        raise
    sync_folder(path.parent)


def sync_folder(folder: Path) -> None:
    descriptor = os.open(folder, os.O_RDONLY)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)
