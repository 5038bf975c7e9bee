"""The HTTP door's certificate, read again when its files change: handshakes use the newest good one."""

from __future__ import annotations

import logging
import ssl
import stat
import time
from collections.abc import Callable
from pathlib import Path

from certs.files import file_signature
from node.errors import StartupError

log = logging.getLogger(__name__)

CHECK_PERIOD_S = 1.0
"""A handshake looks for changed files at most this often."""


class HttpCertificate:
    """A certificate chain and its key; a damaged change leaves the last good ones."""

    def __init__(self, certificate: Path, key: Path, monotonic: Callable[[], float] = time.monotonic) -> None:
        """Raises StartupError for files that don't work together."""
        self._files = certificate, key
        self._monotonic = monotonic
        self._checked_at = monotonic()
        self._signature = self._sign()
        self._context = _load(certificate, key)

    def context(self) -> ssl.SSLContext:
        now = self._monotonic()
        if now - self._checked_at >= CHECK_PERIOD_S:
            self._checked_at = now
            self._follow_files()
        return self._context

    def _follow_files(self) -> None:
        signature = self._sign()
        if signature == self._signature:
            return
        self._signature = signature
        try:
            self._context = _load(*self._files)
        except StartupError as error:
            log.error("the HTTP door's certificate stays as it was: %s", error)

    def _sign(self) -> tuple[object, ...]:
        return tuple(file_signature(path) for path in self._files)


def _load(certificate: Path, key: Path) -> ssl.SSLContext:
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    context.minimum_version = ssl.TLSVersion.TLSv1_2
    context.set_alpn_protocols(["http/1.1"])
    try:
        if key.stat().st_mode & stat.S_IRWXO:
            raise StartupError(f"--http-key: others can read {key}; run `chmod 600 {key}`")
        context.load_cert_chain(certificate, key)
    except (OSError, ssl.SSLError) as error:
        raise StartupError(
            f"--http-cert {certificate} and --http-key {key} can't be used: {error.strerror or error}"
        ) from None
    return context
