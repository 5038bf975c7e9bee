"""Tiny checkpoints of every supported family, and the embedded model."""

from __future__ import annotations

import os
from collections.abc import Callable
from importlib.util import find_spec
from pathlib import Path
from typing import Any

import pytest

if find_spec("triton") is not None:
    import torch

    if not torch.cuda.is_available():
        os.environ["TRITON_INTERPRET"] = "1"  # read when triton is first imported

FAMILIES: dict[str, tuple[str, dict[str, Any]]] = {
    "llama": ("llama", {}),
    "llama-tied-bias": ("llama", {"tie_word_embeddings": True, "attention_bias": True, "mlp_bias": True}),
    "llama-multi-head": ("llama", {"num_key_value_heads": 4}),
    "llama-linear-rope": ("llama", {"rope_parameters": {"rope_type": "linear", "factor": 4.0}}),
    "llama3-rope": (
        "llama",
        {
            "rope_parameters": {
                "rope_type": "llama3",
                "rope_theta": 10_000.0,
                "factor": 8.0,
                "low_freq_factor": 1.0,
                "high_freq_factor": 4.0,
                "original_max_position_embeddings": 64,
            }
        },
    ),
    "llama-dynamic-rope": ("llama", {"rope_parameters": {"rope_type": "dynamic", "factor": 2.0}}),
    "llama-yarn": (
        "llama",
        {
            "rope_parameters": {
                "rope_type": "yarn",
                "rope_theta": 10_000.0,
                "factor": 8.0,
                "original_max_position_embeddings": 32,
                "beta_fast": 16,
                "beta_slow": 2,
                "mscale": 0.707,
                "mscale_all_dim": 1.0,
                "truncate": False,
            }
        },
    ),
    "smollm2": (
        "llama",
        {
            "tie_word_embeddings": True,
            "hidden_size": 144,
            "num_attention_heads": 9,
            "num_key_value_heads": 3,
            "initializer_range": 0.2,
            "rope_parameters": {"rope_type": "default", "rope_theta": 100_000.0},
        },
    ),
    "mistral": ("mistral", {"sliding_window": None, "head_dim": 32}),
    "mistral-window": ("mistral", {"sliding_window": 24}),
    "qwen2": ("qwen2", {"tie_word_embeddings": True}),
    "qwen2-yarn": (
        "qwen2",
        {
            "max_position_embeddings": 32,
            "rope_parameters": {
                "rope_type": "yarn",
                "rope_theta": 1_000_000.0,
                "factor": 4.0,
                "original_max_position_embeddings": 32,
            },
        },
    ),
    "qwen2-window": ("qwen2", {"use_sliding_window": True, "sliding_window": 20, "max_window_layers": 1}),
    "qwen3": ("qwen3", {"head_dim": 32}),
    "qwen3-tied": ("qwen3", {"head_dim": 32, "tie_word_embeddings": True, "num_key_value_heads": 1}),
}
"""Name -> (transformers model type, what differs from the common tiny shape)."""


def make_folder(folder: Path, family: str, shard_size: str = "50GB", **changes: Any) -> Path:
    """Writes a random two-layer checkpoint with a byte-level tokenizer."""
    import torch
    from tokenizers import Tokenizer, decoders, models, pre_tokenizers
    from transformers import AutoConfig, AutoModelForCausalLM, PreTrainedTokenizerFast

    kind, differences = FAMILIES[family]
    alphabet = sorted(pre_tokenizers.ByteLevel.alphabet())
    vocabulary = {"<s>": 0, "</s>": 1} | {letter: index + 2 for index, letter in enumerate(alphabet)}
    options = {
        "vocab_size": 320,
        "hidden_size": 64,
        "intermediate_size": 96,
        "num_hidden_layers": 2,
        "num_attention_heads": 4,
        "num_key_value_heads": 2,
        "max_position_embeddings": 256,
        "bos_token_id": 0,
        "eos_token_id": 1,
        "initializer_range": 0.3,
    }
    config = AutoConfig.for_model(kind, **(options | differences | changes))
    torch.manual_seed(7)
    model = AutoModelForCausalLM.from_config(config, dtype=torch.float32)
    with torch.no_grad():
        for name, parameter in model.named_parameters():
            if "norm" in name or "bias" in name:
                parameter.add_(torch.randn_like(parameter) * 0.2)
    model.save_pretrained(folder, max_shard_size=shard_size)
    tokenizer = Tokenizer(models.BPE(vocabulary, []))
    tokenizer.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    tokenizer.decoder = decoders.ByteLevel()
    fast = PreTrainedTokenizerFast(tokenizer_object=tokenizer, bos_token="<s>", eos_token="</s>")
    fast.chat_template = (
        "{% for message in messages %}{{ bos_token + message['role'] + ': ' + message['content'] + '\n' }}"
        "{% endfor %}{% if add_generation_prompt %}{{ 'assistant:' }}{% endif %}"
    )
    fast.save_pretrained(folder)
    return folder


@pytest.fixture(scope="session")
def checkpoints(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder for this session's tiny checkpoints and the cache they use."""
    return tmp_path_factory.mktemp("checkpoints")


@pytest.fixture
def tiny(checkpoints: Path, monkeypatch: pytest.MonkeyPatch) -> Callable[[str], Path]:
    """Makes a tiny checkpoint folder of a family, once per session, with a cache of its own."""
    monkeypatch.setenv("XDG_CACHE_HOME", str(checkpoints / "cache"))

    def get(family: str) -> Path:
        folder = checkpoints / family
        return folder if folder.is_dir() else make_folder(folder, family)

    return get


@pytest.fixture
def make_checkpoint(tiny: object) -> Callable[..., Path]:
    """The function that writes a checkpoint folder, for tests that damage theirs."""
    return make_folder
