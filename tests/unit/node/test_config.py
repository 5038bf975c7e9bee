"""Every option, from wherever it comes, is used or refused by name."""

from __future__ import annotations

from pathlib import Path

import pytest
from click.testing import CliRunner

from node.cli.up import up
from node.config import NodeConfig, make_config, option_name, read_config_file
from node.errors import StartupError


def test_the_file_may_hold_any_option(tmp_path: Path) -> None:
    file = tmp_path / "node.toml"
    file.write_text('grpc-port = 7171\npeer = ["a:1", "b:2"]\nmdns = false\n')
    config = make_config(read_config_file(file))
    assert (config.grpc_port, config.peer, config.mdns) == (7171, ("a:1", "b:2"), False)


@pytest.mark.parametrize(
    ("text", "says"),
    [
        ('modle = "x"', "unknown option 'modle'; did you mean 'model'"),
        ("zzz = 1", "unknown option 'zzz'; see"),
        ("model = ", "not valid TOML"),
    ],
)
def test_a_bad_file_is_refused_by_name(tmp_path: Path, text: str, says: str) -> None:
    file = tmp_path / "node.toml"
    file.write_text(text)
    with pytest.raises(StartupError, match=says):
        read_config_file(file)


def test_a_missing_file_is_refused(tmp_path: Path) -> None:
    with pytest.raises(StartupError, match="does not exist"):
        read_config_file(tmp_path / "none.toml")


@pytest.mark.parametrize(
    ("option", "value"),
    [
        ("grpc_port", 70000),
        ("kv_memory_mib", 1),
        ("precision", "int3"),
        ("device", "tpu"),
        ("kv_memory_fraction", 1.0),
        ("threads", "many"),
        ("policy", "best"),
    ],
)
def test_a_bad_value_names_its_option(option: str, value: object) -> None:
    with pytest.raises(StartupError, match=option_name(option)):
        make_config({option: value})


@pytest.mark.parametrize(
    "values",
    [
        {"http_listen": "0.0.0.0"},
        {"http_listen": "192.0.2.1", "api_keys": "keys"},
        {"http_listen": "::", "http_cert": "c", "http_key": "k"},
        {"http_cert": "c"},
        {"certs": "c", "token": "t"},
    ],
)
def test_what_would_be_open_to_anybody_is_refused(values: dict[str, str]) -> None:
    with pytest.raises(StartupError):
        make_config(values)


def test_every_option_is_on_the_command_line_with_its_environment_variable() -> None:
    text = CliRunner().invoke(up, ["--help"]).output
    for field in NodeConfig.model_fields:
        assert option_name(field) in text
        assert f"RUMORMILL_{field.upper()}" in text
