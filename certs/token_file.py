"""Credentials from a file of mesh tokens, read again whenever it changes: a mesh changes its token live.

One token a line, this process's own first, then those that others may still have, or have already;
`#` starts a comment. Every process goes through three files: old and new, new and old, new alone.
"""

from __future__ import annotations

import logging
import stat
import threading
import time
from collections.abc import Callable
from pathlib import Path

from cryptography.hazmat.primitives.asymmetric import ec

from certs.credentials import Credentials, Material
from certs.errors import CertsError, KeyFileError, MalformedTokenError
from certs.files import file_signature
from certs.node_key import load_or_create_node_key
from certs.roles import Role
from certs.token import MeshToken
from certs.token_source import DENYLIST_FILE, TokenSource
from certs.trust import Denylist

log = logging.getLogger(__name__)

CHECK_PERIOD_S = 1.0
"""The file is looked at at most this often."""

MAX_TOKENS = 4
"""Old and new are two; each more is another mesh whose nodes are let in."""

MAX_FILE_BYTES = 16 << 10


class TokenFileSource:
    """A TokenSource that is replaced when the file changes; a damaged change leaves the last good one.

    `on_change` is told this process's new own token, on whatever thread asked for credentials.
    """

    def __init__(
        self,
        path: Path,
        key: ec.EllipticCurvePrivateKey,
        denylist: Denylist,
        on_change: Callable[[MeshToken], None],
        monotonic: Callable[[], float] = time.monotonic,
    ) -> None:
        """Raises KeyFileError or a TokenError."""
        self.denylist = denylist
        self._path = path
        self._key = key
        self._on_change = on_change
        self._monotonic = monotonic
        self._lock = threading.Lock()
        self._checked_at = monotonic()
        self._signature = file_signature(path)
        self._tokens = read_tokens(path)
        self._source = self._make_source(self._tokens)

    def current(self) -> Material:
        with self._lock:
            now = self._monotonic()
            if now - self._checked_at >= CHECK_PERIOD_S:
                self._checked_at = now
                self._follow_file()
            return self._source.current()

    def _follow_file(self) -> None:
        signature = file_signature(self._path)
        if signature == self._signature:
            return
        self._signature = signature
        try:
            tokens = read_tokens(self._path)
            source = self._make_source(tokens)
        except CertsError as error:
            log.error("the new tokens in %s are not used, the old ones stay: %s", self._path, error)
            return
        if tokens == self._tokens:
            return
        log.warning(
            "this node's token is of mesh %s now; meshes accepted: %s",
            tokens[0].mesh_id,
            ", ".join(token.mesh_id for token in tokens),
        )
        is_other = tokens[0] != self._tokens[0]
        self._tokens, self._source = tokens, source
        if is_other:
            self._on_change(tokens[0])

    def _make_source(self, tokens: tuple[MeshToken, ...]) -> TokenSource:
        return TokenSource(tokens, Role.NODE, self._key, self.denylist)


def token_file_credentials(
    path: Path, state_dir: Path, on_change: Callable[[MeshToken], None]
) -> Credentials:
    """A node's credentials, with its key and denylist in `state_dir`; raises a CertsError."""
    key = load_or_create_node_key(state_dir)
    return Credentials(TokenFileSource(path, key, Denylist(state_dir / DENYLIST_FILE), on_change))


def read_tokens(path: Path) -> tuple[MeshToken, ...]:
    """The own token first; raises KeyFileError or a TokenError."""
    try:
        status = path.stat()
        text = path.read_text("utf-8") if status.st_size <= MAX_FILE_BYTES else None
    except (OSError, UnicodeDecodeError) as error:
        raise KeyFileError(f"can't read the token file {path}: {error}") from error
    if status.st_mode & stat.S_IRWXO:
        raise KeyFileError(f"others can read the token file {path}; run `chmod 600 {path}`")
    lines = [line.partition("#")[0].strip() for line in (text or "").splitlines()]
    tokens = tuple(MeshToken.parse(line) for line in lines if line)
    if text is None or not 0 < len(tokens) <= MAX_TOKENS:
        raise MalformedTokenError(f"{path} must hold 1 to {MAX_TOKENS} tokens, one a line")
    return tokens
