"""The public data behind the workloads, as text."""

from __future__ import annotations

import csv
import json
import re
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from node.demo.workload import LETTERS, Subject, subject_of

_ROLE = re.compile(r"^(user|assistant|tool): ", re.MULTILINE)


def read_mmlu(folder: Path) -> list[Subject]:
    """MMLU (Hendrycks et al., ICLR 2021) as CSV files: examples in `dev`, questions in `test`."""
    return [
        subject_of(path.name.removesuffix("_dev.csv"), _rows(path), _rows(_test_file(path)))
        for path in sorted((folder / "dev").glob("*_dev.csv"))
    ]


def _test_file(path: Path) -> Path:
    return path.parent.parent / "test" / path.name.replace("_dev.csv", "_test.csv")


def _rows(path: Path) -> list[dict[str, Any]]:
    with path.open(newline="", encoding="utf-8") as file:
        return [
            {
                "question": row["question"],
                "choices": [row[f"choice{number}"] for number in range(len(LETTERS))],
                "answer": LETTERS[int(row["answer"])],
            }
            for row in csv.DictReader(file)
        ]


@dataclass(frozen=True, slots=True)
class ToolDialogue:
    """A dialogue of tau-bench: the assistant, its policy, and what each of its prompts adds."""

    assistant: str
    policy: str
    said: Sequence[str]


def read_tau_bench(folder: Path) -> list[ToolDialogue]:
    """tau-bench's (Yao et al., arXiv 2406.12045) retail and airline dialogues; tools speak as the user."""
    dialogues = []
    for assistant in ("airline", "retail"):
        policy = (folder / f"{assistant}_policy.md").read_text("utf-8")
        with (folder / f"{assistant}_few_shot.jsonl").open(encoding="utf-8") as file:
            texts = [json.loads(line)["messages_display"] for line in file]
        dialogues += [ToolDialogue(assistant, policy, said) for text in texts if (said := _said(text))]
    return dialogues


def _said(text: str) -> list[str]:
    parts = _ROLE.split(text)[1:]
    said, pending = [], ""
    for role, words in zip(parts[::2], parts[1::2], strict=True):
        if role == "assistant":
            said.append(pending or "Go on.")
            pending = ""
        else:
            pending += words
    return said
