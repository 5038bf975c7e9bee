"""Content fingerprints of model files, remembered by file identity so that each file is hashed once.

A fingerprint names what the files say, not how this machine computes with them: precision and device move
keys and values by rounding only, and KV never leaves a node, so nodes of unequal precision share a namespace.
"""

from __future__ import annotations

import contextlib
import json
import os
from collections.abc import Sequence
from hashlib import blake2b
from pathlib import Path
from typing import Final

from engine.cache_folder import cache_folder, write_atomically
from engine.errors import EngineConfigError, ModelDamagedError

DIGEST_BYTES: Final = 32
_CHUNK: Final = 1 << 22


def fingerprint(files: Sequence[Path]) -> bytes:
    """32 bytes that depend on names and contents of `files` alone. Raises ModelDamagedError."""
    digest = blake2b(digest_size=DIGEST_BYTES, person=b"rumormill-files")
    single = len(files) == 1
    for path in files:
        name = b"" if single else path.name.encode()
        digest.update(len(name).to_bytes(4, "little") + name + _file_digest(path))
    return digest.digest()


def _file_digest(path: Path) -> bytes:
    try:
        status = path.stat()
        identity = json.dumps([str(path), status.st_size, status.st_mtime_ns, status.st_ino])
        key = blake2b(identity.encode(), digest_size=16).hexdigest()
        remembered = cache_folder("fingerprints") / key
        if remembered.is_file():
            cached = remembered.read_bytes()
            if len(cached) == DIGEST_BYTES:
                return cached
        computed = _hash_contents(path)
    except OSError as error:
        raise ModelDamagedError(f"can't read {path}: {error.strerror or error}") from error
    with contextlib.suppress(EngineConfigError):  # a read-only cache: it costs time, nothing else
        write_atomically(remembered, computed)
    return computed


def _hash_contents(path: Path) -> bytes:
    digest = blake2b(digest_size=DIGEST_BYTES)
    with path.open("rb") as file:
        if hasattr(os, "posix_fadvise"):
            os.posix_fadvise(file.fileno(), 0, 0, os.POSIX_FADV_SEQUENTIAL)
        while chunk := file.read(_CHUNK):
            digest.update(chunk)
    return digest.digest()
