"""Greedy answers on the embedded model equal transformers' fp32: cold, cached, alone, batched."""

from __future__ import annotations

import csv
import random
from collections.abc import Sequence
from pathlib import Path

import pytest
import torch

from engine import Engine
from engine.config import Precision
from engine.interface import SamplingParams
from engine.model_source import resolve_model
from engine.tokenizer import Tokenizer

MMLU = Path(__file__).parents[4] / "shared" / "data" / "mmlu"
PROMPTS = 24
NEW_TOKENS = 32
TIE = 1e-3
"""Where the reference's two best logits are closer than this, either token is right."""

pytestmark = [
    pytest.mark.model,
    pytest.mark.skipif(not MMLU.is_dir(), reason="needs the MMLU files beside the repository"),
]


def mmlu_prompts(count: int, longest: int = 1200) -> list[str]:
    """Standard few-shot prompts of at most `longest` characters, of random subjects."""
    rng = random.Random(0)
    prompts: list[str] = []
    subjects = sorted(path.name.removesuffix("_dev.csv") for path in (MMLU / "dev").glob("*_dev.csv"))
    while len(prompts) < count:
        subject = rng.choice(subjects)
        examples = "".join(question(row, with_answer=True) for row in rows("dev", subject))
        asked = question(rng.choice(rows("test", subject)), with_answer=False)
        title = subject.replace("_", " ")
        prompt = (
            f"The following are multiple choice questions (with answers) about {title}.\n\n{examples}{asked}"
        )
        if len(prompt) <= longest:
            prompts.append(prompt)
    return prompts


def rows(split: str, subject: str) -> list[dict[str, str]]:
    with (MMLU / split / f"{subject}_{split}.csv").open(newline="", encoding="utf-8") as file:
        return list(csv.DictReader(file))


def question(row: dict[str, str], with_answer: bool) -> str:
    choices = "".join(f"{letter}. {row[f'choice{index}']}\n" for index, letter in enumerate("ABCD"))
    answer = f" {'ABCD'[int(row['answer'])]}\n\n" if with_answer else ""
    return f"{row['question']}\n{choices}Answer:{answer}"


class Reference:
    """transformers' fp32 model on the embedded file; judges whole answers by one forward pass each."""

    def __init__(self) -> None:
        from transformers import AutoModelForCausalLM

        path = resolve_model("smollm2").path
        self._model = AutoModelForCausalLM.from_pretrained(
            path.parent, gguf_file=path.name, dtype=torch.float32
        )
        self._judged: dict[tuple[tuple[int, ...], tuple[int, ...]], list[float]] = {}

    def errors(self, prompt: Sequence[int], answer: Sequence[int]) -> list[float]:
        """How far each token that isn't the reference's choice is from it in logits; empty when all agree.

        If every token is the best continuation of those before it, the answer is the greedy one.
        """
        key = (tuple(prompt), tuple(answer))
        if key not in self._judged:
            with torch.inference_mode():
                logits = self._model(
                    torch.tensor([[*prompt, *answer[:-1]]]), logits_to_keep=len(answer)
                ).logits[0]
            best = logits.max(dim=-1).values
            chosen = logits[torch.arange(len(answer)), torch.tensor(answer)]
            self._judged[key] = [gap for gap in (best - chosen).tolist() if gap > 0]
        return self._judged[key]


@pytest.fixture(scope="module")
def reference() -> Reference:
    return Reference()


@pytest.mark.timeout(600)
@pytest.mark.parametrize("precision", ["fp16"])
def test_greedy_answers_equal_transformers(reference: Reference, precision: Precision) -> None:
    tokenizer = Tokenizer.load("smollm2")
    prompts = [tokenizer.encode(text) for text in mmlu_prompts(PROMPTS)]
    sampling = SamplingParams(max_tokens=NEW_TOKENS, ignore_eos=True)
    engine = Engine.load("smollm2", precision=precision, threads=1)
    eights = [prompts[start : start + 8] for start in range(0, PROMPTS, 8)]
    batched_cold = [answer for eight in eights for answer in engine.generate(eight, sampling)]
    batched_warm = [answer for eight in eights for answer in engine.generate(eight, sampling)]
    alone_warm = [answer for prompt in prompts for answer in engine.generate([prompt], sampling)]
    alone_cold = []
    for prompt in prompts:
        engine.flush()
        alone_cold += engine.generate([prompt], sampling)
    assert all(answer.cached_tokens == 0 for answer in alone_cold)
    assert all(
        answer.cached_tokens > len(prompt) - 17 for answer, prompt in zip(alone_warm, prompts, strict=True)
    )
    assert any(answer.cached_tokens > 0 for answer in batched_warm)
    engine.check()
    ties = 0
    wrong = []
    for answers in (alone_cold, alone_warm, batched_cold, batched_warm):
        for prompt, answer in zip(prompts, answers, strict=True):
            gaps = reference.errors(prompt, answer.token_ids)
            ties += sum(gap <= TIE for gap in gaps)
            wrong += [gap for gap in gaps if gap > TIE]
    print(f"{precision}: {4 * PROMPTS} answers of {NEW_TOKENS} tokens, {ties} ties, wrong by {wrong}")
    assert not wrong
