"""What is done to a testbed while it works: each fault strikes, lasts, and is mended."""

from __future__ import annotations

import json
import time
from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass

from node.testbed.containers import STOP_SECONDS, Container, compose, docker
from node.testbed.report import FaultReport, phases_of
from node.testbed.testbed import Load, Testbed
from node.testbed.workload import Workload

CALM_SECONDS = 10.0
"""Of the workload alone, before a fault and after the mesh is whole again."""

SLOW_CPUS = 0.1


@dataclass(frozen=True, slots=True)
class Scene:
    """The testbed, the requests that enter it, and who is struck."""

    testbed: Testbed
    workload: Workload
    targets: Sequence[Container]

    @property
    def names(self) -> tuple[str, ...]:
        return tuple(target.name for target in self.targets)

    def come_back(self) -> None:
        """Waits until the targets are healthy; requests enter there again."""
        for node in self.testbed.wait_healthy(self.names):
            self.workload.enter_at(node.name, node.grpc)


def kill(scene: Scene) -> None:
    for target in scene.targets:
        scene.workload.struck(target.name)
        docker("kill", target.id)


def start(scene: Scene) -> None:
    docker("start", *(target.id for target in scene.targets))
    scene.come_back()


def pause(scene: Scene) -> None:
    for target in scene.targets:
        scene.workload.struck(target.name)
        docker("pause", target.id)


def unpause(scene: Scene) -> None:
    docker("unpause", *(target.id for target in scene.targets))
    scene.come_back()


def partition(scene: Scene) -> None:
    _change_routes(scene, "add")


def join(scene: Scene) -> None:
    _change_routes(scene, "delete")


def slow(scene: Scene) -> None:
    docker("update", "--cpus", str(SLOW_CPUS), *(target.id for target in scene.targets))


def quicken(scene: Scene) -> None:
    docker(
        "update", "--cpus", docker("info", "--format", "{{.NCPU}}").strip(), *(t.id for t in scene.targets)
    )


def restart_in_turn(scene: Scene) -> None:
    """As an operator would: no new requests, a drain, a restart, and on once all see one another."""
    for target in scene.targets:
        scene.workload.avoid(target.name)
        docker("restart", "--time", str(STOP_SECONDS), target.id)
        Scene(scene.testbed, scene.workload, [target]).come_back()
        scene.testbed.wait_whole()


def nothing(scene: Scene) -> None:
    """Nothing is done, or nothing has to be mended."""


@dataclass(frozen=True, slots=True)
class Fault:
    """`strike` returns once it is done; `seconds` later comes `mend`, which returns once it has worked."""

    name: str
    strike: Callable[[Scene], None]
    mend: Callable[[Scene], None]
    seconds: float


KILL = Fault("kill", kill, start, 20)
PAUSE = Fault("pause", pause, unpause, 30)
PARTITION = Fault("partition", partition, join, 60)
SLOW = Fault("slow", slow, quicken, 30)
ROLLING_RESTART = Fault("rolling-restart", restart_in_turn, nothing, 0)
CALM = Fault("load", nothing, nothing, 30)


def run_fault(
    testbed: Testbed,
    fault: Fault,
    targets: Sequence[Container],
    load: Load,
    *,
    seconds: float,
    keep: bool = False,
    progress: Callable[[str], None] = lambda text: None,
) -> FaultReport:
    """The fault under a running workload; with `keep` it is left as it is. Raises TestbedError."""
    with testbed.workload(load) as workload:
        scene = Scene(testbed, workload, targets)
        progress("the workload alone")
        time.sleep(CALM_SECONDS)
        progress(f"{fault.name} {' '.join(scene.names)}")
        struck_at = time.monotonic()
        fault.strike(scene)
        time.sleep(seconds)
        whole: float | None = None
        mended_at = time.monotonic()
        if not keep:
            progress("mending")
            fault.mend(scene)
            mended_at = time.monotonic()
            progress("waiting until the nodes see one another")
            whole = testbed.wait_whole()
            time.sleep(CALM_SECONDS)
    return FaultReport(
        fault=fault.name,
        targets=scene.names,
        seconds=seconds,
        whole_again_s=whole,
        held_back=workload.held_back,
        phases=phases_of(workload.asked(), struck_at, mended_at),
    )


def run_scale(
    testbed: Testbed, count: int, load: Load, progress: Callable[[str], None] = lambda text: None
) -> FaultReport:
    """More nodes, or fewer: those that go drain first. Raises TestbedError."""
    with testbed.workload(load) as workload:
        progress("the workload alone")
        time.sleep(CALM_SECONDS)
        before = testbed.nodes()
        for node in before[count:]:
            workload.avoid(node.name)
        progress(f"scaling from {len(before)} to {count} nodes")
        struck_at = time.monotonic()
        compose("names", "up", "--detach", "--no-recreate", "--no-build", "--scale", f"node={count}")
        known = {node.name for node in before}
        new = [node for node in testbed.nodes() if node.name not in known]
        Scene(testbed, workload, new).come_back()
        mended_at = time.monotonic()
        progress("waiting until the nodes see one another")
        whole = testbed.wait_whole()
        time.sleep(CALM_SECONDS)
    return FaultReport(
        fault="scale",
        targets=tuple(node.name for node in (new or before[count:])),
        seconds=mended_at - struck_at,
        whole_again_s=whole,
        held_back=workload.held_back,
        phases=phases_of(workload.asked(), struck_at, mended_at),
    )


def heal(testbed: Testbed) -> float:
    """Undoes every fault that was kept; how many seconds until all saw one another. Raises TestbedError."""
    for node in testbed.nodes():
        if node.paused:
            docker("unpause", node.id)
        elif not node.running:
            docker("start", node.id)
    everyone = testbed.nodes()
    testbed.wait_healthy(node.name for node in everyone)
    for node in testbed.nodes():
        others = [address for other in everyone if other.id != node.id for address in other.addresses]
        _blackhole(node, "delete", others)
    docker("update", "--cpus", docker("info", "--format", "{{.NCPU}}").strip(), *(n.id for n in everyone))
    return testbed.wait_whole()


def _change_routes(scene: Scene, action: str) -> None:
    """Parts the targets from all others, or joins them again: packets vanish both ways, without a word."""
    struck = {target.id for target in scene.targets}
    others = [node for node in scene.testbed.nodes() if node.id not in struck and node.running]
    sides = ((scene.targets, others), (others, scene.targets))
    changes = [
        (node, [ip for far in theirs for ip in far.addresses]) for ours, theirs in sides for node in ours
    ]
    with ThreadPoolExecutor(len(changes)) as pool:
        for done in [pool.submit(_blackhole, node, action, addresses) for node, addresses in changes]:
            done.result()


def _blackhole(node: Container, action: str, addresses: Sequence[str]) -> None:
    """In a container of its own in the node's network, so that the node itself needs no capability."""
    image = json.loads(docker("inspect", "--format", "{{json .Image}}", node.id))
    inside = [
        "--network",
        f"container:{node.id}",
        "--user",
        "0:0",
        "--cap-drop",
        "ALL",
        "--cap-add",
        "NET_ADMIN",
    ]
    module = ["-m", "node.testbed.blackhole", action, *addresses]
    docker("run", "--rm", "--no-healthcheck", *inside, "--entrypoint", "python3", image, *module)
