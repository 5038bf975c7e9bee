"""Runs scripts in a simulated world."""

from __future__ import annotations

from overlay.core.timing import Timing
from overlay.core.views import PeerState
from overlay.sim.network import NetworkOptions
from overlay.sim.parts import WorldOptions
from overlay.sim.script import Script, ScriptError, Step
from overlay.sim.world import World

BLOCKS_PER_NODE = 1 << 20


class ExpectationError(AssertionError):
    """What a script expects didn't happen; the text names the line, and what there was instead."""


def world_of(script: Script, *, trace: bool = False) -> World:
    """The world a script describes, with nothing started."""
    settings = script.settings
    network = NetworkOptions(
        loss=settings.get("loss", 0.0),
        duplication=settings.get("duplication", 0.0),
        reordering=settings.get("reordering", 0.0),
    )
    options = WorldOptions(
        nodes=script.nodes,
        seed=int(settings.get("seed", 0)),
        seeds=int(settings.get("seeds", 1)),
        network=network,
        timing=Timing.lan(),
        full_mesh=int(settings.get("full-mesh", 256)),
        degree=int(settings.get("degree", 16)),
        trace=trace,
    )
    return World(options)


class ScriptRunner:
    """One script in one world. Replicas are compared with their origins after every step."""

    def __init__(self, script: Script, *, trace: bool = False) -> None:
        self.script = script
        self.world = world_of(script, trace=trace)
        self._stored = [0] * script.nodes

    def run(self) -> World:
        """Runs every step; raises ExpectationError."""
        for step in self.script.steps:
            self.step(step)
            wrong = self.world.wrong_replicas()
            if wrong:
                raise ExpectationError(f"{self.script.name}, {step}: {'; '.join(wrong)}")
        return self.world

    def step(self, step: Step) -> None:
        """Runs one step; raises ExpectationError, or ScriptError if it makes no sense."""
        world, nodes = self.world, step.nodes()
        match step.verb:
            case "start":
                for node in nodes or range(self.script.nodes):
                    world.start(node, keep_disk="without" not in step.words)
            case "store":
                world.store(nodes[0], self._fresh(nodes[0], int(step.number())))
            case "share":
                world.store(nodes[1], sorted(world.nodes[nodes[0]].blocks))
            case "remove":
                world.remove(nodes[0], sorted(world.nodes[nodes[0]].blocks)[: int(step.number())])
            case "clear":
                world.clear(nodes[0])
            case "crash" | "vanish":
                world.crash(nodes[0], silently=step.verb == "vanish")
            case "leave":
                world.leave(nodes[0])
            case "pause":
                world.pause(nodes[0], step.number())
            case "split":
                world.partition(step.groups())
            case "cut":
                world.cut(nodes[0], nodes[1])
            case "heal":
                world.heal()
            case "run":
                world.run(step.number())
            case "expect":
                self._expect(step)
            case _:
                raise ScriptError(f"{self.script.name}, {step}: a mesh is described once")

    def _fresh(self, node: int, count: int) -> list[int]:
        first = node * BLOCKS_PER_NODE + self._stored[node]
        self._stored[node] += count
        return [_scatter(block) for block in range(first, first + count)]

    def _expect(self, step: Step) -> None:
        world = self.world
        match step.words:
            case ("meet", "within", _):
                held = world.run_until(world.acquainted, world.now + step.number())
            case ("converge", "within", _):
                held = world.run_until(world.converged, world.now + step.number())
            case (_, "sees", _, wanted, "within", _):
                held = world.run_until(lambda: self._sees(step) == wanted, world.now + step.number())
            case (_, "sees", _, wanted):
                held = self._sees(step) == wanted
            case ("no", "deaths"):
                held = not world.tally.deaths
            case ("no", "false", "deaths"):
                held = not world.tally.false_deaths
            case _:
                raise ScriptError(f"{self.script.name}, {step}: nothing is expected that way")
        if not held:
            raise ExpectationError(
                f"{self.script.name}, {step}: not so at {world.now:.2f} s. {self._scene()}"
            )

    def _sees(self, step: Step) -> str:
        observer, subject = step.nodes()
        state = self.world.state(observer, subject)
        return state.value if state is not None else "unknown"

    def _scene(self) -> str:
        """Who disagrees with the usual, for the message of a failure."""
        running = [node.number for node in self.world.running()]
        odd = [
            f"n{a} sees n{b} {state.value if state else 'unknown'}"
            for a in running
            for b in running
            if a != b and (state := self.world.state(a, b)) is not PeerState.ALIVE
        ]
        deaths = self.world.tally.false_deaths
        return f"Running: {running}. {'; '.join(odd[:10]) or 'All see all alive'}. False deaths: {deaths}"


def _scatter(block: int) -> int:
    """Spreads block numbers over 64 bits, as hashes are."""
    return (block + 1) * 0x9E3779B97F4A7C15 & (1 << 64) - 1
