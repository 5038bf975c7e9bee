"""Real prompts: MMLU questions with five answered ones before them, from the files beside the repository."""

from __future__ import annotations

import csv
import random
from collections.abc import Iterator
from pathlib import Path

MMLU = Path(__file__).parents[2] / "shared" / "data" / "mmlu"


def mmlu_prompts(count: int, longest: int = 1200) -> list[str]:
    """The same every time: standard few-shot prompts of at most `longest` characters, of random subjects."""
    rng = random.Random(0)
    prompts: list[str] = []
    subjects = sorted(path.name.removesuffix("_dev.csv") for path in (MMLU / "dev").glob("*_dev.csv"))
    while len(prompts) < count:
        subject = rng.choice(subjects)
        examples = "".join(_question(row, with_answer=True) for row in _rows("dev", subject))
        asked = _question(rng.choice(_rows("test", subject)), with_answer=False)
        title = subject.replace("_", " ")
        prompt = (
            f"The following are multiple choice questions (with answers) about {title}.\n\n{examples}{asked}"
        )
        if len(prompt) <= longest:
            prompts.append(prompt)
    return prompts


def mmlu_exams(questions: int) -> Iterator[list[tuple[str, int]]]:
    """For each of the 57 subjects its first questions as prompts, with the indices of the right choices."""
    for path in sorted((MMLU / "dev").glob("*_dev.csv")):
        subject = path.name.removesuffix("_dev.csv")
        examples = "".join(_question(row, with_answer=True) for row in _rows("dev", subject))
        title = subject.replace("_", " ")
        head = f"The following are multiple choice questions (with answers) about {title}.\n\n{examples}"
        rows = _rows("test", subject)[:questions]
        yield [(head + _question(row, with_answer=False), int(row["answer"])) for row in rows]


def _rows(split: str, subject: str) -> list[dict[str, str]]:
    with (MMLU / split / f"{subject}_{split}.csv").open(newline="", encoding="utf-8") as file:
        return list(csv.DictReader(file))


def _question(row: dict[str, str], with_answer: bool) -> str:
    choices = "".join(f"{letter}. {row[f'choice{index}']}\n" for index, letter in enumerate("ABCD"))
    answer = f" {'ABCD'[int(row['answer'])]}\n\n" if with_answer else ""
    return f"{row['question']}\n{choices}Answer:{answer}"
