"""A file of tokens that changes while the process runs."""

from __future__ import annotations

from pathlib import Path

import pytest
from cryptography.hazmat.primitives.asymmetric import ec

from certs.credentials import Credentials
from certs.errors import CertificateRefusedError, CertsError, KeyFileError, TokenError
from certs.roles import Role
from certs.token import MeshToken
from certs.token_file import MAX_TOKENS, TokenFileSource, read_tokens
from certs.token_source import caller_credentials
from certs.trust import Denylist

OLD, NEW = MeshToken(bytes(range(32))), MeshToken(bytes(range(1, 33)))


class Watched:
    """Credentials from a file, looked at whenever they are asked for."""

    def __init__(self, path: Path) -> None:
        self.path = path
        self.told: list[MeshToken] = []
        self._time = 0.0
        self.write(OLD)
        key = ec.generate_private_key(ec.SECP256R1())
        self.credentials = Credentials(
            TokenFileSource(path, key, Denylist(None), self.told.append, monotonic=self._tick)
        )

    def _tick(self) -> float:
        self._time += 1.0
        return self._time

    def write(self, *tokens: MeshToken) -> None:
        self.path.touch(mode=0o600)
        self.path.write_text("# tokens\n" + "".join(f"{token}  # one\n" for token in tokens))

    def accepts(self, token: MeshToken) -> bool:
        try:
            self.credentials.identify(caller_credentials(token, Role.CLIENT).leaf())
        except CertificateRefusedError:
            return False
        return True


@pytest.fixture
def watched(tmp_path: Path) -> Watched:
    return Watched(tmp_path / "token")


def test_the_three_steps_of_a_rotation(watched: Watched) -> None:
    credentials = watched.credentials
    node_id, hash_key = credentials.node_id, credentials.block_hash_key
    steps = (
        ((OLD,), OLD, (True, False)),
        ((OLD, NEW), OLD, (True, True)),
        ((NEW, OLD), NEW, (True, True)),
        ((NEW,), NEW, (False, True)),
    )
    for tokens, own, accepted in steps:
        watched.write(*tokens)
        assert (watched.accepts(OLD), watched.accepts(NEW)) == accepted
        assert credentials.mesh_id == own.mesh_id
        assert credentials.discovery_tags == tuple(token.discovery_tag for token in tokens)
        assert (credentials.node_id, credentials.block_hash_key) == (node_id, hash_key)
    assert watched.told == [NEW]


def test_an_untouched_file_changes_nothing(watched: Watched) -> None:
    before = watched.credentials.revision
    watched.write(OLD)
    assert watched.credentials.revision is before


@pytest.mark.parametrize("text", ["", "# none\n", "rumormill_abc\n", f"{OLD}\nhunter2\n", "x" * 20_000])
def test_a_damaged_change_is_told_once_and_the_last_good_tokens_stay(
    text: str, watched: Watched, caplog: pytest.LogCaptureFixture
) -> None:
    before = watched.credentials.revision
    watched.path.write_text(text)
    for _ in range(3):
        assert watched.credentials.revision is before
    assert caplog.text.count("the old ones stay") == 1
    assert str(OLD) not in caplog.text
    with pytest.raises(TokenError):
        read_tokens(watched.path)


def test_a_missing_file_and_a_lesser_token_change_nothing(watched: Watched) -> None:
    before = watched.credentials.revision
    watched.write(NEW.for_role(Role.CLIENT))
    assert watched.credentials.revision is before
    watched.path.unlink()
    assert watched.credentials.revision is before


def test_a_file_that_others_can_read_is_refused(watched: Watched) -> None:
    watched.path.chmod(0o644)
    with pytest.raises(KeyFileError, match="chmod 600"):
        read_tokens(watched.path)


def test_too_many_tokens_are_refused(watched: Watched) -> None:
    watched.write(*(MeshToken.make() for _ in range(MAX_TOKENS + 1)))
    with pytest.raises(CertsError, match="1 to"):
        read_tokens(watched.path)
