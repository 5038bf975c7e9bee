"""Greedy answers on the embedded model equal transformers' fp32: cold, cached, alone, batched."""

from __future__ import annotations

import pytest

from engine import Engine
from engine.config import Device, Precision
from engine.interface import SamplingParams
from engine.placement import Gpu
from engine.tokenizer import Tokenizer
from tests.mmlu import MMLU, mmlu_prompts
from tests.reference import TIE, Reference

PROMPTS = 24
NEW_TOKENS = 32

pytestmark = [
    pytest.mark.model,
    pytest.mark.skipif(not MMLU.is_dir(), reason="needs the MMLU files beside the repository"),
]


@pytest.fixture(scope="module")
def reference() -> Reference:
    return Reference()


@pytest.mark.timeout(600)
@pytest.mark.parametrize(("device", "precision"), [("cpu", "fp16"), ("cuda", "fp32")])
def test_greedy_answers_equal_transformers(
    reference: Reference, device: Device, precision: Precision
) -> None:
    if device == "cuda" and (lacking := Gpu.look().lacking):
        pytest.skip(lacking)
    tokenizer = Tokenizer.load("smollm2")
    prompts = [tokenizer.encode(text) for text in mmlu_prompts(PROMPTS)]
    sampling = SamplingParams(max_tokens=NEW_TOKENS, ignore_eos=True)
    engine = Engine.load("smollm2", device=device, precision=precision, threads=1)
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
    print(
        f"{device} {precision}: {4 * PROMPTS} answers of {NEW_TOKENS} tokens, {ties} ties, wrong by {wrong}"
    )
    assert not wrong
