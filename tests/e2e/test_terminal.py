"""Commands on a terminal: live displays, and Ctrl-C at every stage."""

from __future__ import annotations

from pathlib import Path

import pytest

from node.demo.local_mesh import LocalMesh
from tests.e2e.terminal import CONTROL_C, CONTROL_D, on_terminal

pytestmark = pytest.mark.e2e


def test_up_tells_what_it_does_then_shows_a_status_and_leaves_nothing(tmp_path: Path) -> None:
    ports = ["--grpc-port", "0", "--http-port", "0", "--state-dir", str(tmp_path), "--threads", "1"]
    with on_terminal("up", *ports, "--no-mdns") as terminal:
        terminal.wait_for("reading the weights")
        terminal.wait_for("serves SmolLM2")
        terminal.wait_for("no other node yet")
        terminal.wait_for("no request yet")
        terminal.type(CONTROL_C)
        assert terminal.status() == 0
        assert "Traceback" not in terminal.shown


def test_up_can_be_interrupted_while_it_starts(tmp_path: Path) -> None:
    ports = ["--grpc-port", "0", "--http-port", "0", "--state-dir", str(tmp_path)]
    with on_terminal("up", *ports) as terminal:
        terminal.wait_for("starting|reading")
        terminal.type(CONTROL_C)
        assert terminal.status() == 130
        assert "Traceback" not in terminal.shown


def test_control_c_stops_an_answer_and_not_the_chat(mesh: LocalMesh, node: list[str]) -> None:
    with on_terminal("chat", "--max-tokens", "4096", *node) as terminal:
        terminal.wait_for("Ctrl-D ends")
        terminal.type("Write a very long story about a fox.\n")
        terminal.wait_for("fox[^>]*fox[^>]{20}")
        terminal.type(CONTROL_C)
        terminal.wait_for(r"\[stopped\]")
        terminal.type("/clear\n")
        terminal.wait_for("> ")
        terminal.type(CONTROL_D)
        assert terminal.status() == 0


def test_control_c_ends_a_single_answer_with_130(node: list[str]) -> None:
    prompt = "Write a very long story about a fox."
    with on_terminal("generate", prompt, "--max-tokens", "4096", *node) as terminal:
        terminal.wait_for("fox")
        terminal.type(CONTROL_C)
        assert terminal.status() == 130
        assert "Traceback" not in terminal.shown


def test_top_is_live_until_q(mesh: LocalMesh, node: list[str]) -> None:
    with on_terminal("top", "--interval", "0.2", *node) as terminal:
        for _ in range(2):
            terminal.wait_for("2 of 2 nodes")
            terminal.wait_for(mesh.nodes[1].node_id[:8])
        terminal.type("q")
        assert terminal.status() == 0


def test_a_dumb_terminal_gets_plain_lines(node: list[str]) -> None:
    with on_terminal("top", *node, TERM="dumb") as terminal:
        assert terminal.status() == 0
        assert "2 of 2 nodes" in terminal.shown
        assert "\x1b" not in terminal.shown
