"""Scripts of what happens to a mesh, for people to read and for any transport to run.

One step a line, `#` begins a comment, nodes are n0, n1, ... and times are seconds:

    nodes 5 seed 7 loss 0.1          the mesh; also seeds, duplication, reordering, full-mesh, degree
    start all | start n0 n1          starts nodes, with their disks if they had any
    start n0 without disk
    store n0 100                     n0's engine caches 100 blocks nobody has
    share n0 n1                      n1's engine caches what n0 has
    remove n0 10                     n0's engine evicts its 10 oldest blocks
    clear n0                         n0's engine loses its cache
    crash n0 | vanish n0             n0's process ends; its streams break at once, or by timeout
    leave n0                         n0 says goodbye
    pause n0 10                      n0's process stops for 10 seconds
    split n0 n1 | n2 n3              a partition
    cut n0 > n1                      nothing gets from n0 to n1
    heal                             ends all splits and cuts
    run 5                            time passes
    expect meet within 3             everyone knows everyone and is connected
    expect converge within 8         everyone holds exactly what everyone else has cached
    expect n0 sees n1 dead within 20 also candidate, alive, suspect, left, unknown
    expect no deaths                 nobody at all was declared dead so far
    expect no false deaths           nobody healthy was declared dead by anybody healthy
"""

from __future__ import annotations

import re
from dataclasses import dataclass, field
from pathlib import Path

VERBS = (
    "nodes", "start", "store", "share", "remove", "clear", "crash", "vanish",
    "leave", "pause", "split", "cut", "heal", "run", "expect",
)  # fmt: skip
SETTINGS = ("seed", "seeds", "loss", "duplication", "reordering", "full-mesh", "degree")


class ScriptError(ValueError):
    """A script can't be read; the text names the line and what is wrong."""


@dataclass(frozen=True, slots=True)
class Step:
    """One line: its verb, and its other words."""

    line: int
    verb: str
    words: tuple[str, ...]

    def __str__(self) -> str:
        return f"line {self.line}: {self.verb} {' '.join(self.words)}".rstrip()

    def nodes(self) -> list[int]:
        """The nodes named, in order."""
        return [int(word[1:]) for word in self.words if re.fullmatch(r"n\d+", word)]

    def number(self) -> float:
        """The last number named; raises ScriptError if there is none."""
        for word in reversed(self.words):
            if re.fullmatch(r"\d+(\.\d+)?", word):
                return float(word)
        raise ScriptError(f"{self}: a number is missing")

    def groups(self) -> list[list[int]]:
        """Nodes between bars."""
        parts = " ".join(self.words).split("|")
        return [[int(node[1:]) for node in part.split()] for part in parts]


@dataclass(frozen=True, slots=True)
class Script:
    """A mesh and its steps."""

    name: str
    nodes: int
    settings: dict[str, float] = field(default_factory=dict)
    steps: tuple[Step, ...] = ()


def parse(text: str, name: str = "script") -> Script:
    """Reads a script; raises ScriptError."""
    steps = []
    for line, raw in enumerate(text.splitlines(), start=1):
        words = raw.split("#")[0].split()
        if not words:
            continue
        step = Step(line, words[0], tuple(words[1:]))
        if step.verb not in VERBS:
            raise ScriptError(f"{name}, {step}: unknown verb; there are {', '.join(VERBS)}")
        steps.append(step)
    if not steps or steps[0].verb != "nodes":
        raise ScriptError(f"{name}: the first step must be `nodes`")
    first, *rest = steps
    settings = {}
    for key, value in zip(first.words[1::2], first.words[2::2], strict=True):
        if key not in SETTINGS:
            raise ScriptError(f"{name}, {first}: unknown setting {key}; there are {', '.join(SETTINGS)}")
        settings[key] = float(value)
    count = int(first.words[0])
    for step in rest:
        if any(node >= count for node in step.nodes()):
            raise ScriptError(f"{name}, {step}: there are only {count} nodes")
    return Script(name, count, settings, tuple(rest))


def load(path: Path) -> Script:
    """Reads a script file; raises ScriptError, or OSError when there is none."""
    return parse(path.read_text(), path.name)
