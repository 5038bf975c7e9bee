"""Everything certs/ raises.

CertsError
├── TokenError                      a mesh token that can't be used
│   ├── MalformedTokenError         not a token, or mistyped
│   ├── WeakTokenError              under 128 bits
│   └── InsufficientTokenError      a token of a lesser role than asked for
├── KeyFileError                    a private key file that can't be read, written or trusted
├── PkiError                        a certificate folder that doesn't hold together
└── CertificateRefusedError         a peer's certificate doesn't say who it is, or isn't trusted
    └── CertificateRevokedError     it is on the denylist
"""

from __future__ import annotations


class CertsError(ValueError):
    """The message names the cause and the remedy."""


class TokenError(CertsError):
    """A mesh token that can't be used."""


class MalformedTokenError(TokenError):
    """Not a token, or a mistyped one; not a sign of the wrong mesh."""


class WeakTokenError(TokenError):
    """A token with less than 128 bits of secret."""


class InsufficientTokenError(TokenError):
    """A token of a lesser role than what is asked of it."""


class KeyFileError(CertsError):
    """A private key file that can't be read, written or trusted."""


class PkiError(CertsError):
    """A certificate folder that doesn't hold together."""


class CertificateRefusedError(CertsError):
    """A peer's certificate doesn't say who it is, or no trusted authority says so."""


class CertificateRevokedError(CertificateRefusedError):
    """A peer's certificate is on the denylist."""
