"""`make bench-engine`: this engine and those people would run instead, side by side on the same weights.

Every round asks each contender every question in turn, so that what else the machine does falls on all alike;
medians are printed as a table, then one JSON line per figure.
"""

from __future__ import annotations

import argparse
import json
import os
import random
import statistics
import subprocess
import sys
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import IO, Any

from engine.model_source import resolve_model

NEW_TOKENS = 32
VOCABULARY = range(100, 40_000)


@dataclass(frozen=True)
class Figure:
    """One thing to measure: what is asked, and which of the times answered it is made of."""

    name: str
    unit: str
    prompts: tuple[tuple[int, ...], ...]
    new_tokens: int
    cached: bool = False
    goal: float | None = None

    @property
    def higher_is_better(self) -> bool:
        """Rates are; times aren't."""
        return self.unit == "tokens/s"

    def value(self, times: Sequence[float]) -> float:
        """The figure from the times of the first answer's tokens; the last one is the whole run's."""
        if self.name.startswith("prefill"):
            return len(self.prompts[0]) / times[-1]
        if self.name.startswith("time to first token"):
            return 1000 * times[-1]
        if self.name.startswith("shared prefix"):
            return times[-1]
        raise ValueError(self.name)


def figures() -> list[Figure]:
    """The questions of one round."""
    rng = random.Random(1)

    def tokens(count: int) -> tuple[int, ...]:
        return tuple(rng.choice(VOCABULARY) for _ in range(count))

    shared = tokens(192)
    long = tokens(2048)
    batches = {size: tuple(tokens(48) for _ in range(size)) for size in (1, 8, 16)}
    return [
        Figure("prefill 512", "tokens/s", (tokens(512),), 1, goal=1.1),
        Figure("prefill 2048", "tokens/s", (long,), 1, goal=1.1),
        Figure("time to first token of 2048 cached", "ms", (long,), 1, cached=True),
        *(
            Figure(f"decode {size}", "tokens/s", batch, NEW_TOKENS, goal=goal)
            for (size, batch), goal in zip(batches.items(), (3.5, 1.7, 1.6), strict=True)
        ),
        Figure(
            "shared prefix 16 x (192 + 64)", "s", tuple(shared + tokens(64) for _ in range(16)), NEW_TOKENS
        ),
    ]


class Runner:
    """A contender's process."""

    def __init__(self, name: str, precision: str, model: str, threads: int, python: str) -> None:
        self.label = f"{name} {precision}"
        script = Path(__file__).with_name("contenders.py")
        arguments = [name, "--model", model, "--precision", precision, "--threads", str(threads)]
        self._process = subprocess.Popen(
            [python, str(script), *arguments],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=subprocess.DEVNULL,
            text=True,
            env=os.environ | {"OMP_NUM_THREADS": str(threads), "GOMP_SPINCOUNT": "20000"},
        )
        self._input, self._output = _pipes(self._process)
        self._answer()

    def measure(self, figure: Figure) -> float:
        """One run of a figure. Decoding is timed as the difference of two runs, so prompts don't count."""
        if not figure.name.startswith("decode"):
            return figure.value(self._ask(figure.prompts, figure.new_tokens, forget=not figure.cached))
        whole = self._ask(figure.prompts, figure.new_tokens, forget=True)[-1]
        prompt = self._ask(figure.prompts, 1, forget=True)[-1]
        return len(figure.prompts) * (figure.new_tokens - 1) / max(whole - prompt, 1e-9)

    def close(self) -> None:
        """Ends the process."""
        self._input.close()
        self._process.wait()

    def _ask(self, prompts: Sequence[Sequence[int]], new_tokens: int, forget: bool) -> list[float]:
        task = {"prompts": prompts, "new_tokens": new_tokens, "forget": forget}
        self._input.write(json.dumps(task) + "\n")
        self._input.flush()
        times: list[float] = self._answer()["times"]
        return times

    def _answer(self) -> dict[str, Any]:
        line = self._output.readline()
        if not line:
            raise RuntimeError(f"{self.label} ended; run tests/bench/contenders.py by hand to see why")
        answer: dict[str, Any] = json.loads(line)
        return answer


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
        "--contenders",
        default="rumormill:fp16,rumormill:stored,rumormill:fp32,transformers:fp32",
        help="comma-separated name:precision (rumormill, transformers, llama.cpp); ratios are to the last",
    )
    parser.add_argument("--llama-python", default=sys.executable, help="an interpreter that has xllamacpp")
    parser.add_argument("--only", default="", help="measure just the figures with this in their name")
    options = parser.parse_args()
    pairs = [contender.partition(":") for contender in options.contenders.split(",")]
    runners = [start(name, precision, options) for name, _, precision in pairs]
    measured: dict[tuple[str, str], list[float]] = {}
    asked = [figure for figure in figures() if options.only in figure.name]
    for _ in range(options.rounds):
        for figure in asked:
            for runner in runners:
                measured.setdefault((figure.name, runner.label), []).append(runner.measure(figure))
    for runner in runners:
        runner.close()
    report(asked, [runner.label for runner in runners], measured)


def start(name: str, precision: str, options: argparse.Namespace) -> Runner:
    """Starts a contender; llama.cpp under the interpreter that has it, on the GGUF file itself."""
    if name == "llama.cpp":
        path = str(resolve_model(options.model).path)
        return Runner(name, precision, path, options.threads, options.llama_python)
    return Runner(name, precision, options.model, options.threads, sys.executable)


def report(asked: list[Figure], labels: list[str], measured: dict[tuple[str, str], list[float]]) -> None:
    """Prints the medians as a table, then as JSON lines with ratios against the last contender."""
    width = max(len(label) for label in labels) + 2
    print(" " * 40 + "".join(label.rjust(width) for label in labels))
    medians = {key: statistics.median(values) for key, values in measured.items()}
    for figure in asked:
        row = "".join(f"{medians[figure.name, label]:{width}.1f}" for label in labels)
        print(f"{figure.name}, {figure.unit}".ljust(40) + row)
    for figure in asked:
        baseline = medians[figure.name, labels[-1]]
        for label in labels[:-1]:
            value = medians[figure.name, label]
            ratio = value / baseline if figure.higher_is_better else baseline / value
            line = {
                "name": f"engine {figure.name} {label}",
                "value": round(value, 3),
                "unit": figure.unit,
                "baseline": round(baseline, 3),
                "ratio": round(ratio, 3),
                "goal": figure.goal,
            }
            print(json.dumps(line))


if __name__ == "__main__":
    main()
