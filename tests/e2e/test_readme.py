"""The README's commands, run as they stand there."""

from __future__ import annotations

import os
import re
import shutil
import signal
import socket
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from node.config import DEFAULT_GRPC_PORT, DEFAULT_HTTP_PORT
from tests.e2e.conftest import ROOT

pytestmark = pytest.mark.e2e

PATH = f"{Path(sys.executable).parent}{os.pathsep}{os.environ['PATH']}"


def blocks() -> list[list[str]]:
    """The README's shell blocks, a command a line."""
    found = re.findall(r"^```sh\n(.*?)^```", (ROOT / "README.md").read_text(), re.DOTALL | re.MULTILINE)
    return [block.replace("\\\n", " ").strip().splitlines() for block in found]


def environment(home: Path, **extra: str) -> dict[str, str]:
    kept = {key: value for key, value in os.environ.items() if not key.startswith("RUMORMILL_")}
    return kept | {"PATH": PATH, "XDG_STATE_HOME": str(home)} | extra


def shell(command: str, home: Path, stdin: str = "") -> str:
    done = subprocess.run(
        ["/bin/sh", "-c", command],
        input=stdin,
        capture_output=True,
        text=True,
        timeout=60,
        env=environment(home),
        check=False,
    )
    assert done.returncode == 0, f"{command}: {done.stderr}"
    return done.stdout


@pytest.fixture(scope="module")
def home(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Path]:
    """A user's home with a node started by the two commands of the README."""
    for port in (DEFAULT_GRPC_PORT, DEFAULT_HTTP_PORT):
        with socket.socket() as probe:
            if probe.connect_ex(("127.0.0.1", port)) == 0:
                pytest.skip(f"something listens on port {port}, which the README's commands use")
    folder = tmp_path_factory.mktemp("home")
    make_token, up = blocks()[1]
    token = shell(make_token, folder).strip()
    assert up.startswith("rumormill up --token rumormill_")
    command = f"exec {up.replace('rumormill_...', token)}"
    node = subprocess.Popen(
        ["/bin/sh", "-c", command], stdout=subprocess.PIPE, text=True, env=environment(folder)
    )
    try:
        assert node.stdout is not None
        assert "serves" in node.stdout.readline()
        yield folder
    finally:
        node.send_signal(signal.SIGTERM)
        assert node.wait(timeout=30) == 0
        if node.stdout:
            node.stdout.close()


def test_the_make_targets_exist() -> None:
    targets = re.findall(r"^([a-z-]+):", (ROOT / "Makefile").read_text(), re.MULTILINE)
    assert blocks()[0] == ["make demo"]
    for target in re.findall(r"`?make ([a-z-]+)`?", (ROOT / "README.md").read_text()):
        assert target in targets


def test_every_command_of_the_lan_section_works(home: Path) -> None:
    installed = [command for command in blocks()[2] if shutil.which(command.split()[0], path=PATH)]
    assert all(command.startswith("curl") for command in set(blocks()[2]) - set(installed))
    said = {command: shell(command, home, stdin="Hello\n") for command in installed}
    for command, out in said.items():
        assert out.strip(), command
    assert "this" in said["rumormill peers"]
    assert all("chat.completion" in out for command, out in said.items() if command.startswith("curl"))


@pytest.mark.parametrize("link", re.findall(r"\]\(([^)h][^)]*)\)", (ROOT / "README.md").read_text()))
def test_every_link_leads_somewhere(link: str) -> None:
    assert (ROOT / link).exists()
