"""Credentials from a folder of certificates, read again whenever their content changes.

    tls.crt    this process's leaf, then any intermediates (PEM)
    tls.key    its P-256 private key (PEM)
    ca.crt     every authority that issues leaves, intermediates included (PEM)
    hash.key   nodes only: the mesh's key for block hashes, 16 to 64 bytes in hex
    denylist   optional: see certs.trust.Denylist

The names are those of Kubernetes TLS secrets. A role is what the leaf's URI says: whoever holds an
authority's key decides who is what.
"""

from __future__ import annotations

import logging
import threading
import time
from collections.abc import Callable
from datetime import datetime
from pathlib import Path

from cryptography import x509
from cryptography.hazmat.primitives.asymmetric import ec
from cryptography.hazmat.primitives.serialization import Encoding

from certs.credentials import Credentials, Material
from certs.errors import CertsError, PkiError
from certs.files import Signature, file_signature
from certs.identity import Identity, claimed_identity
from certs.node_key import load_private_key
from certs.roles import Role
from certs.trust import Anchor, Denylist, Trust, utc_now

log = logging.getLogger(__name__)

CERTIFICATE_FILE = "tls.crt"
KEY_FILE = "tls.key"
AUTHORITIES_FILE = "ca.crt"
HASH_KEY_FILE = "hash.key"
DENYLIST_FILE = "denylist"

CHECK_PERIOD_S = 1.0
"""A handshake looks for changed files at most this often."""

RETRY_S = 60.0
"""Files that were refused are read again this often, changed or not."""

LITTLE_LIFE = 0.1
"""A leaf with less than this share of its life left is warned of: renewal is late."""

MAX_FILE_BYTES = 1 << 20


class DirectorySource:
    """Swaps the credentials all at once, or not at all: what doesn't hold together is reported, and
    the last good ones stay."""

    def __init__(
        self,
        folder: Path,
        clock: Callable[[], datetime] = utc_now,
        monotonic: Callable[[], float] = time.monotonic,
    ) -> None:
        """Raises PkiError or KeyFileError."""
        self.denylist = Denylist(folder / DENYLIST_FILE)
        self._folder = folder
        self._clock = clock
        self._monotonic = monotonic
        self._lock = threading.Lock()
        self._signature = self._sign_files()
        self._checked_at = monotonic()
        self._refused_at: float | None = None
        self._warned_of: Material | None = None
        self._material = load_material(folder, clock())

    def current(self) -> Material:
        with self._lock:
            now = self._monotonic()
            if now - self._checked_at >= CHECK_PERIOD_S:
                self._checked_at = now
                self._follow_files(now)
                self._warn_of_end()
            return self._material

    def _follow_files(self, now: float) -> None:
        signature = self._sign_files()
        is_news = signature != self._signature
        # What was refused is tried again: a leaf from the near future becomes valid by itself.
        is_due = self._refused_at is not None and now - self._refused_at >= RETRY_S
        if not (is_news or is_due):
            return
        self._signature, self._refused_at = signature, None
        try:
            material = load_material(self._folder, self._clock())
            _check_successor(self._material.identity, material.identity)
        except CertsError as error:
            self._refused_at = now
            log.log(
                logging.ERROR if is_news else logging.DEBUG,
                "the new certificates in %s are not used, the old ones stay until %s: %s",
                self._folder, self._material.identity.not_after, error,
            )  # fmt: skip
            return
        if _content(material) != _content(self._material):
            self._take(material)

    def _take(self, material: Material) -> None:
        log.info("using the new certificates in %s, valid to %s", self._folder, material.identity.not_after)
        if material.block_hash_key != self._material.block_hash_key:
            log.warning(
                "%s has changed: this node hashes with the old key until it is restarted, and shares caches "
                "with nodes of that key only",
                self._folder / HASH_KEY_FILE,
            )
        self._material = material

    def _warn_of_end(self) -> None:
        """Once for each leaf."""
        identity = self._material.identity
        left, life = identity.not_after - self._clock(), identity.not_after - identity.not_before
        if left < life * LITTLE_LIFE and self._warned_of is not self._material:
            self._warned_of = self._material
            log.warning("the certificate in %s ends at %s: renew it now", self._folder, identity.not_after)

    def _sign_files(self) -> list[Signature | None]:
        names = (CERTIFICATE_FILE, KEY_FILE, AUTHORITIES_FILE, HASH_KEY_FILE)
        return [file_signature(self._folder / name) for name in names]


def directory_credentials(folder: Path) -> Credentials:
    """A process's credentials from a folder; raises PkiError or KeyFileError."""
    return Credentials(DirectorySource(folder))


def load_material(folder: Path, now: datetime) -> Material:
    """Everything in a folder, checked against each other; raises PkiError or KeyFileError."""
    chain = _certificates(folder / CERTIFICATE_FILE)
    authorities = _certificates(folder / AUTHORITIES_FILE)
    try:
        key = load_private_key(folder / KEY_FILE, group_may_read=True)
    except (FileNotFoundError, NotADirectoryError):
        raise PkiError(f"{folder / KEY_FILE} is missing; make one with `rumormill certs issue`") from None
    if key.public_key() != chain[0].public_key():
        raise PkiError(f"{folder / KEY_FILE} is not the key of {folder / CERTIFICATE_FILE}")
    # An authority may serve several meshes; only this one's members are believed.
    mesh_id = claimed_identity(chain[0]).mesh_id
    trust = Trust(Anchor(authority, frozenset(Role), mesh_id) for authority in authorities)
    # Raises for a leaf that is out of date, names nobody, or comes from an authority not in ca.crt.
    identity = trust.identify(chain[0].public_bytes(Encoding.DER), now)
    if identity.is_node:
        _check_server_names(chain[0], identity)
    return Material(
        identity=identity,
        key=key,
        chains=(b"".join(certificate.public_bytes(Encoding.PEM) for certificate in chain),),
        trust=trust,
        discovery_tags=(identity.mesh_id,),
        block_hash_key=_hash_key(folder / HASH_KEY_FILE) if identity.is_node else None,
    )


def _content(material: Material) -> tuple[object, ...]:
    return material.chains, material.trust.pem(), material.block_hash_key


def _check_successor(old: Identity, new: Identity) -> None:
    """What peers know a process by can't change under their hands."""
    if (new.mesh_id, new.role) != (old.mesh_id, old.role):
        raise PkiError(f"they are {new.uri}'s, and this process is {old.uri}; restart it to change that")
    if new.is_node and new.node_id != old.node_id:
        raise PkiError("they have another key, which makes another node; restart it to change that")


def _check_server_names(leaf: x509.Certificate, identity: Identity) -> None:
    names = leaf.extensions.get_extension_for_class(x509.SubjectAlternativeName).value
    needed = {identity.server_name, f"node.{identity.mesh_id}"}
    missing = needed - set(names.get_values_for_type(x509.DNSName))
    if missing:
        raise PkiError(f"a node's certificate must carry the DNS name {' and '.join(sorted(missing))}")


def _certificates(path: Path) -> list[x509.Certificate]:
    try:
        certificates = x509.load_pem_x509_certificates(_read(path))
    except ValueError as error:
        raise PkiError(f"{path} holds no PEM certificate: {error}") from error
    for certificate in certificates:
        if not isinstance(certificate.public_key(), ec.EllipticCurvePublicKey):
            raise PkiError(f"{path}: only certificates with P-256 keys are accepted")
    return certificates


def _hash_key(path: Path) -> bytes:
    try:
        key = bytes.fromhex(_read(path).decode("ascii"))
    except ValueError as error:
        raise PkiError(f"{path} is not in hex: {error}") from error
    if not 16 <= len(key) <= 64:
        raise PkiError(f"{path} has {len(key)} bytes; 16 to 64 are needed")
    return key


def _read(path: Path) -> bytes:
    try:
        if path.stat().st_size > MAX_FILE_BYTES:
            raise PkiError(f"{path} is over {MAX_FILE_BYTES} bytes")
        return path.read_bytes()
    except OSError as error:
        raise PkiError(f"can't read {path}: {error.strerror}; see `rumormill certs --help`") from error
