from __future__ import annotations

import logging
import shutil
import stat
from collections.abc import Callable
from datetime import timedelta
from pathlib import Path

import pytest

from certs import pki
from certs.authority import BACKDATE
from certs.credentials import Credentials
from certs.directory_source import DirectorySource, directory_credentials
from certs.errors import CertificateRefusedError, CertificateRevokedError, KeyFileError, PkiError
from certs.roles import Role
from certs.trust import utc_now


@pytest.fixture
def authority(tmp_path: Path) -> Path:
    folder = tmp_path / "authority"
    pki.init(folder, "prod.example")
    return folder


def issue(authority: Path, name: str, role: Role = Role.NODE) -> Path:
    folder = authority.parent / name
    pki.issue(authority, role, folder, None if role is Role.NODE else name)
    return folder


class Clock:
    now = 0.0

    def __call__(self) -> float:
        return self.now


def watched(folder: Path) -> tuple[Credentials, Clock]:
    clock = Clock()
    return Credentials(DirectorySource(folder, monotonic=clock)), clock


def later(clock: Clock, credentials: Credentials) -> object:
    clock.now += 1.0
    return credentials.revision


def test_what_was_issued_is_believed_by_the_others(authority: Path) -> None:
    a, b = (directory_credentials(issue(authority, name)) for name in "ab")
    alice = directory_credentials(issue(authority, "alice", Role.CLIENT))
    assert a.mesh_id == "prod.example"
    assert a.block_hash_key == b.block_hash_key
    assert b.identify(a.leaf()).node_id == a.node_id
    assert (b.identify(alice.leaf()).role, b.identify(alice.leaf()).name) == (Role.CLIENT, "alice")
    with pytest.raises(CertificateRefusedError, match="no block hash key"):
        alice.block_hash_key  # noqa: B018  the property raises


def test_keys_are_private(authority: Path) -> None:
    folder = issue(authority, "a")
    for path in (authority / "ca.key", authority / "hash.key", folder / "tls.key", folder / "hash.key"):
        assert stat.S_IMODE(path.stat().st_mode) == 0o600
    assert not (folder / "ca.key").exists()
    assert not (issue(authority, "alice", Role.CLIENT) / "hash.key").exists()


def test_issuing_again_keeps_the_key(authority: Path) -> None:
    first = directory_credentials(issue(authority, "a"))
    again = directory_credentials(issue(authority, "a"))
    assert again.node_id == first.node_id
    assert again.identity.serial_number != first.identity.serial_number


def test_another_mesh_of_the_same_authority_is_not_believed(authority: Path, tmp_path: Path) -> None:
    other = tmp_path / "other"
    pki.init(other, "other.example")
    foreign = directory_credentials(issue(other, "foreign"))
    mine = issue(authority, "mine")
    with (mine / "ca.crt").open("ab") as bundle:
        bundle.write((other / "ca.crt").read_bytes())
    with pytest.raises(CertificateRefusedError):
        directory_credentials(mine).identify(foreign.leaf())


@pytest.mark.parametrize("mesh_id", ["", "UPPER", "a b", "a_b", "-a", "x" * 51])
def test_a_bad_mesh_name_is_refused(mesh_id: str, tmp_path: Path) -> None:
    with pytest.raises(PkiError, match="lower-case"):
        pki.init(tmp_path / "authority", mesh_id)


def test_an_authority_is_never_overwritten(authority: Path) -> None:
    before = (authority / "ca.key").read_bytes()
    with pytest.raises(PkiError, match="already"):
        pki.init(authority, "prod.example")
    assert (authority / "ca.key").read_bytes() == before


def test_issuing_without_an_authority_names_the_remedy(tmp_path: Path) -> None:
    with pytest.raises(PkiError, match="certs init"):
        pki.issue(tmp_path, Role.NODE, tmp_path / "a")


def test_a_leaf_never_outlives_its_authority(authority: Path, tmp_path: Path) -> None:
    with pytest.raises(PkiError, match="authority itself ends"):
        pki.issue(authority, Role.NODE, tmp_path / "a", lifetime=timedelta(days=36500))


def test_show_tells_what_is_in_a_folder(authority: Path) -> None:
    folder = issue(authority, "a")
    leaf, root = pki.show(folder)
    assert leaf.identity is not None
    assert leaf.identity.node_id == directory_credentials(folder).node_id
    assert leaf.issuer == root.subject
    assert root.identity is None
    assert pki.show(folder / "tls.crt") == [leaf]
    with pytest.raises(PkiError):
        pki.show(authority.parent)


@pytest.mark.parametrize("by", ["name", "id", "serial", "file"])
def test_revocation(by: str, authority: Path) -> None:
    folder = issue(authority, "alice", Role.CLIENT)
    alice = directory_credentials(folder)
    node = issue(authority, "node")
    mine = directory_credentials(node)
    assert mine.identify(alice.leaf())
    entry = {
        "name": "alice",
        "id": alice.node_id.upper(),
        "serial": f"serial:{alice.identity.serial_number:X}",
        "file": str(folder / "tls.crt"),
    }[by]
    for _ in range(2):
        pki.revoke(node, entry)
    assert len((node / "denylist").read_text().splitlines()) == 1
    with pytest.raises(CertificateRevokedError):
        mine.identify(alice.leaf())


def test_a_revocation_that_means_nothing_is_refused(authority: Path) -> None:
    for entry in ("", "a b", "serial:xyz"):
        with pytest.raises(PkiError):
            pki.revoke(authority, entry)


def test_issuing_again_denies_whom_the_folder_denied(authority: Path) -> None:
    folder = issue(authority, "a")
    pki.revoke(folder, "carl")
    pki.revoke(authority, "olga")
    issue(authority, "a")
    assert (folder / "denylist").read_text().split() == ["carl", "olga"]


@pytest.mark.parametrize("line", ["two words", "serial:xyz", "serial:", "carl;olga", "\udc80"])
def test_a_denylist_that_means_nothing_is_refused_at_start(line: str, authority: Path) -> None:
    folder = issue(authority, "a")
    (folder / "denylist").write_text(f"carl\n{line}\n", errors="surrogateescape")
    with pytest.raises(PkiError, match="denylist"):
        directory_credentials(folder)


def damage_key(folder: Path) -> None:
    (folder / "tls.key").write_text("nothing")


def other_key(folder: Path) -> None:
    other = issue(folder.parent / "authority", "donor")
    shutil.copy(other / "tls.key", folder / "tls.key")


def other_authority(folder: Path) -> None:
    pki.init(folder.parent / "second", "prod.example")
    shutil.copy(folder.parent / "second" / "ca.crt", folder / "ca.crt")


def no_certificate(folder: Path) -> None:
    (folder / "tls.crt").unlink()


def short_hash_key(folder: Path) -> None:
    (folder / "hash.key").write_text("abcd")


def open_key(folder: Path) -> None:
    (folder / "tls.key").chmod(0o644)


def expired(folder: Path) -> None:
    pki.issue(folder.parent / "authority", Role.NODE, folder, lifetime=timedelta(minutes=-1))


def another_node(folder: Path) -> None:
    (folder / "tls.key").unlink()
    pki.issue(folder.parent / "authority", Role.NODE, folder)


DAMAGE = [
    damage_key, other_key, other_authority, no_certificate, short_hash_key, open_key, expired, another_node,
]  # fmt: skip


@pytest.mark.parametrize("damage", DAMAGE)
def test_a_folder_that_does_not_hold_together_is_refused_at_start(
    damage: Callable[[Path], None], authority: Path
) -> None:
    folder = issue(authority, "a")
    damage(folder)
    if damage is another_node:
        assert directory_credentials(folder)
        return
    with pytest.raises((PkiError, KeyFileError, CertificateRefusedError)):
        directory_credentials(folder)


@pytest.mark.parametrize("damage", DAMAGE)
def test_a_bad_change_is_told_and_the_last_good_credentials_stay(
    damage: Callable[[Path], None], authority: Path, caplog: pytest.LogCaptureFixture
) -> None:
    folder = issue(authority, "a")
    credentials, clock = watched(folder)
    good = credentials.revision
    damage(folder)
    for _ in range(3):
        assert later(clock, credentials) is good
    errors = [record for record in caplog.records if record.levelno == logging.ERROR]
    assert len(errors) == 1
    assert "the old ones stay" in errors[0].message


def test_what_is_put_right_is_taken_up(authority: Path) -> None:
    folder = issue(authority, "a")
    credentials, clock = watched(folder)
    good = credentials.revision
    certificate = (folder / "tls.crt").read_bytes()
    (folder / "tls.crt").write_bytes(b"half of i")
    assert later(clock, credentials) is good
    pki.issue(authority, Role.NODE, folder)
    assert (folder / "tls.crt").read_bytes() != certificate
    assert later(clock, credentials) is not good


def test_a_leaf_of_the_near_future_is_taken_up_when_its_time_comes(
    authority: Path, caplog: pytest.LogCaptureFixture
) -> None:
    """The authority's clock may be ahead of this machine's."""
    folder = issue(authority, "a")
    clock, today = Clock(), [utc_now()]
    source = DirectorySource(folder, clock=lambda: today[0], monotonic=clock)
    good = source.current()
    today[0] -= BACKDATE + timedelta(minutes=1)
    pki.issue(authority, Role.NODE, folder)
    clock.now += 1.0
    assert source.current() is good
    assert "not valid before" in caplog.text
    today[0] += timedelta(minutes=2)
    clock.now += 59.0
    assert source.current() is good
    clock.now += 1.0
    assert source.current() is not good
    assert caplog.text.count("not valid before") == 1


def test_the_end_of_a_leaf_is_warned_of_once(authority: Path, caplog: pytest.LogCaptureFixture) -> None:
    folder, clock, today = issue(authority, "a"), Clock(), [utc_now()]
    source = DirectorySource(folder, clock=lambda: today[0], monotonic=clock)
    for days, warnings in ((300, 0), (340, 1), (341, 1)):
        today[0] = utc_now() + timedelta(days=days)
        clock.now += 1.0
        source.current()
        assert caplog.text.count("renew it now") == warnings


def test_another_hash_key_is_used_after_a_restart_only(
    authority: Path, caplog: pytest.LogCaptureFixture
) -> None:
    folder = issue(authority, "a")
    credentials, clock = watched(folder)
    before = credentials.block_hash_key
    (folder / "hash.key").write_text("ab" * 32)
    later(clock, credentials)
    assert credentials.block_hash_key == before
    assert "until it is restarted" in caplog.text
    assert directory_credentials(folder).block_hash_key == b"\xab" * 32


def test_a_renewed_leaf_and_a_wider_bundle_are_taken_up_once(authority: Path) -> None:
    folder = issue(authority, "a")
    credentials, clock = watched(folder)
    first = credentials.revision
    (folder / "tls.crt").touch()
    assert later(clock, credentials) is first
    pki.issue(authority, Role.NODE, folder)
    assert credentials.revision is first  # not looked at within the second
    second = later(clock, credentials)
    assert second is not first
    assert later(clock, credentials) is second
    pki.init(authority.parent / "next", "prod.example")
    with (folder / "ca.crt").open("ab") as bundle:
        bundle.write((authority.parent / "next" / "ca.crt").read_bytes())
    assert later(clock, credentials) is not second
    newcomer = directory_credentials(issue(authority.parent / "next", "newcomer"))
    assert credentials.identify(newcomer.leaf()).node_id == newcomer.node_id


def test_an_expired_leaf_says_so(authority: Path, tmp_path: Path) -> None:
    folder = tmp_path / "late"
    pki.issue(authority, Role.NODE, folder, lifetime=timedelta(minutes=-1))
    with pytest.raises(CertificateRefusedError, match="expired"):
        directory_credentials(folder)
    assert pki.show(folder)[0].not_after < utc_now()
