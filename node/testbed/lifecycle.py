"""A testbed from nothing, and back."""

from __future__ import annotations

import time
from collections.abc import Callable
from dataclasses import asdict, dataclass
from typing import Any

from node.testbed import containers
from node.testbed.containers import FOLDER, KINDS, STOP_SECONDS, Container, compose
from node.testbed.errors import TestbedError
from node.testbed.secrets import OPERATOR_FILE, make_secrets
from node.testbed.testbed import Testbed

NODES = 4


@dataclass(frozen=True, slots=True)
class StartedNode:
    """A node, and how many seconds after its start it served, and Docker called it healthy."""

    name: str
    grpc: str
    http: str
    serving_after_s: float | None
    healthy_after_s: float | None


@dataclass(frozen=True, slots=True)
class Started:
    """A testbed whose nodes all see one another."""

    image: str
    image_bytes: int
    nodes: tuple[StartedNode, ...]
    whole_after_s: float
    operator_token: str

    def to_dict(self) -> dict[str, Any]:
        return asdict(self)


def start(
    kind: str,
    image: str,
    base_image: str,
    build_image: str,
    *,
    build: bool,
    progress: Callable[[str], None],
) -> Started:
    """Makes secrets, image and containers where they are missing. Raises TestbedError."""
    secrets = FOLDER / "secrets"
    try:
        make_secrets(secrets)
    except OSError as error:
        raise TestbedError(f"can't make the secrets in {secrets}: {error}") from error
    if build or not containers.has_image(image):
        progress(f"building the image {image}: some minutes")
        containers.build_image(image, base_image, build_image)
    progress("starting the containers")
    begun = time.monotonic()
    compose(kind, "up", "--detach", "--no-build")
    bed = Testbed(secrets)
    progress("waiting until they are healthy")
    healthy = bed.wait_healthy(_expected(bed))
    progress("waiting until they see one another")
    bed.wait_whole()
    return Started(
        image=image,
        image_bytes=containers.image_bytes(image),
        nodes=tuple(_started(node) for node in healthy),
        whole_after_s=time.monotonic() - begun,
        operator_token=str(secrets / OPERATOR_FILE),
    )


def stop() -> None:
    """Ends and deletes whatever kind of testbed runs, with its volumes. Raises TestbedError."""
    for kind in KINDS:
        compose(kind, "down", "--volumes", "--remove-orphans", "--timeout", str(STOP_SECONDS))


def _expected(bed: Testbed) -> list[str]:
    names = [node.name for node in bed.nodes()]
    if len(names) < NODES:
        raise TestbedError(f"only {', '.join(names)} started; see `docker ps --all`")
    return names


def _started(node: Container) -> StartedNode:
    return StartedNode(
        node.name, node.grpc, node.http, containers.serving_after_s(node), node.healthy_after_s
    )
