"""A node's persistent private key, which is its identity."""

from __future__ import annotations

import stat
from pathlib import Path

from cryptography.hazmat.primitives.asymmetric import ec
from cryptography.hazmat.primitives.serialization import (
    Encoding,
    NoEncryption,
    PrivateFormat,
    load_pem_private_key,
)

from certs.errors import KeyFileError
from certs.files import write_atomically

NODE_KEY_FILE = "node.key"


def private_pem(key: ec.EllipticCurvePrivateKey) -> bytes:
    return key.private_bytes(Encoding.PEM, PrivateFormat.PKCS8, NoEncryption())


def load_private_key(path: Path, *, group_may_read: bool = False) -> ec.EllipticCurvePrivateKey:
    """Reads a P-256 key that nobody else may read; raises KeyFileError, or FileNotFoundError.

    A group that may read it is how container platforms hand secrets to a process.
    """
    try:
        mode = path.stat().st_mode
        content = path.read_bytes()
    except (FileNotFoundError, NotADirectoryError):
        raise
    except OSError as error:
        raise KeyFileError(f"can't read the key {path}: {error}") from error
    if mode & (stat.S_IRWXO if group_may_read else stat.S_IRWXG | stat.S_IRWXO):
        raise KeyFileError(f"others can read the key {path}; run `chmod 600 {path}`, or make a new key")
    try:
        key = load_pem_private_key(content, password=None)
    except (ValueError, TypeError) as error:
        raise KeyFileError(f"{path} holds no unencrypted PEM private key: {error}") from error
    # gRPC's TLS refuses Ed25519 leaves, and one curve is enough.
    if not isinstance(key, ec.EllipticCurvePrivateKey) or not isinstance(key.curve, ec.SECP256R1):
        raise KeyFileError(f"the key {path} must be of type P-256 (prime256v1)")
    return key


def load_or_create_node_key(state_dir: Path) -> ec.EllipticCurvePrivateKey:
    """The node's key, made on first use; raises KeyFileError."""
    path = state_dir / NODE_KEY_FILE
    try:
        return load_private_key(path)
    except (FileNotFoundError, NotADirectoryError):
        pass
    key = ec.generate_private_key(ec.SECP256R1())
    try:
        state_dir.mkdir(mode=0o700, parents=True, exist_ok=True)
        write_atomically(path, private_pem(key))
    except OSError as error:
        raise KeyFileError(
            f"can't write the node's key to {path}: {error}; choose another --state-dir"
        ) from error
    return key
