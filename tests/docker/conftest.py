"""A testbed of containers, for as long as the tests that share it run; or the reason why there is none."""

from __future__ import annotations

import json
import os
import shutil
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from node.testbed import containers
from node.testbed.containers import FOLDER
from node.testbed.errors import TestbedError
from node.testbed.testbed import Testbed

BASE_IMAGES = {"base": "rumormill-base", "build": "rumormill-build"}
COMMAND_SECONDS = 900


def run_testbed(*arguments: str) -> Any:
    """What `rumormill testbed` says with --json; it must succeed."""
    done = subprocess.run(
        [sys.executable, "-m", "node.cli", "testbed", *arguments, "--json"],
        capture_output=True,
        text=True,
        timeout=COMMAND_SECONDS,
        check=False,
    )
    if done.returncode:
        pytest.fail(f"testbed {' '.join(arguments)}: {done.stdout}{done.stderr}{last_words()}")
    return json.loads(done.stdout)


def last_words() -> str:
    """The end of every node's log."""
    return "".join(
        f"\n--- {node.name} {node.health}\n{containers.docker('logs', '--tail', '20', node.id)}"
        for node in containers.nodes()
    )


@pytest.fixture(scope="session")
def engine() -> None:
    """A Docker engine and compose; skips where there is none."""
    if shutil.which("docker") is None:
        pytest.skip("there is no Docker; install docker.io and docker-compose")
    if subprocess.run(["docker", "info"], capture_output=True, check=False).returncode:
        pytest.skip("no Docker engine runs, and starting one needs root, dockerd and debootstrap")
    try:
        containers.compose("names", "version")
    except TestbedError as error:
        pytest.skip(str(error))


@pytest.fixture(scope="session")
def base_images(engine: None) -> dict[str, str]:
    """TESTBED_BASE_IMAGE and TESTBED_BUILD_IMAGE where images come from packages, not from a registry."""
    folder = os.environ.get("TESTBED_BASE_TARS")
    if folder is None:
        return {}
    for name, image in BASE_IMAGES.items():
        if not containers.has_image(image):
            containers.docker("import", str(Path(folder) / f"{name}.tar"), image)
    return {f"TESTBED_{name.upper()}_IMAGE": image for name, image in BASE_IMAGES.items()}


@pytest.fixture(scope="session")
def started(base_images: dict[str, str]) -> Iterator[Any]:
    """What `testbed up` says, of four nodes that see one another."""
    os.environ.update(base_images)
    try:
        yield run_testbed("up", "--build")
    finally:
        subprocess.run(
            [sys.executable, "-m", "node.cli", "testbed", "down"], timeout=COMMAND_SECONDS, check=False
        )


@pytest.fixture
def bed(started: Any) -> Testbed:
    return Testbed(FOLDER / "secrets")
