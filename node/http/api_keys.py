"""API keys of the HTTP door: several, named, from a file that may change while the node runs.

One key a line, `name key` or `name key role`; `#` starts a comment. Without a role a key is a client's,
which asks the model; an operator's sees the mesh too. Keys are compared in constant time.
"""

from __future__ import annotations

import hmac
import re
import stat
from dataclasses import dataclass
from hashlib import sha256
from pathlib import Path

from certs.roles import Role
from node.errors import StartupError, UnauthenticatedError

SHORTEST_KEY_CHARACTERS = 20
MAX_FILE_BYTES = 1 << 20

HTTP_ROLES = {role.value: role for role in (Role.CLIENT, Role.OPERATOR)}

_LINE = re.compile(r"([A-Za-z0-9._-]{1,64})\s+(\S+)(?:\s+(\S+))?")
_Signature = tuple[int, int, int]


@dataclass(frozen=True, slots=True)
class _Key:
    digest: bytes
    role: Role


class ApiKeys:
    """The keys in a file, read again whenever it changes; a damaged change leaves the last good ones."""

    def __init__(self, path: Path) -> None:
        """Raises StartupError for a file that can't be used."""
        self._path = path
        self._signature = _signature(path)
        self._keys = _read(path)

    def identify(self, authorization: str) -> str:
        """The name of the key in an Authorization header; raises UnauthenticatedError."""
        self._reload()
        scheme, _, key = authorization.partition(" ")
        digest = sha256(key.strip().encode()).digest()
        found = [name for name, known in self._keys.items() if hmac.compare_digest(known.digest, digest)]
        if scheme.lower() != "bearer" or not found:
            raise UnauthenticatedError("give a valid API key in the header `Authorization: Bearer KEY`")
        return found[0]

    def role(self, name: str) -> Role:
        """What the holder of a key, as `identify` just named it, may see."""
        return self._keys[name].role

    def _reload(self) -> None:
        try:
            signature = _signature(self._path)
            if signature != self._signature:
                self._keys = _read(self._path)
                self._signature = signature
        except StartupError:
            return  # the file is being replaced, or was damaged: the last good keys hold


def _signature(path: Path) -> _Signature:
    try:
        status = path.stat()
    except OSError as error:
        raise StartupError(f"--api-keys: can't read {path}: {error.strerror}") from None
    return status.st_mtime_ns, status.st_size, status.st_ino


def _read(path: Path) -> dict[str, _Key]:
    try:
        status = path.stat()
        text = path.read_text("utf-8") if status.st_size <= MAX_FILE_BYTES else ""
    except (OSError, UnicodeDecodeError) as error:
        raise StartupError(f"--api-keys: can't read {path}: {error}") from None
    if status.st_mode & stat.S_IRWXO:
        raise StartupError(f"--api-keys: others can read {path}; run `chmod 600 {path}`")
    keys: dict[str, _Key] = {}
    for number, line in enumerate(text.splitlines(), 1):
        if not (line := line.partition("#")[0].strip()):
            continue
        match = _LINE.fullmatch(line)
        if match is None:
            raise StartupError(f"--api-keys: line {number} of {path} is not `name key` or `name key role`")
        name, key, role = match.groups()
        if role is not None and role not in HTTP_ROLES:
            raise StartupError(
                f"--api-keys: line {number} of {path} has the unknown role {role!r}; "
                f"use {' or '.join(HTTP_ROLES)}"
            )
        if len(key) < SHORTEST_KEY_CHARACTERS:
            raise StartupError(
                f"--api-keys: the key of {name} has under {SHORTEST_KEY_CHARACTERS} characters; "
                "make one with `openssl rand -hex 16`"
            )
        keys[name] = _Key(sha256(key.encode()).digest(), HTTP_ROLES.get(role, Role.CLIENT))
    if not keys:
        raise StartupError(f"--api-keys: {path} holds no key; write `name key` on a line")
    return keys
