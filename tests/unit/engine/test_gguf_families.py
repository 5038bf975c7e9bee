"""Whole GGUF files of every tensor type and family: logits against transformers' on the same file."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import gguf
import numpy as np
import pytest
import torch
from torch import Tensor
from transformers import AutoModelForCausalLM

from engine.config import EngineConfig, Precision
from engine.loading import load_decoder
from engine.model_files import open_model
from engine.native.library import NativeUnavailable, load_library
from engine.span import Span
from tests.unit.engine.gguf_checkpoints import write_gguf_checkpoint

PROMPT = torch.randint(2, 320, (60,), generator=torch.Generator().manual_seed(1)).tolist()
PLAIN = ("F32", "F16", "BF16", "Q4_0", "Q4_1", "Q5_0", "Q5_1", "Q8_0")
K_QUANTS = ("Q2_K", "Q3_K", "Q4_K", "Q5_K", "Q6_K")


def logits(path: Path, backend: str, precision: Precision = "fp32") -> Tensor:
    if backend == "native":
        try:
            load_library()
        except NativeUnavailable as error:
            pytest.skip(str(error))
    options = EngineConfig(b"0123456789abcdef", backend=backend, precision=precision, threads=1)  # type: ignore[arg-type]  # one of two
    decoder = load_decoder(open_model(str(path)), options, 8)
    with torch.inference_mode():
        return decoder.forward(PROMPT, [Span(0, len(PROMPT), [3, 1, 2, 0])], range(len(PROMPT)))


def reference(path: Path) -> Tensor:
    model = AutoModelForCausalLM.from_pretrained(path.parent, gguf_file=path.name, dtype=torch.float32)
    with torch.inference_mode():
        result: Tensor = model(torch.tensor([PROMPT])).logits[0]
    return result


def check(path: Path, expected: Tensor, *precisions: Precision) -> None:
    for backend in ("native", "torch"):
        for precision in precisions:
            torch.testing.assert_close(logits(path, backend, precision), expected, atol=1e-4, rtol=0)


@pytest.mark.parametrize("kind", [*PLAIN, *K_QUANTS])
def test_every_tensor_type_equals_transformers(
    kind: str, tmp_path: Path, make_checkpoint: Callable[..., Path]
) -> None:
    """K-quants have blocks of 256, so the model is as wide as that."""
    folder = make_checkpoint(
        tmp_path / "folder",
        "llama",
        hidden_size=256,
        intermediate_size=256,
        num_hidden_layers=1,
        initializer_range=0.1,
    )
    path = write_gguf_checkpoint(folder, tmp_path / "m.gguf", kind)
    assert {tensor.tensor_type.name for tensor in gguf.GGUFReader(path).tensors} == {kind, "F32"}
    check(path, reference(path), "fp32", "stored")


@pytest.mark.parametrize("family", ["llama-tied-bias", "smollm2", "mistral", "qwen2", "qwen3", "qwen3-tied"])
def test_every_family_equals_its_folder(family: str, tmp_path: Path, tiny: Callable[[str], Path]) -> None:
    folder = tiny(family)
    path = write_gguf_checkpoint(folder, tmp_path / "m.gguf", "F32")
    check(path, logits(folder, "torch"), "fp32")


@pytest.mark.parametrize(
    ("family", "metadata"),
    [
        ("llama-linear-rope", {"rope.scaling.type": "linear", "rope.scaling.factor": 4.0}),
        ("llama-linear-rope", {"rope.scale_linear": 4.0}),
        (
            "qwen2-yarn",
            {
                "rope.scaling.type": "yarn",
                "rope.scaling.factor": 4.0,
                "rope.scaling.original_context_length": 32,
            },
        ),
    ],
)
def test_rope_scaling_in_metadata_counts(
    family: str, metadata: dict[str, object], tmp_path: Path, tiny: Callable[[str], Path]
) -> None:
    """transformers overlooks it in GGUF files."""
    folder = tiny(family)
    path = write_gguf_checkpoint(folder, tmp_path / "m.gguf", "F32", metadata)
    assert open_model(str(path)).config.context_tokens == open_model(str(folder)).config.context_tokens
    check(path, logits(folder, "torch"), "fp32")


def test_llama_3_s_frequencies_stored_as_a_tensor_count(tmp_path: Path, tiny: Callable[[str], Path]) -> None:
    folder = tiny("llama3-rope")
    rope = open_model(str(folder)).config.rope
    plain = [rope.theta ** -(2 * pair / 16) for pair in range(8)]
    factors = np.array(plain) / np.array(rope.inverse_frequencies(16))
    assert factors.max() == pytest.approx(8)
    tensors = {"rope_freqs__weight": factors.astype(np.float32)}
    path = write_gguf_checkpoint(folder, tmp_path / "m.gguf", "F32", **tensors)
    check(path, logits(folder, "torch"), "fp32")
