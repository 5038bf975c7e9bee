"""Prints what the project needs, one requirement a line, so that it can be installed before the project itself."""

import tomllib
from pathlib import Path

project = tomllib.loads(Path("pyproject.toml").read_text())
print(*project["project"]["dependencies"], *project["build-system"]["requires"], sep="\n")  # noqa: T201
