"""Imports run one way: node -> overlay.net, overlay.sim -> overlay.core; engine and certs stand alone."""

from __future__ import annotations

import ast
import re
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]

# part -> the parts it may import, besides itself
MAY_IMPORT = {
    "overlay.core": set(),
    "overlay.net": {"overlay.core", "rumormill"},
    "overlay.sim": {"overlay.core"},
    "engine": set(),
    "certs": set(),
    "node": {"overlay.core", "overlay.net", "overlay.sim", "engine", "certs", "rumormill"},
}

# The core gets time, randomness and bytes as arguments.
CORE_FORBIDS = {"asyncio", "grpc", "socket", "threading", "time", "datetime", "os", "google", "ssl", "select"}
# The engine's policy files decide without computing.
TORCH_FREE = {
    "blocks",
    "prefix_cache",
    "scheduler",
    "block_hash",
    "interface",
    "errors",
    "config",
    "tokenizer",
}


def part_of(module: str) -> str | None:
    names = module.split(".")
    if names[0] == "overlay":
        return ".".join(names[:2]) if len(names) > 1 else "overlay"
    return names[0] if names[0] in (*MAY_IMPORT, "rumormill") else None


def imports_of(path: Path) -> Iterator[str]:
    """Every module a file imports, wherever in the file."""
    for statement in ast.walk(ast.parse(path.read_text())):
        if isinstance(statement, ast.Import):
            yield from (alias.name for alias in statement.names)
        elif isinstance(statement, ast.ImportFrom):
            assert statement.level == 0, f"{path}: relative import"
            assert statement.module is not None
            yield statement.module
            yield from (f"{statement.module}.{alias.name}" for alias in statement.names)


def violations(part: str, files: list[tuple[Path, list[str]]]) -> list[str]:
    allowed = MAY_IMPORT[part] | {part}
    return [
        f"{path}: {name}"
        for path, names in files
        for name in names
        if (target := part_of(name)) is not None and target not in allowed and target != "overlay"
    ]


def files_of(part: str) -> list[tuple[Path, list[str]]]:
    folder = ROOT / part.replace(".", "/")
    found = [(path.relative_to(ROOT), list(imports_of(path))) for path in sorted(folder.rglob("*.py"))]
    assert found, f"{folder} has no code"
    return found


@pytest.mark.parametrize("part", MAY_IMPORT)
def test_a_part_imports_only_what_it_may(part: str) -> None:
    assert violations(part, files_of(part)) == []


def test_the_rule_sees_a_violation() -> None:
    assert violations("engine", [(Path("engine/x.py"), ["overlay.core.types", "json"])]) == [
        "engine/x.py: overlay.core.types"
    ]


def test_the_core_reaches_for_no_clock_socket_or_loop() -> None:
    found = [
        f"{path}: {name}"
        for path, names in files_of("overlay.core")
        for name in names
        if name.split(".")[0] in CORE_FORBIDS
    ]
    assert found == []


def test_the_engines_policy_files_are_torch_free() -> None:
    found = [
        f"{path}: {name}"
        for path, names in files_of("engine")
        if path.stem in TORCH_FREE
        for name in names
        if name.split(".")[0] == "torch"
    ]
    assert found == []


def test_every_third_party_import_is_a_declared_dependency() -> None:
    """A package that only happens to be installed is missing on somebody's machine."""
    import tomllib
    from importlib.metadata import packages_distributions

    project = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]
    extras = project["optional-dependencies"]
    shipped = [name for extra in extras.keys() - {"dev"} for name in extras[extra]]
    declared = {re.split("[<>=]", name)[0].lower() for name in [*project["dependencies"], *shipped]}
    distributions = packages_distributions()
    missing = set()
    for part in MAY_IMPORT:
        for path, names in files_of(part):
            for name in {name.split(".")[0] for name in names} - set(sys.stdlib_module_names):
                owners = {owner.lower().replace("_", "-") for owner in distributions.get(name, [name])}
                if part_of(name) is None and not owners & declared and name not in ("overlay", "__future__"):
                    missing.add(f"{path}: {name}")
    assert missing == set()
