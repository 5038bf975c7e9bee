"""Writes a tiny checkpoint folder as a GGUF file, with its matrices in any of GGML's types."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import gguf
import numpy as np
import numpy.typing as npt
from gguf.constants import GGML_QUANT_SIZES, GGMLQuantizationType
from safetensors.numpy import load_file

Floats = npt.NDArray[np.float32]

_LAYER = {
    "self_attn.q_proj": "attn_q",
    "self_attn.k_proj": "attn_k",
    "self_attn.v_proj": "attn_v",
    "self_attn.o_proj": "attn_output",
    "self_attn.q_norm": "attn_q_norm",
    "self_attn.k_norm": "attn_k_norm",
    "mlp.gate_proj": "ffn_gate",
    "mlp.up_proj": "ffn_up",
    "mlp.down_proj": "ffn_down",
    "input_layernorm": "attn_norm",
    "post_attention_layernorm": "ffn_norm",
}
_OTHERS = {
    "model.embed_tokens.weight": "token_embd.weight",
    "model.norm.weight": "output_norm.weight",
    "lm_head.weight": "output.weight",
}
_SCALES = {"Q2_K": (80, 82), "Q3_K": (108,), "Q4_K": (0, 2), "Q5_K": (0, 2), "Q6_K": (208,)}
"""Where in a block of a K-quant its fp16 scales lie."""


def write_gguf_checkpoint(
    folder: Path, path: Path, kind: str, metadata: dict[str, Any] | None = None, **tensors: Floats
) -> Path:
    """Converts `folder`; `metadata` is added under the architecture's name, `tensors` as F32.

    K-quants, which only llama.cpp itself writes, get random values of the right size instead.
    """
    config = json.loads((folder / "config.json").read_text())
    architecture = "llama" if config["model_type"] == "mistral" else config["model_type"]
    writer = gguf.GGUFWriter(path, architecture)
    _add_shape(writer, config)
    _add_tokenizer(writer, json.loads((folder / "tokenizer.json").read_text()))
    for name, value in (metadata or {}).items():
        key = f"{architecture}.{name}"
        if isinstance(value, str):
            writer.add_string(key, value)
        elif isinstance(value, int):
            writer.add_uint32(key, value)
        else:
            writer.add_float32(key, value)
    for name, values in load_file(folder / "model.safetensors").items():
        ordered = _permuted(name, values, config) if architecture == "llama" else values
        _add_tensor(writer, _gguf_name(name), ordered, GGMLQuantizationType[kind])
    for name, values in tensors.items():
        _add_tensor(writer, name.replace("__", "."), values, GGMLQuantizationType.F32)
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()
    return path


def _add_shape(writer: gguf.GGUFWriter, config: dict[str, Any]) -> None:
    head_dim = config.get("head_dim") or config["hidden_size"] // config["num_attention_heads"]
    writer.add_context_length(config["max_position_embeddings"])
    writer.add_embedding_length(config["hidden_size"])
    writer.add_block_count(config["num_hidden_layers"])
    writer.add_feed_forward_length(config["intermediate_size"])
    writer.add_head_count(config["num_attention_heads"])
    writer.add_head_count_kv(config["num_key_value_heads"])
    writer.add_key_length(head_dim)
    writer.add_value_length(head_dim)
    writer.add_rope_dimension_count(head_dim)
    writer.add_rope_freq_base(config["rope_parameters"]["rope_theta"])
    writer.add_layer_norm_rms_eps(config["rms_norm_eps"])
    writer.add_vocab_size(config["vocab_size"])


def _add_tokenizer(writer: gguf.GGUFWriter, tokenizer: dict[str, Any]) -> None:
    """The byte-level vocabulary, padded to the model's size as converters do."""
    tokens = sorted(tokenizer["model"]["vocab"], key=tokenizer["model"]["vocab"].__getitem__)
    tokens.append("ab")
    tokens += [f"[PAD{index}]" for index in range(len(tokens), 320)]
    writer.add_tokenizer_model("gpt2")
    writer.add_tokenizer_pre("default")
    writer.add_token_list(tokens)
    writer.add_token_types([3 if token in ("<s>", "</s>") else 1 for token in tokens])
    writer.add_token_merges(["a b"])
    writer.add_bos_token_id(0)
    writer.add_eos_token_id(1)


def _gguf_name(name: str) -> str:
    if name in _OTHERS:
        return _OTHERS[name]
    _, _, layer, rest = name.split(".", 3)
    module, _, kind = rest.rpartition(".")
    return f"blk.{layer}.{_LAYER[module]}.{kind}"


def _permuted(name: str, values: Floats, config: dict[str, Any]) -> Floats:
    """Llama's queries and keys with the two halves of each head interleaved, as llama.cpp rotates them."""
    for part, heads in (("q_proj", "num_attention_heads"), ("k_proj", "num_key_value_heads")):
        if part in name:
            shape = (config[heads], 2, values.shape[0] // config[heads] // 2, *values.shape[1:])
            return values.reshape(shape).swapaxes(1, 2).reshape(values.shape)
    return values


def _add_tensor(writer: gguf.GGUFWriter, name: str, values: Floats, kind: GGMLQuantizationType) -> None:
    if values.ndim == 1 or kind is GGMLQuantizationType.F32:
        writer.add_tensor(name, values.astype(np.float32))
    elif kind is GGMLQuantizationType.F16:
        writer.add_tensor(name, values.astype(np.float16))
    elif kind.name in _SCALES:
        writer.add_tensor(name, _random_blocks(values.shape, kind), raw_dtype=kind)
    else:
        writer.add_tensor(name, gguf.quants.quantize(values, kind), raw_dtype=kind)


def _random_blocks(shape: tuple[int, ...], kind: GGMLQuantizationType) -> npt.NDArray[np.uint8]:
    """Random quants under scales that keep the values below one."""
    elements, size = GGML_QUANT_SIZES[kind]
    rows, blocks = shape[0], shape[1] // elements
    rng = np.random.default_rng(rows)
    data = rng.integers(0, 256, (rows, blocks, size), dtype=np.uint8)
    for offset in _SCALES[kind.name]:
        scale = rng.uniform(1e-5, 1e-4, (rows, blocks, 1)).astype(np.float16)
        data[:, :, offset : offset + 2] = scale.view(np.uint8)
    return data.reshape(rows, blocks * size)
