"""MMLU few-shot prompts, skewed so that some subjects are popular; the same for every policy.

A subject's five worked examples are the shared prefix of all its prompts (Hendrycks et al., ICLR 2021).
"""

from __future__ import annotations

import json
import random
from collections.abc import Sequence
from dataclasses import dataclass
from importlib.resources import files
from typing import Any

LETTERS = "ABCD"


@dataclass(frozen=True, slots=True)
class WorkloadRequest:
    """One prompt, where it enters, and the letter that would be right."""

    index: int
    subject: str
    prompt: str
    entry: int
    answer: str


@dataclass(frozen=True, slots=True)
class Subject:
    """One MMLU subject: the prompt's shared part, and (question, right letter) pairs."""

    name: str
    prefix: str
    questions: tuple[tuple[str, str], ...]


def load_subjects() -> list[Subject]:
    """The subjects that ship with the package."""
    table = json.loads(files("node").joinpath("data/mmlu_sample.json").read_text("utf-8"))
    return [subject_of(entry["name"], entry["dev"], entry["test"]) for entry in table["subjects"]]


def make_workload(
    subjects: Sequence[Subject], requests: int, nodes: int, seed: int, skew: float = 1.0
) -> list[WorkloadRequest]:
    """Subjects by Zipf's law of exponent `skew`, questions in turn, entry nodes at random."""
    rng = random.Random(seed)
    weights = [1 / rank**skew for rank in range(1, len(subjects) + 1)]
    used = dict.fromkeys((subject.name for subject in subjects), 0)
    workload = []
    for index, subject in enumerate(rng.choices(subjects, weights, k=requests)):
        question, answer = subject.questions[used[subject.name] % len(subject.questions)]
        used[subject.name] += 1
        workload.append(
            WorkloadRequest(index, subject.name, subject.prefix + question, rng.randrange(nodes), answer)
        )
    return workload


def subject_of(name: str, dev: Sequence[dict[str, Any]], test: Sequence[dict[str, Any]]) -> Subject:
    """From items with `question`, `choices` and the right letter as `answer`."""
    title = name.replace("_", " ")
    examples = "".join(f"{_question(example)} {example['answer']}\n\n" for example in dev)
    return Subject(
        name,
        f"The following are multiple choice questions (with answers) about {title}.\n\n{examples}",
        tuple((_question(item), item["answer"]) for item in test),
    )


def _question(item: dict[str, Any]) -> str:
    choices = "".join(f"\n{letter}. {text}" for letter, text in zip(LETTERS, item["choices"], strict=True))
    return f"{item['question']}{choices}\nAnswer:"
