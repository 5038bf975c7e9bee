"""API keys of the HTTP door: several, named, from a file that may change while the node runs.

One key a line, `name key` or `name key role`; `#` starts a comment. Without a role a key is a client's,
which asks the model; an operator's sees the mesh too. Keys are compared in constant time.
"""

from __future__ import annotations

import hmac
import logging
import re
import stat
from dataclasses import dataclass, field
from hashlib import sha256
from pathlib import Path

from certs.files import file_signature
from certs.roles import Role
from node.errors import StartupError, UnauthenticatedError

log = logging.getLogger(__name__)

SHORTEST_KEY_CHARACTERS = 20
MAX_FILE_BYTES = 1 << 20

HTTP_ROLES = {role.value: role for role in (Role.CLIENT, Role.OPERATOR)}

_LINE = re.compile(r"([A-Za-z0-9._-]{1,64})\s+(\S+)(?:\s+(\S+))?")


@dataclass(frozen=True, slots=True)
class ApiKey:
    """Two keys may have one name, while their holder changes from one to the other."""

    name: str
    role: Role
    digest: bytes = field(repr=False)


class ApiKeys:
    """The keys in a file, read again whenever it changes; a damaged change leaves the last good ones."""

    def __init__(self, path: Path) -> None:
        """Raises StartupError for a file that can't be used."""
        self._path = path
        self._signature = file_signature(path)
        self._keys = _read(path)

    def identify(self, authorization: str) -> ApiKey:
        """The key in an Authorization header; raises UnauthenticatedError."""
        self._reload()
        scheme, _, key = authorization.partition(" ")
        digest = sha256(key.strip().encode()).digest()
        found = [known for known in self._keys if hmac.compare_digest(known.digest, digest)]
        if scheme.lower() != "bearer" or not found:
            raise UnauthenticatedError("give a valid API key in the header `Authorization: Bearer KEY`")
        return found[0]

    def _reload(self) -> None:
        signature = file_signature(self._path)
        if signature == self._signature:
            return
        self._signature = signature
        try:
            self._keys = _read(self._path)
        except StartupError as error:
            log.error("the API keys stay as they were: %s", error)


def _read(path: Path) -> tuple[ApiKey, ...]:
    try:
        status = path.stat()
        text = path.read_text("utf-8") if status.st_size <= MAX_FILE_BYTES else None
    except (OSError, UnicodeDecodeError) as error:
        raise StartupError(f"--api-keys: can't read {path}: {error}") from None
    if status.st_mode & stat.S_IRWXO:
        raise StartupError(f"--api-keys: others can read {path}; run `chmod 600 {path}`")
    if text is None:
        raise StartupError(f"--api-keys: {path} is over {MAX_FILE_BYTES} bytes")
    keys: list[ApiKey] = []
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
        digest = sha256(key.encode()).digest()
        if any(known.digest == digest for known in keys):
            raise StartupError(f"--api-keys: line {number} of {path} has a key that an earlier line has")
        keys.append(ApiKey(name, HTTP_ROLES.get(role, Role.CLIENT), digest))
    if not keys:
        raise StartupError(f"--api-keys: {path} holds no key; write `name key` on a line")
    return tuple(keys)
