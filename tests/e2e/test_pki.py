"""A mesh with an authority of its own, made and run with the commands that people have."""

from __future__ import annotations

import time
from collections.abc import Callable
from pathlib import Path

import pytest

from tests.e2e.conftest import rumormill, serving

pytestmark = pytest.mark.e2e


def issue(authority: Path, folder: Path, role: str, *options: str) -> str:
    arguments = ["--authority", str(authority), "--role", role, "--out", str(folder), *options]
    rumormill("certs", "issue", *arguments, "--json").json()
    return str(folder)


def wait_until(condition: Callable[[], bool], otherwise: str) -> None:
    deadline = time.monotonic() + 30
    while not condition():
        assert time.monotonic() < deadline, otherwise
        time.sleep(0.2)


def test_nodes_meet_an_operator_looks_and_a_revoked_one_is_shut_out(tmp_path: Path) -> None:
    authority = tmp_path / "ca"
    assert rumormill("certs", "init", str(authority), "--mesh", "test.mesh", "--json").json()
    one = issue(authority, tmp_path / "one", "node")
    two = issue(authority, tmp_path / "two", "node")
    operator = issue(authority, tmp_path / "operator", "operator", "--name", "olga")
    client = issue(authority, tmp_path / "client", "client", "--name", "carl")
    shown = rumormill("certs", "show", operator, "--json").json()["certificates"]
    assert shown[0]["for"] == "operator/olga"
    with (
        serving(tmp_path / "s1", "--certs", one, "--no-mdns") as first,
        serving(tmp_path / "s2", "--certs", two, "--no-mdns", "--peer", first["grpc"]) as second,
    ):
        assert first["mesh_id"] == second["mesh_id"] == "test.mesh"
        as_operator = ["--node", first["grpc"], "--certs", operator]
        wait_until(
            lambda: len(rumormill("peers", *as_operator, "--json").json()["peers"]) >= 2,
            "the nodes did not meet",
        )
        as_client = ["--node", first["grpc"], "--certs", client]
        assert rumormill("generate", "Hello", "--max-tokens", "2", *as_client).status == 0
        assert "operator" in rumormill("peers", *as_client).refusal()
        rumormill("certs", "revoke", one, "carl")
        ask = ["generate", "Hello", "--max-tokens", "2", *as_client]
        wait_until(lambda: rumormill(*ask).status != 0, "the revoked client is still served")
        assert "denylist" in rumormill(*ask).refusal()


def test_trust_is_given_in_one_way(tmp_path: Path) -> None:
    token = rumormill("token").out.strip()
    said = rumormill("up", "--certs", str(tmp_path), "--token", token).refusal()
    assert "one of them" in said
    assert "tls." in rumormill("up", "--certs", str(tmp_path), "--state-dir", str(tmp_path / "s")).refusal()
