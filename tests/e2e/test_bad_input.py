"""Whatever is wrong at start, or with a request: one line with the remedy, and nothing left running."""

from __future__ import annotations

import socket
from pathlib import Path

import pytest

from engine.model_source import resolve_model
from node.demo.local_mesh import LocalMesh
from tests.e2e.conftest import Outcome, rumormill

pytestmark = pytest.mark.e2e


def up(tmp_path: Path, *options: str) -> Outcome:
    return rumormill(
        "up", "--grpc-port", "0", "--http-port", "0", "--state-dir", str(tmp_path / "state"), *options
    )


def test_a_missing_model(tmp_path: Path) -> None:
    said = up(tmp_path, "--model", str(tmp_path / "none.gguf")).refusal()
    assert "none.gguf" in said


@pytest.mark.parametrize("cut", [0, 100, 1_000_000])
def test_a_damaged_model(tmp_path: Path, cut: int) -> None:
    damaged = tmp_path / "damaged.gguf"
    damaged.write_bytes(resolve_model("smollm2").path.read_bytes()[:cut])
    assert "damaged.gguf" in up(tmp_path, "--model", str(damaged)).refusal()


def test_a_grpc_port_in_use(tmp_path: Path) -> None:
    with socket.create_server(("127.0.0.1", 0)) as taken:
        port = taken.getsockname()[1]
        said = rumormill(
            "up", "--grpc-port", str(port), "--http-port", "0", "--state-dir", str(tmp_path)
        ).refusal()
    assert f"gRPC port {port}" in said
    assert "--grpc-port" in said


def test_an_http_port_in_use(tmp_path: Path) -> None:
    with socket.create_server(("127.0.0.1", 0)) as taken:
        port = taken.getsockname()[1]
        said = rumormill(
            "up", "--grpc-port", "0", "--http-port", str(port), "--state-dir", str(tmp_path)
        ).refusal()
    assert f"HTTP port {port}" in said
    assert "--http-port" in said


@pytest.mark.parametrize(
    ("token", "says"), [("hunter2", "rumormill token"), ("rumormill_abc", "mistyped"), ("", "mesh token")]
)
def test_a_token_that_is_none(tmp_path: Path, token: str, says: str) -> None:
    said = rumormill("peers", "--token", token, "--state-dir", str(tmp_path)).refusal()
    assert says in said


def test_a_mistyped_token_is_told_from_a_wrong_one(tmp_path: Path, mesh: LocalMesh) -> None:
    typo = mesh.token[:-5] + ("a" if mesh.token[-5] != "a" else "b") + mesh.token[-4:]
    assert "mistyped" in up(tmp_path, "--token", typo).refusal()
    other = rumormill("token").out.strip()
    said = rumormill("peers", "--node", mesh.nodes[0].grpc, "--token", other).refusal()
    assert "--token" in said


def test_nobody_at_home(tmp_path: Path, mesh: LocalMesh) -> None:
    with socket.create_server(("127.0.0.1", 0)) as silent:
        address = f"127.0.0.1:{silent.getsockname()[1]}"
        said = rumormill("generate", "x", "--node", address, "--token", mesh.token).refusal()
    assert address in said
    assert "rumormill up" in said


def test_requests_that_cannot_be_served(node: list[str]) -> None:
    assert "context" in rumormill("generate", "--raw", "-", *node, stdin="word " * 9000).refusal()
    assert "empty" in rumormill("generate", "--raw", "", *node).refusal()
    assert "top_p" in rumormill("generate", "x", "--top-p", "2", *node).refusal()
    assert "least-loaded" in rumormill("generate", "x", "--policy", "best", *node).refusal()


def test_an_unknown_option_in_the_config_file(tmp_path: Path) -> None:
    file = tmp_path / "node.toml"
    file.write_text('modle = "smollm2"\n')
    assert "did you mean 'model'" in up(tmp_path, "--config", str(file)).refusal()


def test_one_state_folder_is_for_one_node(tmp_path: Path, mesh: LocalMesh) -> None:
    folder = rumormill_state_of(mesh)
    said = rumormill("up", "--grpc-port", "0", "--http-port", "0", "--state-dir", folder).refusal()
    assert "already running" in said


def rumormill_state_of(mesh: LocalMesh) -> str:
    return str(mesh.nodes[0].log.parent)


def test_a_state_folder_that_cannot_be_used(tmp_path: Path) -> None:
    (tmp_path / "file").touch()
    said = rumormill(
        "up", "--grpc-port", "0", "--http-port", "0", "--state-dir", str(tmp_path / "file")
    ).refusal()
    assert "--state-dir" in said


def test_numbers_past_what_the_wire_can_carry(node: list[str]) -> None:
    for option in ("--seed", "--max-tokens", "--top-k"):
        wrong = rumormill("generate", "x", option, "9" * 20, *node)
        assert wrong.status == 2
        assert option in wrong.err
        assert "Traceback" not in wrong.err


def test_wrong_use_is_told_with_status_2() -> None:
    wrong = rumormill("generate", "x", "--max-tokens", "none")
    assert wrong.status == 2
    assert "Traceback" not in wrong.err
