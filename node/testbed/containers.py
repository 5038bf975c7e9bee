"""The testbed's containers, through the command lines of Docker and of its compose, version 1 or 2."""

from __future__ import annotations

import json
import os
import shutil
import subprocess
import sys
from collections.abc import Sequence
from dataclasses import dataclass
from datetime import datetime
from pathlib import Path
from typing import Any

from node.testbed.errors import TestbedError
from node.testbed.secrets import container_user

PROJECT = "rumormill"
FOLDER = Path(__file__).parents[2] / "docker"
KINDS = {
    "names": ("compose.yaml",),
    "lan": ("compose.yaml", "compose.lan.yaml"),
    "wan": ("compose.wan.yaml",),
}
"""How nodes find one another -> the compose files for it."""

COMMAND_SECONDS = 300.0
HEALTH_CHECKS_KEPT = 5
STOP_SECONDS = 60
"""A stopped node drains for so long; docker/node.yaml says the same."""

_GRPC_PORTS = tuple(f"{port}/tcp" for port in (7070, 7071, 7072, 7073, 7074))


@dataclass(frozen=True, slots=True)
class Container:
    """A node's container as it was when looked at."""

    id: str
    name: str
    running: bool
    paused: bool
    health: str
    healthy_after_s: float | None
    """From its start to the first health check that it passed."""
    grpc: str
    """Where this machine reaches it; empty while it doesn't run."""
    http: str
    addresses: tuple[str, ...]

    @property
    def is_healthy(self) -> bool:
        return self.running and not self.paused and self.health == "healthy"


def docker(*arguments: str, seconds: float = COMMAND_SECONDS) -> str:
    """What the command printed; raises TestbedError with what it complained of."""
    return _run(["docker", *arguments], seconds)


def compose(kind: str, *arguments: str, seconds: float = COMMAND_SECONDS) -> str:
    """Runs compose on the files of a kind of testbed. Raises TestbedError."""
    files = [part for name in KINDS[kind] for part in ("--file", str(FOLDER / name))]
    return _run([*_compose_command(), "--project-name", PROJECT, *files, *arguments], seconds)


def nodes() -> list[Container]:
    """Every node's container, running or not, sorted by name. Raises TestbedError."""
    label = f"label=com.docker.compose.project={PROJECT}"
    ids = docker("ps", "--all", "--quiet", "--no-trunc", "--filter", label).split()
    found = [_parse(details) for details in json.loads(docker("inspect", *ids))] if ids else []
    return sorted((c for c in found if c is not None), key=lambda c: (len(c.name), c.name))


def serving_after_s(container: Container) -> float | None:
    """From its start to the line a node says when it serves; None before. Raises TestbedError."""
    lines = docker("logs", "--timestamps", container.id).splitlines()
    started = docker("inspect", "--format", "{{.State.StartedAt}}", container.id).strip()
    told = [_time(line.split()[0]) for line in lines if " serves " in line]
    return (told[-1] - _time(started)).total_seconds() if told else None


def image_bytes(image: str) -> int:
    """Raises TestbedError when there is no such image."""
    return int(docker("image", "inspect", "--format", "{{.Size}}", image))


def has_image(image: str) -> bool:
    try:
        image_bytes(image)
    except TestbedError:
        return False
    return True


def build_image(image: str, base_image: str, build_image: str) -> None:
    """Shows on standard error how it goes. Raises TestbedError."""
    arguments = ["docker", "build", "--file", str(FOLDER / "Dockerfile"), "--tag", image]
    for name, value in (("BASE_IMAGE", base_image), ("BUILD_IMAGE", build_image or base_image)):
        arguments += ["--build-arg", f"{name}={value}"] if value else []
    done = subprocess.run([*arguments, str(FOLDER.parent)], stdout=sys.stderr, check=False)
    if done.returncode:
        raise TestbedError("the image wasn't built; the reason stands above")


def _compose_command() -> list[str]:
    if not FOLDER.is_dir():
        raise TestbedError(f"there is no {FOLDER}: run this from a checkout of the repository")
    plugin = ["docker", "compose"]
    try:
        _run([*plugin, "version"], COMMAND_SECONDS)
    except TestbedError:
        plugin = []
    if plugin:
        return plugin
    if shutil.which("docker-compose"):
        return ["docker-compose"]
    raise TestbedError("there is neither `docker compose` nor `docker-compose`; install one of them")


def _run(command: Sequence[str], seconds: float) -> str:
    environment = {"TESTBED_USER": container_user()} | os.environ
    try:
        done = subprocess.run(
            command, capture_output=True, text=True, timeout=seconds, env=environment, check=False
        )
    except FileNotFoundError:
        raise TestbedError(f"there is no `{command[0]}`; install Docker and its compose") from None
    except subprocess.TimeoutExpired:
        raise TestbedError(f"`{' '.join(command[:3])} ...` took more than {seconds:.0f} s") from None
    if done.returncode:
        said = done.stderr.strip().splitlines() or done.stdout.strip().splitlines()
        raise TestbedError(f"`{' '.join(command[:3])} ...` failed: {said[-1] if said else 'it said nothing'}")
    return done.stdout


def _parse(details: dict[str, Any]) -> Container | None:
    """None for a container that is no node."""
    if "7070/tcp" not in details["Config"].get("ExposedPorts", {}) or details["Config"]["Entrypoint"] != [
        "rumormill"
    ]:
        return None
    state = details["State"]
    health = state.get("Health", {})
    networks = details["NetworkSettings"]["Networks"].values()
    return Container(
        id=details["Id"],
        name=details["Name"].removeprefix("/").removeprefix(PROJECT).lstrip("-_"),
        running=state["Running"],
        paused=state["Paused"],
        health=health.get("Status", "none"),
        healthy_after_s=_healthy_after(state["StartedAt"], health.get("Log") or ()),
        grpc=_published(details, *_GRPC_PORTS),
        http=_published(details, "8080/tcp"),
        addresses=tuple(network["IPAddress"] for network in networks if network["IPAddress"]),
    )


def _published(details: dict[str, Any], *ports: str) -> str:
    for port in ports:
        for binding in details["NetworkSettings"]["Ports"].get(port) or ():
            return f"127.0.0.1:{binding['HostPort']}"
    return ""


def _healthy_after(started: str, log: Sequence[dict[str, Any]]) -> float | None:
    """Docker keeps the last five checks: when all five passed, the first that did may have gone."""
    if len(log) >= HEALTH_CHECKS_KEPT and log[0]["ExitCode"] == 0:
        return None
    for check in log:
        if check["ExitCode"] == 0:
            return (_time(check["End"]) - _time(started)).total_seconds()
    return None


def _time(text: str) -> datetime:
    """Docker's times have nanoseconds, and Z or an offset."""
    head, _, fraction = text.rstrip("Z").partition(".")
    digits = fraction.partition("+")[0].partition("-")[0]
    offset = fraction[len(digits) :] if fraction else ""
    return datetime.fromisoformat(f"{head}.{digits[:6].ljust(6, '0')}{offset or '+00:00'}")
