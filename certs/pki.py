"""A small certificate authority for people without one: four verbs on a folder.

The authority's folder holds `ca.key`, which never leaves it, `ca.crt`, `hash.key` and `denylist`.
"""

from __future__ import annotations

import re
import secrets
from collections.abc import Set as AbstractSet
from dataclasses import dataclass
from datetime import datetime, timedelta
from pathlib import Path

from cryptography import x509
from cryptography.hazmat.primitives.asymmetric import ec
from cryptography.hazmat.primitives.serialization import Encoding

from certs.authority import BACKDATE, build_authority, issue_leaf
from certs.directory_source import (
    AUTHORITIES_FILE,
    CERTIFICATE_FILE,
    DENYLIST_FILE,
    HASH_KEY_FILE,
    KEY_FILE,
)
from certs.errors import CertificateRefusedError, PkiError
from certs.files import write_atomically
from certs.identity import Identity, claimed_identity, is_valid_name, key_id
from certs.node_key import load_private_key, private_pem
from certs.roles import Role
from certs.trust import denylist_entry, load_certificate, parse_denylist, utc_now

AUTHORITY_KEY_FILE = "ca.key"
AUTHORITY_LIFETIME = timedelta(days=3650)
LEAF_LIFETIME = timedelta(days=365)
HASH_KEY_BYTES = 32

# With "rumormill " before it a mesh's name fits an organization name (64 characters, X.520).
_MESH_ID = re.compile(r"[a-z0-9]([a-z0-9.-]{0,48}[a-z0-9])?")


@dataclass(frozen=True, slots=True)
class CertificateSummary:
    """What `rumormill certs show` prints of one certificate; `identity` is None for an authority."""

    subject: str
    issuer: str
    serial: str
    not_before: datetime
    not_after: datetime
    identity: Identity | None


def init(folder: Path, mesh_id: str) -> None:
    """Makes an authority for a mesh; raises PkiError, also where one is already."""
    if not _MESH_ID.fullmatch(mesh_id):
        raise PkiError(
            f"{mesh_id!r} is no mesh name: use 1 to 50 lower-case letters, digits, '.' and '-', "
            "a letter or digit first and last"
        )
    if (folder / AUTHORITY_KEY_FILE).exists():
        raise PkiError(f"there is an authority in {folder} already")
    key, now = ec.generate_private_key(ec.SECP256R1()), utc_now()
    authority = build_authority(
        mesh_id,
        "mesh",
        key.public_key(),
        key,
        now - BACKDATE,
        now + AUTHORITY_LIFETIME,
        x509.random_serial_number(),
    )
    hash_key = secrets.token_bytes(HASH_KEY_BYTES)
    try:
        folder.mkdir(mode=0o700, parents=True, exist_ok=True)
        write_atomically(folder / AUTHORITY_KEY_FILE, private_pem(key))
        write_atomically(folder / AUTHORITIES_FILE, authority.public_bytes(Encoding.PEM), 0o644)
        write_atomically(folder / HASH_KEY_FILE, f"{hash_key.hex()}\n".encode())
        write_atomically(folder / DENYLIST_FILE, b"", 0o644)
    except OSError as error:
        raise PkiError(f"can't write to {folder}: {error.strerror}") from error


def issue(
    authority_folder: Path,
    role: Role,
    folder: Path,
    name: str | None = None,
    lifetime: timedelta = LEAF_LIFETIME,
) -> Identity:
    """Fills `folder` for `--certs`; a key already there is kept, so that a node keeps its id.

    A node is named by its key's id unless told otherwise. Raises PkiError or KeyFileError.
    """
    authority, authority_key = _load_authority(authority_folder)
    mesh_id = _mesh_of(authority)
    if name is not None and not is_valid_name(name):
        raise PkiError(f"{name!r} is no name: use 1 to 63 lower-case letters, digits, '.', '_' and '-'")
    now = utc_now()
    if now + lifetime > authority.not_valid_after_utc:
        raise PkiError(f"the authority itself ends at {authority.not_valid_after_utc:%F}; make a new one")
    try:
        key = load_private_key(folder / KEY_FILE)
    except (FileNotFoundError, NotADirectoryError):
        key = ec.generate_private_key(ec.SECP256R1())
    leaf = issue_leaf(
        authority,
        authority_key,
        key.public_key(),
        mesh_id,
        role,
        name or key_id(key.public_key()),
        lifetime,
        now,
    )
    identity = claimed_identity(leaf)
    try:
        folder.mkdir(mode=0o700, parents=True, exist_ok=True)
        write_atomically(folder / KEY_FILE, private_pem(key))
        _copy(AUTHORITIES_FILE, authority_folder, folder, 0o644)
        if role is Role.NODE:
            _copy(HASH_KEY_FILE, authority_folder, folder, 0o600)
        # Added to, not replaced: whom this node denies stays denied.
        _deny(folder / DENYLIST_FILE, parse_denylist(authority_folder / DENYLIST_FILE))
        # Last, so that a running node finds what belongs to it.
        write_atomically(folder / CERTIFICATE_FILE, leaf.public_bytes(Encoding.PEM), 0o644)
    except OSError as error:
        raise PkiError(f"can't write to {folder}: {error.strerror}") from error
    return identity


def show(path: Path) -> list[CertificateSummary]:
    """Every certificate in a file, or in a folder's `tls.crt` and `ca.crt`; raises PkiError."""
    files = [path]
    if path.is_dir():
        files = [file for file in (path / CERTIFICATE_FILE, path / AUTHORITIES_FILE) if file.exists()]
    summaries = []
    for file in files:
        try:
            summaries += [_summary(each) for each in x509.load_pem_x509_certificates(file.read_bytes())]
        except (OSError, ValueError) as error:
            raise PkiError(f"{file} holds no PEM certificate: {error}") from error
    if not summaries:
        raise PkiError(f"there is no {CERTIFICATE_FILE} or {AUTHORITIES_FILE} in {path}")
    return summaries


def revoke(folder: Path, entry: str) -> None:
    """Adds a name, node id, `serial:<hex>` or certificate file to a folder's denylist; raises PkiError.

    It takes effect in each process as the file reaches its `--certs` folder.
    """
    path = folder / DENYLIST_FILE
    try:
        if (certificate := Path(entry)).is_file():
            entry = f"serial:{load_certificate(certificate.read_bytes()).serial_number:x}"
        _deny(path, {denylist_entry(entry)})
    except OSError as error:
        raise PkiError(f"can't write {path}: {error.strerror}") from error


def _copy(name: str, source: Path, target: Path, mode: int) -> None:
    write_atomically(target / name, (source / name).read_bytes(), mode)


def _deny(path: Path, entries: AbstractSet[str]) -> None:
    """Adds entries to a denylist, below what people wrote there."""
    known = parse_denylist(path) if path.exists() else frozenset()
    before = path.read_text("utf-8") if path.exists() else ""
    if before and not before.endswith("\n"):
        before += "\n"
    added = "".join(f"{entry}\n" for entry in sorted(entries - known))
    if added or not path.exists():
        write_atomically(path, f"{before}{added}".encode(), 0o644)


def _load_authority(folder: Path) -> tuple[x509.Certificate, ec.EllipticCurvePrivateKey]:
    try:
        key = load_private_key(folder / AUTHORITY_KEY_FILE)
        certificates = x509.load_pem_x509_certificates((folder / AUTHORITIES_FILE).read_bytes())
    except (FileNotFoundError, NotADirectoryError) as error:
        raise PkiError(f"there is no authority in {folder}; make one with `rumormill certs init`") from error
    except ValueError as error:
        raise PkiError(f"{folder / AUTHORITIES_FILE} holds no PEM certificate: {error}") from error
    for certificate in certificates:
        # While an authority is replaced the bundle holds the old one too.
        if certificate.public_key() == key.public_key():
            return certificate, key
    raise PkiError(f"{folder / AUTHORITY_KEY_FILE} is not the key of {folder / AUTHORITIES_FILE}")


def _mesh_of(authority: x509.Certificate) -> str:
    organization = authority.subject.get_attributes_for_oid(x509.NameOID.ORGANIZATION_NAME)
    text = str(organization[0].value) if organization else ""
    if not text.startswith("rumormill "):
        raise PkiError("this authority was not made by `rumormill certs init`")
    return text.removeprefix("rumormill ")


def _summary(certificate: x509.Certificate) -> CertificateSummary:
    try:
        identity = claimed_identity(certificate)
    except CertificateRefusedError:
        identity = None
    return CertificateSummary(
        subject=certificate.subject.rfc4514_string(),
        issuer=certificate.issuer.rfc4514_string(),
        serial=f"{certificate.serial_number:x}",
        not_before=certificate.not_valid_before_utc,
        not_after=certificate.not_valid_after_utc,
        identity=identity,
    )
