"""Whatever goes wrong is told in one line, with a remedy and the right exit status."""

from __future__ import annotations

import sys
from pathlib import Path

import click
import pytest

from certs.errors import CertsError
from engine.errors import EngineConfigError, ModelNotFoundError
from node.cli.app import main, rumormill
from node.errors import NodeError, StartupError


def run(monkeypatch: pytest.MonkeyPatch, *arguments: str) -> int:
    monkeypatch.setattr(sys, "argv", ["rumormill", *arguments])
    with pytest.raises(SystemExit) as ended:
        main()
    assert isinstance(ended.value.code, int)
    return ended.value.code


@pytest.mark.parametrize(
    ("arguments", "says", "helps"),
    [
        (["genrate"], "Did you mean 'generate'", "rumormill --help"),
        (["generate", "x", "--polcy", "cost"], "--policy", "rumormill generate --help"),
        (["generate", "x", "--policy", "best"], "least-loaded", "rumormill generate --help"),
        (["generate", "x", "--file", "/no/such"], "does not exist", "rumormill generate --help"),
        (["explain", "x", "--file", __file__], "not both", "rumormill explain --help"),
        (["peers", "--json", "extra"], "extra", "rumormill peers --help"),
        (["top", "--interval", "0"], "--interval", "rumormill top --help"),
        (["bench", "--workload", "poems"], "mooncake-conversation", "rumormill bench --help"),
        (["bench", "--start", "0"], "--start", "rumormill bench --help"),
        (["completion", "tcsh"], "fish", "rumormill completion --help"),
        (["sim", "routing"], "--data", "rumormill sim routing --help"),
    ],
)
def test_wrong_use_is_one_line_that_names_the_help(
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
    arguments: list[str],
    says: str,
    helps: str,
) -> None:
    assert run(monkeypatch, *arguments) == 2
    out, err = capsys.readouterr()
    assert out == ""
    assert len(err.splitlines()) == 1
    assert err.startswith("rumormill: ")
    assert says in err
    assert f"see `{helps}`" in err


def test_an_address_is_told_from_nonsense(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    assert run(monkeypatch, "peers", "--node", "here") == 2
    assert "HOST:PORT" in capsys.readouterr().err


@pytest.mark.parametrize(
    ("error", "status"),
    [
        (StartupError("why"), 2),
        (CertsError("why"), 2),
        (EngineConfigError("why"), 2),
        (NodeError("why"), 1),
        (ModelNotFoundError("why"), 1),
        (OSError("why"), 1),
        (click.ClickException("why"), 1),
        (KeyboardInterrupt(), 130),
        (click.Abort(), 130),
    ],
)
def test_each_error_has_its_exit_status(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str], error: BaseException, status: int
) -> None:
    @click.command()
    def fails() -> None:
        raise error

    monkeypatch.setitem(rumormill.commands, "fails", fails)
    assert run(monkeypatch, "fails") == status
    assert capsys.readouterr().err.strip() == ("" if status == 130 else "rumormill: why")


def test_a_file_that_cannot_be_used_is_named(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str], tmp_path: Path
) -> None:
    @click.command()
    def reads() -> None:
        (tmp_path / "none").read_text()

    monkeypatch.setitem(rumormill.commands, "reads", reads)
    assert run(monkeypatch, "reads") == 1
    assert capsys.readouterr().err == f"rumormill: {tmp_path / 'none'}: No such file or directory\n"


@pytest.mark.parametrize("arguments", [["--help"], *([name, "--help"] for name in rumormill.commands)])
def test_every_command_has_help(monkeypatch: pytest.MonkeyPatch, arguments: list[str]) -> None:
    assert run(monkeypatch, *arguments) == 0
    command = rumormill.commands.get(arguments[0], rumormill)
    assert command.get_short_help_str()


@pytest.mark.parametrize("shell", ["bash", "zsh", "fish"])
def test_a_completion_script_is_printed(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str], shell: str
) -> None:
    assert run(monkeypatch, "completion", shell) == 0
    assert f"_RUMORMILL_COMPLETE={shell}_complete" in capsys.readouterr().out


@pytest.mark.parametrize(
    ("words", "offers"), [("rumormill ex", "explain"), ("rumormill bench --work", "--workload")]
)
def test_completion_offers_commands_and_options(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str], words: str, offers: str
) -> None:
    monkeypatch.setenv("_RUMORMILL_COMPLETE", "bash_complete")
    monkeypatch.setenv("COMP_WORDS", words)
    monkeypatch.setenv("COMP_CWORD", str(len(words.split()) - 1))
    run(monkeypatch)
    assert offers in capsys.readouterr().out
