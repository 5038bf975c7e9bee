"""A node, and the environments that `make clients` makes for the programs that call it."""

from __future__ import annotations

import os
import subprocess
from collections.abc import Iterator
from pathlib import Path

import pytest

from engine.model_files import open_model
from tests.e2e.conftest import serving

ROOT = Path(__file__).parents[2]
RUN_SECONDS = 280


@pytest.fixture(scope="session")
def url(tmp_path_factory: pytest.TempPathFactory) -> Iterator[str]:
    """The base URL of a node's OpenAI API."""
    with serving(tmp_path_factory.mktemp("node"), "--no-mdns") as ready:
        yield f"{ready['http']}/v1"


@pytest.fixture(scope="session")
def tokenizer() -> Path:
    """A folder that transformers reads the embedded model's tokenizer from."""
    return open_model("smollm2").folder


def run(environment: str, program: str, *arguments: str, **variables: str) -> str:
    """What a program of another environment prints; skips where `make clients` has not made that."""
    command = ROOT / environment / "bin" / program
    if not command.exists():
        pytest.skip(f"{environment} is not there; `make clients` makes it")
    offline = {"HF_HUB_OFFLINE": "1", "HF_DATASETS_OFFLINE": "1", "OPENAI_API_KEY": "unused"}
    done = subprocess.run(
        [str(command), *arguments],
        capture_output=True,
        text=True,
        timeout=RUN_SECONDS,
        env={**os.environ, **offline, **variables},
        check=False,
    )
    assert done.returncode == 0, done.stderr[-4000:]
    return done.stdout
