"""`make exactness`: real prompts answered in every way the engine has, against transformers' fp32.

200 MMLU prompts, 32 greedy tokens each: alone and cold, alone and cached, in batches, under preemption, and
in chunks of odd sizes. An answer that differs is judged by the reference's own logits: near-ties are counted
apart. Ends with an error if a goal is missed.
"""

from __future__ import annotations

import argparse
import json
import sys
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from importlib.metadata import version
from pathlib import Path
from typing import Any, Final

from engine import Engine
from engine.cache_folder import cache_folder, write_atomically
from engine.interface import SamplingParams
from engine.model_files import open_model
from engine.tokenizer import Tokenizer
from tests.mmlu import mmlu_prompts
from tests.reference import TIE, Reference

NEW_TOKENS: Final = 32
LONGEST_CHARACTERS: Final = 2500
BATCH: Final = 8
CHUNKS: Final = (7, 37, 113, 301)
LEAST_IDENTICAL: Final = {"fp32": 1.0, "fp16": 0.99}
"""Of the answers that no near-tie decides."""

SAMPLING: Final = SamplingParams(max_tokens=NEW_TOKENS, ignore_eos=True)

Prompts = Sequence[list[int]]
Tokens = tuple[int, ...]


@dataclass
class Tally:
    """How a mode's answers compare with the reference's."""

    identical: int = 0
    ties: int = 0
    different: int = 0
    worst: float = 0.0

    @property
    def share(self) -> float:
        """Identical ones among those that no near-tie decides."""
        return self.identical / max(self.identical + self.different, 1)


def main() -> None:
    """Runs every mode at every precision asked for."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--prompts", type=int, default=200)
    parser.add_argument("--precision", action="append", choices=("fp32", "fp16", "stored"))
    parser.add_argument("--threads", type=int, default=0)
    options = parser.parse_args()
    tokenizer = Tokenizer.load("smollm2")
    prompts = [tokenizer.encode(text) for text in mmlu_prompts(options.prompts, LONGEST_CHARACTERS)]
    reference = Reference()
    expected = reference_answers(reference, prompts)
    print(f"{len(prompts)} prompts of {min(map(len, prompts))} to {max(map(len, prompts))} tokens")
    print("precision  mode        identical  near-ties  different  worst gap")
    lines, missed = [], False
    for precision in options.precision or ("fp32", "fp16"):
        for mode, answers in modes(prompts, precision, options.threads):
            tally = compare(reference, prompts, answers, expected)
            print(
                f"{precision:9}  {mode:10}  {tally.identical:9}  {tally.ties:9}  {tally.different:9}"
                f"  {tally.worst:9.4f}",
                flush=True,
            )
            goal = LEAST_IDENTICAL.get(precision, 0.0)
            missed = missed or tally.share < goal
            lines.append(figure(f"engine exactness {precision} {mode}", tally.share, goal))
    for line in lines:
        print(json.dumps(line))
    sys.exit(1 if missed else 0)


def modes(prompts: Prompts, precision: str, threads: int) -> Iterator[tuple[str, list[Tokens]]]:
    """Each way to answer all prompts, with its answers."""

    def load(**options: Any) -> Engine:
        return Engine.load("smollm2", precision=precision, threads=threads, **options)

    engine = load()
    yield "cold", each(prompts, lambda prompt: one(engine, prompt, flush=True))
    yield "cached", each(prompts, lambda prompt: (one(engine, prompt), one(engine, prompt))[1])
    engine.flush()
    yield "batched", in_batches(engine, prompts)
    engine.check()
    del engine
    blocks = max(len(prompt) for prompt in prompts) // 16 + 8
    crowded = load(kv_blocks=blocks)
    yield "preempted", in_batches(crowded, prompts)
    crowded.check()
    if not crowded.preemptions:
        raise SystemExit("the small cache preempted nothing; make it smaller")
    del crowded
    chunked: list[Tokens] = []
    for index, size in enumerate(CHUNKS):
        part = prompts[index * len(prompts) // len(CHUNKS) : (index + 1) * len(prompts) // len(CHUNKS)]
        engine = load(prefill_tokens_per_step=size)
        chunked += in_batches(engine, part)
    yield "chunked", chunked


def each(prompts: Prompts, answer: Callable[[list[int]], Tokens]) -> list[Tokens]:
    """Answers one by one."""
    return [answer(prompt) for prompt in prompts]


def one(engine: Engine, prompt: list[int], flush: bool = False) -> Tokens:
    """An answer alone in the engine."""
    if flush:
        engine.flush()
    return engine.generate([prompt], SAMPLING)[0].token_ids


def in_batches(engine: Engine, prompts: Prompts) -> list[Tokens]:
    """Answers, several at a time."""
    answers: list[Tokens] = []
    for start in range(0, len(prompts), BATCH):
        answers += [a.token_ids for a in engine.generate(prompts[start : start + BATCH], SAMPLING)]
    return answers


def compare(
    reference: Reference, prompts: Prompts, answers: Sequence[Tokens], expected: Sequence[Tokens]
) -> Tally:
    """Counts answers; one that differs is a near-tie if each of its tokens is one."""
    tally = Tally()
    for prompt, answer, right in zip(prompts, answers, expected, strict=True):
        if answer == right:
            tally.identical += 1
            continue
        worst = max(reference.errors(prompt, answer), default=0.0)
        tally.worst = max(tally.worst, worst)
        if worst <= TIE:
            tally.ties += 1
        else:
            tally.different += 1
    return tally


def reference_answers(reference: Reference, prompts: Prompts) -> list[Tokens]:
    """transformers' answers, kept from run to run: writing them takes minutes."""
    weights = open_model("smollm2").weights_fingerprint.hex()[:16]
    name = f"exactness-{weights}-{version('transformers')}-{version('torch')}-{NEW_TOKENS}.json"
    path = Path(cache_folder("bench"), name)
    known: dict[str, list[int]] = json.loads(path.read_text()) if path.is_file() else {}
    for count, prompt in enumerate(prompts, 1):
        key = json.dumps(prompt)
        if key not in known:
            known[key] = reference.answer(prompt, NEW_TOKENS)
            if count % 20 == 0:
                write_atomically(path, json.dumps(known).encode())
    write_atomically(path, json.dumps(known).encode())
    return [tuple(known[json.dumps(prompt)]) for prompt in prompts]


def figure(name: str, share: float, goal: float) -> dict[str, object]:
    """One result as other programs read it."""
    return {
        "name": name,
        "value": round(share, 5),
        "unit": "share identical",
        "baseline": 1.0,
        "ratio": round(share, 5),
        "goal": goal,
    }


if __name__ == "__main__":
    main()
