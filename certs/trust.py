"""Whom a node believes: trust anchors, each with the roles it may speak for, and a denylist."""

from __future__ import annotations

import logging
import re
from collections.abc import Iterable
from dataclasses import dataclass
from datetime import UTC, datetime
from functools import lru_cache
from pathlib import Path

from cryptography import x509
from cryptography.exceptions import InvalidSignature
from cryptography.hazmat.primitives.serialization import Encoding

from certs.errors import CertificateRefusedError, CertificateRevokedError, PkiError
from certs.files import Signature, file_signature
from certs.identity import Identity, claimed_identity, is_valid_name
from certs.roles import Role

log = logging.getLogger(__name__)

MAX_CERTIFICATE_BYTES = 32 * 1024
MAX_DENYLIST_BYTES = 4 * 1024 * 1024
_REMEMBERED_CERTIFICATES = 4096
_HEX = re.compile(r"[0-9a-f]{1,64}")


@dataclass(frozen=True, slots=True)
class Anchor:
    """An authority, the roles it may speak for, and the mesh it speaks of."""

    certificate: x509.Certificate
    roles: frozenset[Role]
    mesh_id: str

    @property
    def pem(self) -> bytes:
        return self.certificate.public_bytes(Encoding.PEM)


class Trust:
    """A fixed set of anchors; knows a verified certificate again without verifying it again."""

    def __init__(self, anchors: Iterable[Anchor]) -> None:
        self.anchors = tuple(anchors)
        self._identify = lru_cache(_REMEMBERED_CERTIFICATES)(self._verify)

    def pem(self, role: Role | None = None) -> bytes:
        """The anchors that may speak for `role`, or all of them."""
        return b"".join(anchor.pem for anchor in self.anchors if role is None or role in anchor.roles)

    def identify(self, certificate: bytes, now: datetime) -> Identity:
        """Who holds a PEM or DER leaf certificate; raises CertificateRefusedError."""
        identity = self._identify(certificate)
        if now > identity.not_after:
            raise CertificateRefusedError(
                f"the certificate of {identity} expired at {identity.not_after:%F %T}Z"
            )
        if now < identity.not_before:
            raise CertificateRefusedError(
                f"the certificate of {identity} is not valid before {identity.not_before:%F %T}Z; "
                "check the clocks of both machines"
            )
        return identity

    def _verify(self, encoded: bytes) -> Identity:
        certificate = load_certificate(encoded)
        identity = claimed_identity(certificate)
        for anchor in self.anchors:
            if identity.role not in anchor.roles or anchor.mesh_id != identity.mesh_id:
                continue
            try:
                certificate.verify_directly_issued_by(anchor.certificate)
            except (ValueError, TypeError, InvalidSignature):
                continue
            return identity
        raise CertificateRefusedError(
            f"no trusted {identity.role.value} authority issued the certificate of {identity}"
        )


class Denylist:
    """Ids, names and serial numbers that are refused whatever their certificate says.

    One entry a line: a node id or a client's or operator's name, or `serial:<hex>`; `#` starts a
    comment. Read again whenever the file changes; a missing file denies nobody. A damaged change is
    told loudly, and the last good entries hold: a slip of the pen must not shut out the whole mesh.
    """

    def __init__(self, path: Path | None) -> None:
        """Raises PkiError for a file that can't be read."""
        self._path = path
        self._signature: Signature | None = None
        self._entries: frozenset[str] = frozenset()
        if path is not None and (signature := file_signature(path)) is not None:
            self._entries, self._signature = parse_denylist(path), signature

    def check(self, identity: Identity) -> None:
        """Raises CertificateRevokedError."""
        if self._path is not None:
            self._reload(self._path)
        named = {identity.name, identity.node_id, f"serial:{identity.serial_number:x}"}
        if not named.isdisjoint(self._entries):
            raise CertificateRevokedError(
                f"{identity} is on the denylist; have the mesh's operator issue another certificate"
            )

    def _reload(self, path: Path) -> None:
        signature = file_signature(path)
        if signature == self._signature:
            return
        self._signature = signature
        try:
            self._entries = frozenset() if signature is None else parse_denylist(path)
        except PkiError as error:
            log.error("the denylist stays as it was, WITHOUT what was added since: %s", error)


def parse_denylist(path: Path) -> frozenset[str]:
    """Raises PkiError."""
    try:
        if path.stat().st_size > MAX_DENYLIST_BYTES:
            raise PkiError(f"{path} is over {MAX_DENYLIST_BYTES} bytes; replace the authority instead")
        text = path.read_text("utf-8")
    except (OSError, UnicodeDecodeError) as error:
        raise PkiError(f"can't read the denylist {path}: {error}") from error
    lines = (line.partition("#")[0].strip() for line in text.splitlines())
    try:
        return frozenset(denylist_entry(line) for line in lines if line)
    except PkiError as error:
        raise PkiError(f"{path}: {error}") from error


def denylist_entry(text: str) -> str:
    """The normal form of what a line may say; raises PkiError."""
    entry = text.strip().lower()
    serial = entry.removeprefix("serial:").replace(":", "")
    if entry.startswith("serial:") and _HEX.fullmatch(serial):
        return f"serial:{int(serial, 16):x}"
    if is_valid_name(entry):
        return entry
    raise PkiError(f"{text[:80]!r} is no name, node id or serial:<hex>")


def utc_now() -> datetime:
    return datetime.now(UTC)


def load_certificate(encoded: bytes) -> x509.Certificate:
    """Reads PEM or DER; raises CertificateRefusedError."""
    if len(encoded) > MAX_CERTIFICATE_BYTES:
        raise CertificateRefusedError(f"the certificate is over {MAX_CERTIFICATE_BYTES} bytes")
    try:
        if encoded.lstrip().startswith(b"-----BEGIN"):
            return x509.load_pem_x509_certificate(encoded)
        return x509.load_der_x509_certificate(encoded)
    except ValueError as error:
        raise CertificateRefusedError(f"the certificate can't be read: {error}") from error
