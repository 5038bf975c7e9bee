"""Every model family through the CUDA decoder: logits against transformers' on random checkpoints."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import pytest
import torch
from torch import Tensor
from transformers import AutoModelForCausalLM

from engine.span import Span
from tests.unit.engine.cuda_cases import CASES, load_case
from tests.unit.engine.test_families import FAMILIES, random_tokens, reference_logits, run

LENGTHS = (60, 37, 44)
TABLES = [[40, 41, 42, 43], [3, 1, 2], [9, 30, 8]]
CHUNKS = [[26, 30, 1, 1, 1, 1], [1, 15, 18, 1, 1, 1], [1, 1, 39, 1, 1, 1]]
"""Three sequences side by side in uneven chunks, streams beside prompts, then token by token."""


def step_through(case: str, folder: Path, precision: str = "fp32") -> tuple[list[Tensor], list[list[int]]]:
    prompts = [random_tokens(length, seed) for seed, length in enumerate(LENGTHS)]
    decoder = load_case(case, folder, precision=precision)
    logits = run(decoder, prompts, TABLES, CHUNKS, [0, 0, 0])
    return [part.cpu() for part in logits], prompts


@pytest.mark.parametrize("case", CASES)
@pytest.mark.parametrize("family", FAMILIES)
def test_logits_equal_transformers(family: str, case: str, tiny: Callable[[str], Path]) -> None:
    ours, prompts = step_through(case, tiny(family))
    for mine, theirs in zip(ours, reference_logits(tiny(family), prompts), strict=True):
        torch.testing.assert_close(mine, theirs, atol=1e-4, rtol=0)


@pytest.mark.parametrize("case", CASES)
@pytest.mark.parametrize("precision", ["bf16", "fp16"])
@pytest.mark.parametrize("family", ["llama", "qwen2", "qwen3"])
def test_16_bits_err_no_more_than_transformers_do(
    family: str, precision: str, case: str, tiny: Callable[[str], Path]
) -> None:
    """Root mean square over all logits, against fp32; both round weights and activations alike."""
    ours, prompts = step_through(case, tiny(family), precision)
    exact = torch.cat(reference_logits(tiny(family), prompts))
    dtype = {"bf16": torch.bfloat16, "fp16": torch.float16}[precision]
    model = AutoModelForCausalLM.from_pretrained(tiny(family), dtype=dtype)
    with torch.inference_mode():
        theirs = torch.cat([model(torch.tensor([prompt])).logits[0].float() for prompt in prompts])
    our_error = (torch.cat(ours) - exact).square().mean().sqrt().item()
    their_error = (theirs - exact).square().mean().sqrt().item()
    print(f"{family} {precision} {case}: {our_error:.2e}, transformers {their_error:.2e}")
    assert 0 < our_error <= their_error


@pytest.mark.parametrize("case", CASES)
def test_streams_that_share_blocks_equal_transformers(case: str, tiny: Callable[[str], Path]) -> None:
    """Five streams on one cached prefix: fewer than a captured batch, so padding runs beside them."""
    folder = tiny("mistral-window")
    decoder = load_case(case, folder)
    prefix = random_tokens(48, 1)
    prompts = [prefix + random_tokens(4 + index, index) for index in range(5)]
    shared = [5, 4, 9]
    tables = [[*shared, 20 + index] for index in range(5)]
    with torch.inference_mode():
        decoder.forward(prefix, [Span(0, 48, shared)], [])
    lengths = [len(prompt) - 48 for prompt in prompts]
    chunks = [[length - 2, 1, 1] for length in lengths]
    ours = run(decoder, prompts, tables, chunks, [48] * 5)
    for mine, theirs in zip(ours, reference_logits(folder, prompts), strict=True):
        torch.testing.assert_close(mine.cpu(), theirs[-len(mine) :], atol=1e-4, rtol=0)
