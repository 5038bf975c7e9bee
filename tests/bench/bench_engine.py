"""`make bench-engine`: this engine and those people would run instead, side by side on the same weights.

Every round asks each contender every question in turn, so that what else the machine does falls on all alike;
medians are printed as a table, then one JSON line per goal.
"""

from __future__ import annotations

import argparse
import dataclasses
import json
import os
import statistics
import subprocess
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import IO, Any

from tests.bench.engine_figures import Figure, Task, figures
from tests.bench.model_formats import gguf_as, huggingface_folder

ROOT = Path(__file__).parents[2]
OURS = ("rumormill:fp16", "rumormill:stored", "rumormill:fp32")
PYTHON_OF = {
    "llama.cpp": ROOT / ".venv-llama/bin/python",
    "vllm": ROOT / ".venv-vllm/bin/python",
}
THEIRS = (
    "transformers:fp32",
    "transformers-continuous:fp32",
    "vllm:fp32",
    "llama.cpp:F16",
    "llama.cpp:Q8_0",
    "llama.cpp:Q4_1",
    "llama.cpp:Q4_0",
)


class Runner:
    """A contender's process."""

    def __init__(self, contender: str, model: str, threads: int) -> None:
        name, _, precision = contender.partition(":")
        self.label = f"{name} {precision}"
        script = Path(__file__).with_name("contenders.py")
        arguments = [name, "--model", _model_for(name, precision, model)]
        arguments += ["--precision", precision, "--threads", str(threads)]
        self._process = subprocess.Popen(
            [str(PYTHON_OF.get(name, sys.executable)), str(script), *arguments],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=subprocess.DEVNULL,
            text=True,
            env=os.environ | {"OMP_NUM_THREADS": str(threads), "GOMP_SPINCOUNT": "20000"},
        )
        self._input, self._output = _pipes(self._process)
        self._answer()

    def measure(self, figure: Figure) -> float | None:
        """One run of a figure; None where it can't be asked of this contender."""
        if not self.label.startswith(figure.only):
            return None
        return figure.measure(self._ask)

    def close(self) -> None:
        """Ends the process."""
        self._input.close()
        self._process.wait()

    def _ask(self, task: Task) -> list[float]:
        self._input.write(json.dumps(dataclasses.asdict(task)) + "\n")
        self._input.flush()
        times: list[float] = self._answer()["times"]
        return times

    def _answer(self) -> dict[str, Any]:
        line = self._output.readline()
        if not line:
            raise RuntimeError(f"{self.label} ended; run tests/bench/contenders.py by hand to see why")
        answer: dict[str, Any] = json.loads(line)
        return answer


def _model_for(name: str, precision: str, model: str) -> str:
    if name == "llama.cpp":
        return str(gguf_as(model, precision))
    return str(huggingface_folder(model)) if name in ("vllm", "transformers-continuous") else model


def _pipes(process: subprocess.Popen[str]) -> tuple[IO[str], IO[str]]:
    if process.stdin is None or process.stdout is None:
        raise RuntimeError("the contender has no pipes")
    return process.stdin, process.stdout


def main() -> None:
    """Measures and prints."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--model", default="smollm2")
    parser.add_argument("--threads", type=int, default=2)
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument(
        "--contenders", default="", help="comma-separated name:precision; default: all installed"
    )
    parser.add_argument("--only", default="", help="measure just the figures with this in their name")
    options = parser.parse_args()
    contenders = options.contenders.split(",") if options.contenders else _installed()
    runners = [Runner(contender, options.model, options.threads) for contender in contenders]
    measured: dict[tuple[str, str], list[float]] = {}
    asked = [figure for figure in figures() if options.only in figure.name]
    for round_number in range(1, options.rounds + 1):
        for figure in asked:
            print(f"\rround {round_number} of {options.rounds}: {figure.name:40}", end="", file=sys.stderr)
            for runner in runners:
                value = runner.measure(figure)
                if value is not None:
                    measured.setdefault((figure.name, runner.label), []).append(value)
    print("\r" + " " * 70 + "\r", end="", file=sys.stderr)
    for runner in runners:
        runner.close()
    report(asked, [runner.label for runner in runners], measured)


def _installed() -> list[str]:
    """Our precisions, and the peers whose environments are there (`make bench-peers` makes them)."""
    peers = [peer for peer in THEIRS if PYTHON_OF.get(peer.partition(":")[0], ROOT).exists()]
    return [*OURS, *peers]


def report(asked: Sequence[Figure], labels: list[str], measured: dict[tuple[str, str], list[float]]) -> None:
    """Prints the medians, contenders as rows, then a JSON line for each of our figures and baseline."""
    medians = {key: statistics.median(values) for key, values in measured.items()}
    for start in range(0, len(asked), 4):
        part = asked[start : start + 4]
        print(" " * 30 + "".join(f"{figure.name}, {figure.unit}".rjust(40) for figure in part))
        for label in labels:
            values = [medians.get((figure.name, label)) for figure in part]
            row = "".join(f"{value:40.1f}" if value is not None else "-".rjust(40) for value in values)
            print(label.ljust(30) + row)
        print()
    for figure in asked:
        for label in filter(lambda label: label.startswith("rumormill"), labels):
            _report_line(figure, label, medians, labels)


def _report_line(
    figure: Figure, label: str, medians: dict[tuple[str, str], float], labels: Sequence[str]
) -> None:
    value = medians[figure.name, label]
    line: dict[str, object] = {
        "name": f"engine {figure.name} {label}",
        "value": round(value, 3),
        "unit": figure.unit,
    }
    if figure.limit is not None:
        line |= {"baseline": figure.limit, "ratio": round(figure.limit / value, 3), "goal": 1.0}
        print(json.dumps(line))
        return
    for other in labels:
        if other.startswith("rumormill") or (figure.name, other) not in medians:
            continue
        baseline = medians[figure.name, other]
        ratio = value / baseline if figure.higher_is_better else baseline / value
        goal = figure.goals.get(other)
        line |= {"baseline": round(baseline, 3), "ratio": round(ratio, 3), "goal": goal and round(goal, 3)}
        print(json.dumps(line | {"against": other}))


if __name__ == "__main__":
    main()
