"""The key file: what it may hold, and that it can change while the node runs."""

from __future__ import annotations

from pathlib import Path

import pytest

from certs.roles import Role
from node.errors import StartupError, UnauthenticatedError
from node.http.api_keys import ApiKeys

OLD, NEW = "o" * 32, "n" * 32


@pytest.fixture
def file(tmp_path: Path) -> Path:
    path = tmp_path / "keys"
    path.touch(mode=0o600)
    path.write_text(f"# people\nada {OLD}  # until spring\n")
    return path


def test_a_key_names_its_holder(file: Path) -> None:
    assert ApiKeys(file).identify(f"Bearer {OLD}").name == "ada"
    assert ApiKeys(file).identify(f"bearer {OLD}").name == "ada"
    for wrong in ("", OLD, f"Basic {OLD}", f"Bearer {NEW}", "Bearer "):
        with pytest.raises(UnauthenticatedError):
            ApiKeys(file).identify(wrong)


def test_a_key_is_a_clients_unless_its_line_says_otherwise(file: Path) -> None:
    file.write_text(f"ada {OLD}\nbob {NEW} operator\neve {OLD}{NEW} client\n")
    keys = ApiKeys(file)
    roles = [keys.identify(f"Bearer {key}").role for key in (OLD, NEW, OLD + NEW)]
    assert roles == [Role.CLIENT, Role.OPERATOR, Role.CLIENT]


def test_keys_change_with_the_file_and_a_damaged_file_changes_nothing(
    file: Path, caplog: pytest.LogCaptureFixture
) -> None:
    keys = ApiKeys(file)
    file.write_text("ada short\n")
    for _ in range(3):
        assert keys.identify(f"Bearer {OLD}").name == "ada"
    assert caplog.text.count("stay as they were") == 1
    # Both are hers while she changes from one to the other.
    file.write_text(f"ada {NEW}\nada {OLD}\n")
    assert keys.identify(f"Bearer {NEW}").name == "ada"
    assert keys.identify(f"Bearer {OLD}").name == "ada"
    file.write_text(f"ada {NEW} # alone now\n")
    with pytest.raises(UnauthenticatedError):
        keys.identify(f"Bearer {OLD}")
    file.unlink()
    assert keys.identify(f"Bearer {NEW}").name == "ada"


@pytest.mark.parametrize(
    ("text", "says"),
    [
        ("", "no key"),
        ("ada\n", "line 1"),
        ("ada short\n", "under 20"),
        (f"a b {OLD}\n", "line 1"),
        (f"ada {OLD}\nbob {OLD}\n", "line 2"),
        (f"ada {OLD} node\n", "client or operator"),
        (f"ada {OLD} operator now\n", "line 1"),
    ],
)
def test_a_bad_file_is_refused_at_start(file: Path, text: str, says: str) -> None:
    file.write_text(text)
    with pytest.raises(StartupError, match=says):
        ApiKeys(file)


def test_a_file_that_others_can_read_is_refused(file: Path) -> None:
    file.chmod(0o644)
    with pytest.raises(StartupError, match="chmod 600"):
        ApiKeys(file)


def test_a_file_may_be_lent_to_a_group(file: Path) -> None:
    """Docker and Kubernetes give a container's group its secrets."""
    file.chmod(0o640)
    assert ApiKeys(file).identify(f"Bearer {OLD}").name == "ada"
