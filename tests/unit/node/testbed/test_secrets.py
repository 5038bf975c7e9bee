"""The testbed's secrets: for the containers and nobody else, and kept once made."""

from __future__ import annotations

import stat
from pathlib import Path

from certs.roles import Role
from certs.token import MeshToken
from node.http.api_keys import ApiKeys
from node.testbed.secrets import API_KEYS_FILE, METRICS_KEY_FILE, OPERATOR_FILE, TOKEN_FILE, make_secrets


def read(path: Path) -> str:
    return path.read_text().strip()


def test_containers_get_a_node_token_of_the_operators_mesh(tmp_path: Path) -> None:
    make_secrets(tmp_path)
    operator, node = (MeshToken.parse(read(tmp_path / name)) for name in (OPERATOR_FILE, TOKEN_FILE))
    assert (operator.role, node.role) == (Role.OPERATOR, Role.NODE)
    assert operator.for_role(Role.NODE) == node


def test_others_can_read_none_and_the_door_takes_the_keys(tmp_path: Path) -> None:
    make_secrets(tmp_path)
    for path in tmp_path.iterdir():
        if path.suffix != ".crt":
            assert not path.stat().st_mode & stat.S_IRWXO, path
    keys = ApiKeys(tmp_path / API_KEYS_FILE)
    assert METRICS_KEY_FILE in str(keys.identify(f"Bearer {read(tmp_path / METRICS_KEY_FILE)}"))


def test_what_is_there_stays(tmp_path: Path) -> None:
    make_secrets(tmp_path)
    before = {path: path.read_bytes() for path in tmp_path.iterdir()}
    make_secrets(tmp_path)
    assert {path: path.read_bytes() for path in tmp_path.iterdir()} == before
