"""Every model family, in PyTorch and compiled: logits against transformers' on random checkpoints."""

from __future__ import annotations

import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Literal

import gguf
import pytest
import torch
from safetensors.torch import load_file
from torch import Tensor
from transformers import AutoModelForCausalLM

from engine.config import EngineConfig, Precision
from engine.loading import load_decoder
from engine.model import TorchDecoder
from engine.model_files import ModelFiles, open_model
from engine.native.decoder import NativeDecoder
from engine.native.library import NativeUnavailable, load_library
from engine.runner import Decoder
from engine.span import Span
from engine.weights import FolderWeights, StoredRows

SIZE = 16
BLOCKS = 64
FAMILIES = (
    "llama",
    "llama-tied-bias",
    "llama-multi-head",
    "llama-linear-rope",
    "llama3-rope",
    "llama-dynamic-rope",
    "llama-yarn",
    "smollm2",
    "mistral",
    "mistral-window",
    "qwen2",
    "qwen2-yarn",
    "qwen2-window",
    "qwen3",
    "qwen3-tied",
)
Backend = Literal["native", "torch"]
BACKENDS: tuple[Backend, ...] = ("native", "torch")


def options(backend: Backend, precision: Precision = "fp32") -> EngineConfig:
    if backend == "native":
        try:
            load_library()
        except NativeUnavailable as error:
            pytest.skip(str(error))
    return EngineConfig(b"0123456789abcdef", backend=backend, precision=precision, threads=2)


def load(folder: Path, backend: Backend) -> Decoder:
    decoder = load_decoder(open_model(str(folder)), options(backend), BLOCKS)
    assert decoder.backend == backend
    return decoder


def reference_logits(folder: Path, prompts: list[list[int]]) -> list[Tensor]:
    model = AutoModelForCausalLM.from_pretrained(folder, dtype=torch.float32)
    with torch.inference_mode():
        return [model(torch.tensor([prompt])).logits[0] for prompt in prompts]


def random_tokens(length: int, seed: int) -> list[int]:
    return torch.randint(2, 320, (length,), generator=torch.Generator().manual_seed(seed)).tolist()


def run(
    decoder: Decoder,
    prompts: list[list[int]],
    tables: list[list[int]],
    chunks: list[list[int]],
    computed: list[int],
) -> list[Tensor]:
    """All logits of prompts computed side by side, `chunks[i][step]` tokens of each per step."""
    logits: list[list[Tensor]] = [[] for _ in prompts]
    done = list(computed)
    for step in range(len(chunks[0])):
        live = [i for i in range(len(prompts)) if chunks[i][step]]
        spans = [Span(done[i], chunks[i][step], tables[i]) for i in live]
        tokens = [
            token
            for i, span in zip(live, spans, strict=True)
            for token in prompts[i][span.computed : span.length]
        ]
        with torch.inference_mode():
            result = decoder.forward(tokens, spans, range(len(tokens)))
        for i, part in zip(live, torch.split(result, [span.count for span in spans]), strict=True):
            logits[i].append(part)
            done[i] += chunks[i][step]
    assert done == [len(prompt) for prompt in prompts]
    return [torch.cat(parts) for parts in logits]


@pytest.mark.parametrize("backend", BACKENDS)
@pytest.mark.parametrize("family", FAMILIES)
def test_logits_equal_transformers(family: str, backend: Backend, tiny: Callable[[str], Path]) -> None:
    """Three sequences of unlike lengths side by side, in uneven chunks, then token by token."""
    folder = tiny(family)
    decoder = load(folder, backend)
    prompts = [random_tokens(length, seed) for seed, length in enumerate((100, 37, 64))]
    tables = [list(range(40, 47)), [3, 1, 2], [9, 30, 8, 31]]
    chunks = [[50, 17, 30, 1, 1, 1], [1, 17, 16, 1, 1, 1], [1, 1, 20, 40, 1, 1]]
    ours = run(decoder, prompts, tables, chunks, [0, 0, 0])
    for mine, theirs in zip(ours, reference_logits(folder, prompts), strict=True):
        torch.testing.assert_close(mine, theirs, atol=1e-4, rtol=0)


@pytest.mark.parametrize("backend", BACKENDS)
@pytest.mark.parametrize("family", ["llama", "mistral-window", "qwen3"])
def test_streams_that_share_blocks_equal_transformers(
    family: str, backend: Backend, tiny: Callable[[str], Path]
) -> None:
    """Ten streams on one cached prefix of 96 tokens, beside one of their own and a prompt."""
    folder = tiny(family)
    decoder = load(folder, backend)
    prefix = random_tokens(96, 1)
    prompts = [prefix + random_tokens(8 + index, index) for index in range(10)]
    prompts += [random_tokens(30, 90), random_tokens(70, 91)]
    shared = [5, 4, 9, 8, 7, 6]
    tables = [[*shared, 20 + index, 40 + index] for index in range(10)] + [[0, 1], [50, 51, 52, 53, 54]]
    warm_up = Span(0, 96, shared)
    with torch.inference_mode():
        decoder.forward(prefix, [warm_up], [])
    computed = [96] * 10 + [0, 0]
    lengths = [len(prompt) - done for prompt, done in zip(prompts, computed, strict=True)]
    chunks = [[length - 3, 1, 1, 1] for length in lengths]
    chunks[-1] = [10, 40, 10, 10]
    ours = run(decoder, prompts, tables, chunks, computed)
    for mine, theirs in zip(ours, reference_logits(folder, prompts), strict=True):
        torch.testing.assert_close(mine, theirs[-len(mine) :], atol=1e-4, rtol=0)


@pytest.mark.parametrize("backend", BACKENDS)
def test_a_lone_long_stream_equals_transformers(
    backend: Backend, tmp_path: Path, make_checkpoint: Callable[..., Path]
) -> None:
    """Long enough to be cut by keys so that all threads share it."""
    folder = make_checkpoint(tmp_path / "long", "llama", max_position_embeddings=2048, initializer_range=0.1)
    decoder = load(folder, backend)
    prompt = random_tokens(1000, 1)
    (ours,) = run(decoder, [prompt], [list(range(63))], [[500, 498, 1, 1]], [0])
    (theirs,) = reference_logits(folder, [prompt])
    torch.testing.assert_close(ours, theirs, atol=1e-4, rtol=0)


def test_a_row_does_not_depend_on_its_batch_mates(tiny: Callable[[str], Path]) -> None:
    """Bit by bit, whatever the height of the tiles it is computed in."""
    decoder = load(tiny("llama"), "native")
    tokens = random_tokens(40, 1)
    with torch.inference_mode():
        spans = [Span(0, 1, [index]) for index in range(40)]
        together = decoder.forward(tokens, spans, range(40))
        for count in (1, 2, 3, 5, 7, 12, 13, 24, 25):
            some = decoder.forward(tokens[:count], spans[:count], range(count))
            assert torch.equal(some, together[:count])


def test_sharded_safetensors_are_read_whole(make_checkpoint: Callable[..., Path], tmp_path: Path) -> None:
    folder = make_checkpoint(tmp_path / "sharded", "llama", shard_size="100KB")
    assert len(list(folder.glob("*.safetensors"))) > 1
    prompt = random_tokens(38, 1)
    (ours,) = run(load(folder, "torch"), [prompt], [[0, 1, 2]], [[38]], [0])
    torch.testing.assert_close(ours, reference_logits(folder, [prompt])[0], atol=1e-4, rtol=0)


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16])
def test_half_precision_safetensors_are_read_exactly(
    dtype: torch.dtype, tiny: Callable[[str], Path], tmp_path: Path
) -> None:
    folder = tmp_path / "half"
    shutil.copytree(tiny("llama"), folder)
    AutoModelForCausalLM.from_pretrained(folder, dtype=dtype).save_pretrained(folder)
    assert load_file(folder / "model.safetensors")["model.norm.weight"].dtype == dtype
    prompt = random_tokens(38, 1)
    (ours,) = run(load(folder, "torch"), [prompt], [[0, 1, 2]], [[38]], [0])
    torch.testing.assert_close(ours, reference_logits(folder, [prompt])[0], atol=1e-4, rtol=0)


class QuantisedWeights(FolderWeights):
    """A folder's tensors as if a GGUF file stored its matrices quantised."""

    def __init__(self, files: ModelFiles, kind: gguf.GGMLQuantizationType) -> None:
        super().__init__(files.source.path, files.source.weight_files())
        self._kind = kind

    def read(self, name: str, shape: tuple[int, ...]) -> Tensor:
        stored = self.stored(name, shape)
        if stored is None:
            return super().read(name, shape)
        return torch.from_numpy(gguf.quants.dequantize(stored.data, self._kind))

    def stored(self, name: str, shape: tuple[int, ...]) -> StoredRows | None:
        if "_proj.weight" not in name and "lm_head" not in name:
            return None
        return StoredRows(self._kind, gguf.quants.quantize(super().read(name, shape).numpy(), self._kind))


@pytest.mark.parametrize("kind", ["Q4_0", "Q4_1", "Q8_0", "Q5_0"])
@pytest.mark.parametrize("family", ["llama", "qwen2"])
def test_stored_weights_compute_what_their_dequantised_values_do(
    kind: str, family: str, tiny: Callable[[str], Path]
) -> None:
    files = open_model(str(tiny(family)))
    weights = QuantisedWeights(files, gguf.GGMLQuantizationType[kind])
    native = NativeDecoder(files.config, weights, options("native", "stored"), BLOCKS)
    plain = TorchDecoder(files.config, weights, options("torch", "stored"), BLOCKS)
    prompt = random_tokens(60, 1)
    results = [run(decoder, [prompt], [[3, 2, 1, 0]], [[50, 9, 1]], [0])[0] for decoder in (native, plain)]
    torch.testing.assert_close(results[0], results[1], atol=1e-4, rtol=0)
