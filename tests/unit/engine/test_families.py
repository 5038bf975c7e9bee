"""Every model family: our logits against transformers', on random checkpoints, in chunks and in a batch."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import pytest
import torch
from torch import Tensor
from transformers import AutoModelForCausalLM

from engine.attention import AttentionPlan, Span
from engine.kv_cache import KVCache
from engine.model import Model
from engine.model_files import open_model
from engine.weights import open_weights

SIZE = 16
FAMILIES = (
    "llama",
    "llama-tied-bias",
    "llama-multi-head",
    "llama-linear-rope",
    "llama3-rope",
    "mistral-window",
    "qwen2",
    "qwen2-window",
    "qwen3",
)


def load(folder: Path) -> tuple[Model, KVCache]:
    files = open_model(str(folder))
    with open_weights(files) as weights:
        return Model(files.config, weights, "fp32"), KVCache(files.config, blocks=64, block_size=SIZE)


def reference_logits(folder: Path, prompts: list[list[int]]) -> list[Tensor]:
    model = AutoModelForCausalLM.from_pretrained(folder, dtype=torch.float32)
    with torch.inference_mode():
        return [model(torch.tensor([prompt])).logits[0] for prompt in prompts]


@pytest.mark.parametrize("family", FAMILIES)
def test_logits_equal_transformers(family: str, tiny: Callable[[str], Path]) -> None:
    """Three sequences of unlike lengths side by side, in uneven chunks, then token by token."""
    folder = tiny(family)
    model, cache = load(folder)
    generator = torch.Generator().manual_seed(1)
    lengths = (100, 37, 64)
    prompts = [torch.randint(2, 320, (length,), generator=generator).tolist() for length in lengths]
    tables = [list(range(40, 47)), [3, 1, 2], [9, 30, 8, 31]]
    chunks = [[50, 17, 30, 1, 1, 1], [1, 17, 16, 1, 1, 1], [1, 1, 20, 40, 1, 1]]
    computed = [0, 0, 0]
    logits: list[list[Tensor]] = [[], [], []]
    for step in range(6):
        spans = [Span(computed[i], chunks[i][step], tables[i]) for i in range(3)]
        tokens = [token for i, span in enumerate(spans) for token in prompts[i][span.computed : span.length]]
        plan = AttentionPlan(spans, SIZE)
        with torch.inference_mode():
            result = model.forward(torch.tensor(tokens), plan, cache, torch.arange(len(tokens)))
        for i, part in enumerate(torch.split(result, [span.count for span in spans])):
            logits[i].append(part)
            computed[i] += chunks[i][step]
    assert computed == list(lengths)
    for ours, theirs in zip(logits, reference_logits(folder, prompts), strict=True):
        torch.testing.assert_close(torch.cat(ours), theirs, atol=1e-4, rtol=0)


def test_sharded_safetensors_are_read_whole(make_checkpoint: Callable[..., Path], tmp_path: Path) -> None:
    folder = make_checkpoint(tmp_path / "sharded", "llama", shard_size="100KB")
    assert len(list(folder.glob("*.safetensors"))) > 1
    model, cache = load(folder)
    prompt = list(range(2, 40))
    with torch.inference_mode():
        ours = model.forward(
            torch.tensor(prompt), AttentionPlan([Span(0, 38, [0, 1, 2])], SIZE), cache, torch.arange(38)
        )
    torch.testing.assert_close(ours, reference_logits(folder, [prompt])[0], atol=1e-4, rtol=0)
