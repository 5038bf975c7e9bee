"""Prints the project's requirements, one a line, so that they can be installed before the project."""

import tomllib
from pathlib import Path

project = tomllib.loads(Path("pyproject.toml").read_text())
print(*project["project"]["dependencies"], *project["build-system"]["requires"], sep="\n")  # noqa: T201
