"""`rumormill prepare` leaves a model as a node's start finds it ready."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.e2e.conftest import rumormill

pytestmark = pytest.mark.e2e


def test_a_model_is_prepared_and_described() -> None:
    prepared = rumormill("prepare", "--kv-memory-mib", "64", "--json")
    said = prepared.json()
    assert said["model"] == "SmolLM2-135M-Instruct"
    assert said["context_tokens"] > 0
    assert "reading the weights" in prepared.err


def test_what_cannot_be_prepared_is_told_in_one_line(tmp_path: Path) -> None:
    missing = rumormill("prepare", "--model", str(tmp_path / "none"))
    assert "none" in missing.refusal()
    assert missing.status == 1
    wrong = rumormill("prepare", "--threads", "-1")
    assert "threads" in wrong.refusal()
    assert wrong.status == 2
