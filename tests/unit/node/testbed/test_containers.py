"""What is read of Docker's own words, and what is said where there is no Docker."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
from click.testing import CliRunner

from node.cli.app import rumormill
from node.testbed import containers
from node.testbed.containers import nodes
from node.testbed.errors import TestbedError

NODE: dict[str, Any] = {
    "Id": "abc",
    "Name": "/rumormill_node_2",
    "Config": {"ExposedPorts": {"7070/tcp": {}, "8080/tcp": {}}, "Entrypoint": ["rumormill"]},
    "State": {
        "Running": True,
        "Paused": False,
        "StartedAt": "2026-12-01T12:00:00.123456789Z",
        "Health": {
            "Status": "healthy",
            "Log": [
                {"End": "2026-12-01T12:00:05.9+00:00", "ExitCode": 1},
                {"End": "2026-12-01T13:00:10.623456789+01:00", "ExitCode": 0},
            ],
        },
    },
    "NetworkSettings": {
        "Networks": {"rumormill_mesh": {"IPAddress": "172.18.0.3"}, "gone": {"IPAddress": ""}},
        "Ports": {"7070/tcp": [{"HostIp": "127.0.0.1", "HostPort": "7072"}], "8080/tcp": None},
    },
}
LINK = NODE | {"Config": NODE["Config"] | {"Entrypoint": ["python3", "-m", "node.testbed.delay_proxy"]}}


@pytest.fixture
def docker(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A folder that is all of PATH, with a docker that says what `docker inspect` would."""
    program = tmp_path / "docker"
    program.write_text("#!/bin/sh\ncase $1 in ps) echo abc;; inspect) cat <<'X'\n" + json.dumps([NODE, LINK]))
    program.write_text(program.read_text() + "\nX\n;; *) echo what >&2; exit 1;; esac\n")
    program.chmod(0o755)
    (tmp_path / "cat").symlink_to("/bin/cat")
    monkeypatch.setenv("PATH", str(tmp_path))
    return tmp_path


@pytest.mark.usefixtures("docker")
def test_a_nodes_container_is_read_and_others_are_left_out() -> None:
    (node,) = nodes()
    assert (node.name, node.is_healthy, node.grpc, node.http) == ("node_2", True, "127.0.0.1:7072", "")
    assert node.addresses == ("172.18.0.3",)
    assert node.healthy_after_s == pytest.approx(10.5)


@pytest.mark.usefixtures("docker")
def test_a_first_healthy_check_that_has_been_dropped_is_not_made_up(monkeypatch: pytest.MonkeyPatch) -> None:
    passed = [{"End": "2026-12-01T12:01:00Z", "ExitCode": 0}] * containers.HEALTH_CHECKS_KEPT
    assert containers._healthy_after("2026-12-01T12:00:00Z", passed) is None
    assert containers._healthy_after("2026-12-01T12:00:00Z", passed[1:]) == 60


@pytest.mark.usefixtures("docker")
def test_what_docker_complains_of_is_passed_on() -> None:
    with pytest.raises(TestbedError, match="what"):
        containers.docker("kill", "x")
    with pytest.raises(TestbedError, match="neither"):
        containers.compose("names", "up")


def test_without_docker_every_command_says_so(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PATH", str(tmp_path))
    monkeypatch.setattr(containers, "FOLDER", tmp_path)
    (tmp_path / "secrets").mkdir()
    (tmp_path / "secrets/operator-token").write_text("x")
    outcome = CliRunner().invoke(rumormill, ["testbed", "down"])
    assert isinstance(outcome.exception, TestbedError)
    assert "docker" in str(outcome.exception)


def test_wrong_use_is_refused_before_anything_is_done() -> None:
    for arguments in (
        ["scale", "9"],
        ["kill", "--for", "-1"],
        ["up", "--kind", "moon"],
        ["load", "--rate", "0"],
    ):
        assert CliRunner().invoke(rumormill, ["testbed", *arguments]).exit_code == 2
