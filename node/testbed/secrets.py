"""The testbed's secrets, made once: mesh tokens, the HTTP door's certificate, API keys."""

from __future__ import annotations

import ipaddress
import os
import secrets
from datetime import timedelta
from pathlib import Path

from cryptography import x509
from cryptography.hazmat.primitives.asymmetric import ec
from cryptography.hazmat.primitives.hashes import SHA256
from cryptography.hazmat.primitives.serialization import Encoding
from cryptography.x509.oid import ExtendedKeyUsageOID, NameOID

from certs.files import write_atomically
from certs.node_key import private_pem
from certs.roles import Role
from certs.token import MeshToken
from certs.trust import utc_now

OPERATOR_FILE = "operator-token"
"""Stays with whoever made it; the containers get a token that only lets them serve."""

TOKEN_FILE = "token"  # noqa: S105 - a file's name
CERTIFICATE_FILE, KEY_FILE = "http.crt", "http.key"
API_KEYS_FILE, HTTP_KEY_FILE, METRICS_KEY_FILE = "api-keys", "http-api-key", "metrics-api-key"

CONTAINER_ID = 10001
"""User and group of the image."""

HTTP_NAMES = ("node", "localhost")
LIFETIME = timedelta(days=365)


def make_secrets(folder: Path) -> None:
    """Makes those that are missing, readable for the containers and for nobody else. Raises OSError."""
    folder.mkdir(mode=0o700, exist_ok=True)
    if not (folder / TOKEN_FILE).exists():
        token = MeshToken.make()
        write_atomically(folder / OPERATOR_FILE, f"{token}\n".encode())
        _lend(folder / TOKEN_FILE, f"{token.for_role(Role.NODE)}\n".encode())
    if not (folder / KEY_FILE).exists():
        make_http_certificate(folder)
    if not (folder / API_KEYS_FILE).exists():
        keys = {name: secrets.token_hex(24) for name in (HTTP_KEY_FILE, METRICS_KEY_FILE)}
        for name, key in keys.items():
            _lend(folder / name, f"{key}\n".encode())
        roles = {HTTP_KEY_FILE: "client", METRICS_KEY_FILE: "operator"}
        lines = "".join(f"{name} {key} {roles[name]}\n" for name, key in keys.items())
        _lend(folder / API_KEYS_FILE, lines.encode())


def container_user() -> str:
    """Whom the containers run as, so that they can read the secrets: USER:GROUP for compose."""
    if os.geteuid() == 0:
        return f"{CONTAINER_ID}:{CONTAINER_ID}"
    return f"{os.geteuid()}:{os.getegid()}"


def make_http_certificate(folder: Path) -> None:
    """A certificate that vouches for itself: it is its own authority for the HTTP door's callers."""
    key = ec.generate_private_key(ec.SECP256R1())
    name = x509.Name([x509.NameAttribute(NameOID.COMMON_NAME, "rumormill testbed")])
    now = utc_now()
    names: list[x509.GeneralName] = [x509.DNSName(host) for host in HTTP_NAMES]
    names.append(x509.IPAddress(ipaddress.ip_address("127.0.0.1")))
    certificate = (
        x509.CertificateBuilder()
        .subject_name(name)
        .issuer_name(name)
        .public_key(key.public_key())
        .serial_number(x509.random_serial_number())
        .not_valid_before(now - timedelta(minutes=5))
        .not_valid_after(now + LIFETIME)
        .add_extension(x509.SubjectAlternativeName(names), critical=False)
        .add_extension(x509.BasicConstraints(ca=True, path_length=0), critical=True)
        .add_extension(x509.ExtendedKeyUsage([ExtendedKeyUsageOID.SERVER_AUTH]), critical=False)
        .sign(key, SHA256())
    )
    write_atomically(folder / CERTIFICATE_FILE, certificate.public_bytes(Encoding.PEM), 0o644)
    _lend(folder / KEY_FILE, private_pem(key))


def _lend(path: Path, content: bytes) -> None:
    """Writes a secret that the containers' group may read, where they are not this very user."""
    write_atomically(path, content)
    if os.geteuid() == 0:
        os.chown(path, 0, CONTAINER_ID)
        path.chmod(0o640)
