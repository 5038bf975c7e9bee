"""Readers of the public data behind the workloads. Lengths in tokens are characters over four."""

from __future__ import annotations

import csv
import json
import re
from collections.abc import Sequence
from dataclasses import dataclass
from functools import cache
from pathlib import Path

from overlay.core.types import BlockHash

CHARACTERS_PER_TOKEN = 4
SHOTS = 5

_ROLE = re.compile(r"^(user|assistant|tool): ", re.MULTILINE)


def tokens_in(text: str) -> int:
    """About how many tokens a text is."""
    return max(len(text) // CHARACTERS_PER_TOKEN, 1)


@dataclass(frozen=True, slots=True)
class Subject:
    """One MMLU subject: the few-shot part that all its prompts share, and its questions' lengths."""

    name: str
    prefix_tokens: int
    question_tokens: Sequence[int]


@cache
def read_mmlu(folder: Path) -> tuple[Subject, ...]:
    """MMLU (Hendrycks et al., ICLR 2021) as CSV files: examples in `dev`, questions in `test`."""
    subjects = []
    for path in sorted((folder / "dev").glob("*_dev.csv")):
        name = path.name.removesuffix("_dev.csv")
        shots = [_question(row) + f" {'ABCD'[int(row['answer'])]}\n\n" for row in _rows(path)[:SHOTS]]
        head = f"The following are multiple choice questions (with answers) about {name}.\n\n"
        questions = [tokens_in(_question(row)) for row in _rows(folder / "test" / f"{name}_test.csv")]
        subjects.append(Subject(name, tokens_in(head + "".join(shots)), questions))
    if not subjects:
        raise FileNotFoundError(f"no MMLU subjects in {folder}")
    return tuple(subjects)


def _rows(path: Path) -> list[dict[str, str]]:
    with path.open(newline="", encoding="utf-8") as file:
        return list(csv.DictReader(file))


def _question(row: dict[str, str]) -> str:
    choices = "\n".join(f"{letter}. {row[f'choice{n}']}" for n, letter in enumerate("ABCD"))
    return f"{row['question']}\n{choices}\nAnswer:"


@dataclass(frozen=True, slots=True)
class TraceEntry:
    """One request of a Mooncake trace (FAST'25): `hash_ids` name blocks of 512 tokens by their prefix."""

    timestamp_ms: float
    tokens: int
    answer_tokens: int
    hash_ids: tuple[BlockHash, ...]


@cache
def read_trace(path: Path) -> tuple[TraceEntry, ...]:
    """A Mooncake trace, one JSON object a line."""
    with path.open(encoding="utf-8") as file:
        rows = [json.loads(line) for line in file]
    return tuple(
        TraceEntry(
            row["timestamp"],
            row["input_length"],
            row["output_length"],
            tuple(BlockHash(hash_id + 1) for hash_id in row["hash_ids"]),
        )
        for row in rows
    )


@dataclass(frozen=True, slots=True)
class Turn:
    """What is new in a prompt (the user's words, the tools' results), and the answer to it."""

    asked_tokens: int
    answer_tokens: int


@dataclass(frozen=True, slots=True)
class Dialogue:
    """One dialogue of an assistant whose policy heads every prompt."""

    assistant: str
    policy_tokens: int
    turns: tuple[Turn, ...]


@cache
def read_tau_bench(folder: Path) -> tuple[Dialogue, ...]:
    """tau-bench's (Yao et al., arXiv 2406.12045) tool dialogues of its retail and airline assistants."""
    dialogues = []
    for assistant in ("airline", "retail"):
        policy = tokens_in((folder / f"{assistant}_policy.md").read_text("utf-8"))
        with (folder / f"{assistant}_few_shot.jsonl").open(encoding="utf-8") as file:
            texts = [json.loads(line)["messages_display"] for line in file]
        dialogues += [Dialogue(assistant, policy, turns) for text in texts if (turns := _turns(text))]
    return tuple(dialogues)


def _turns(text: str) -> tuple[Turn, ...]:
    parts = _ROLE.split(text)[1:]
    turns, asked = [], 0
    for role, words in zip(parts[::2], parts[1::2], strict=True):
        if role == "assistant":
            turns.append(Turn(max(asked, 1), tokens_in(words)))
            asked = 0
        else:
            asked += tokens_in(words)
    return tuple(turns)
