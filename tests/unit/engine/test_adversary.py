"""Whatever a caller or a file says: a typed error or a right answer, and the engine lives on."""

from __future__ import annotations

import contextlib
import random
import shutil
from collections.abc import Callable
from dataclasses import fields
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from safetensors.numpy import load_file, save_file

from engine import Engine
from engine.config import EngineConfig
from engine.errors import EngineConfigError, EngineError, ModelDamagedError, ModelError, RequestError
from engine.gguf_file import GGUFFile
from engine.interface import GenerationRequest, SamplingParams
from engine.model import TorchDecoder
from engine.model_config import ModelConfig
from engine.model_files import open_model
from engine.weights import FolderWeights, GGUFWeights, Weights
from tests.unit.engine.gguf_checkpoints import write_gguf_checkpoint

KEY = b"0123456789abcdef"
ANYTHING = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats() | st.text(max_size=3) | st.binary(max_size=3),
    lambda inner: (
        st.lists(inner, max_size=3) | st.tuples(inner, inner) | st.frozensets(st.integers(), max_size=3)
    ),
)
PLAUSIBLE = {
    "max_tokens": st.integers(1, 20),
    "temperature": st.floats(0.0, 100.0),
    "top_p": st.floats(0.0, 1.0),
    "top_k": st.integers(0, 400),
    "seed": st.integers(0, 2**64 - 1),
    "min_p": st.floats(0.0, 1.0),
    "repetition_penalty": st.floats(0.01, 100.0),
    "presence_penalty": st.floats(-2.0, 2.0),
    "frequency_penalty": st.floats(-2.0, 2.0),
    "logit_bias": st.lists(st.tuples(st.integers(0, 330), st.floats(-100, 100)), max_size=4).map(tuple),
    "logprobs": st.none() | st.integers(0, 20),
    "stop_token_ids": st.frozensets(st.integers(0, 330), max_size=4),
    "ignore_eos": st.booleans(),
}
OF_REQUESTS = {
    "token_ids": st.lists(st.integers(0, 330), max_size=70).map(tuple),
    "resumed_tokens": st.integers(0, 5),
    "client": st.text(max_size=5),
    "priority": st.integers(-3, 3),
    "deadline": st.floats(),
}


@pytest.fixture(scope="module")
def engine(tmp_path_factory: pytest.TempPathFactory) -> Engine:
    from tests.unit.engine.conftest import make_folder

    folder = make_folder(tmp_path_factory.mktemp("adversary") / "llama", "llama")
    return Engine(EngineConfig(KEY, model=str(folder), precision="fp32", threads=1, kv_blocks=12))


def run(engine: Engine, requests: list[GenerationRequest]) -> None:
    """Requests side by side, each refused or answered as it asked."""
    asked = {}
    for request in requests:
        with contextlib.suppress(RequestError):
            engine.add_request(request)
            asked[request.request_id] = request.sampling
    counts = dict.fromkeys(asked, 0)
    ended = set()
    for _ in range(2000):
        if not engine.busy:
            break
        for output in engine.step():
            counts[output.request_id] += len(output.token_ids)
            ended |= {output.request_id} if output.finish_reason else set()
    assert ended == set(asked)
    assert all(count <= asked[name].max_tokens for name, count in counts.items())
    assert engine.stats.kv_blocks_used == 0
    engine.check()


@settings(max_examples=60, deadline=None, suppress_health_check=list(HealthCheck))
@given(
    samplings=st.lists(st.fixed_dictionaries({}, optional=PLAUSIBLE), min_size=1, max_size=4),
    others=st.lists(st.fixed_dictionaries({}, optional=OF_REQUESTS), min_size=4, max_size=4),
)
def test_any_plausible_mix_is_refused_or_answered(
    engine: Engine, samplings: list[dict[str, Any]], others: list[dict[str, Any]]
) -> None:
    run(
        engine,
        [
            GenerationRequest(
                **{
                    "request_id": str(name),
                    "token_ids": (5, 6, 7),
                    "namespace": engine.info.namespace,
                    "sampling": SamplingParams(**({"max_tokens": 5} | sampling)),
                    **other,
                }
            )
            for name, (sampling, other) in enumerate(zip(samplings, others, strict=False))
        ],
    )


@settings(max_examples=200, deadline=None, suppress_health_check=list(HealthCheck))
@given(name=st.sampled_from([field.name for field in fields(SamplingParams)]), value=ANYTHING)
def test_any_value_of_any_sampling_parameter_is_refused_or_answered(
    engine: Engine, name: str, value: object
) -> None:
    options: dict[str, Any] = {"max_tokens": 3, "temperature": 0.7, name: value}
    sampling = SamplingParams(**options)
    run(engine, [GenerationRequest("r", (5, 6, 7), engine.info.namespace, sampling)])


@settings(max_examples=200, deadline=None, suppress_health_check=list(HealthCheck))
@given(name=st.sampled_from([*OF_REQUESTS, "request_id"]), value=ANYTHING)
def test_any_value_of_any_part_of_a_request_is_refused_or_answered(
    engine: Engine, name: str, value: object
) -> None:
    options: dict[str, Any] = {
        "request_id": "r",
        "token_ids": (5, 6, 7),
        "namespace": engine.info.namespace,
        "sampling": SamplingParams(max_tokens=3),
        name: value,
    }
    run(engine, [GenerationRequest(**options)])


@pytest.mark.parametrize("prompt", [[2.5], ["a"], [None], 5, [[5]]])
def test_prompts_that_are_no_tokens_are_refused_offline(engine: Engine, prompt: Any) -> None:
    with pytest.raises(RequestError):
        engine.generate([prompt])
    assert not engine.busy


@settings(max_examples=100, deadline=None)
@given(name=st.sampled_from([field.name for field in fields(EngineConfig)]), value=ANYTHING)
def test_any_value_of_any_engine_option_is_refused_or_taken(name: str, value: object) -> None:
    options: dict[str, Any] = {"block_hash_key": KEY, name: value}
    with contextlib.suppress(EngineConfigError):
        EngineConfig(**options)


def decode_once(config: ModelConfig, weights: Weights) -> None:
    """Reads every tensor."""
    TorchDecoder(config, weights, EngineConfig(KEY, precision="fp32", threads=1), 4)


def test_a_safetensors_file_with_any_byte_of_its_header_changed_never_crashes(
    tiny: Callable[[str], Path], tmp_path: Path
) -> None:
    config = open_model(str(tiny("llama"))).config
    whole = (tiny("llama") / "model.safetensors").read_bytes()
    header = 8 + int.from_bytes(whole[:8], "little")
    damaged = tmp_path / "model.safetensors"
    rng = random.Random(1)
    refused = 0
    for position in [*range(9), *(rng.randrange(header) for _ in range(150))]:
        changed = bytearray(whole)
        changed[position] ^= 1 << rng.randrange(8)
        damaged.write_bytes(changed)
        try:
            decode_once(config, FolderWeights(tmp_path, [damaged]))
        except ModelError:
            refused += 1
    assert refused > 100


@pytest.mark.parametrize("kind", ["F32", "Q8_0"])
def test_a_gguf_checkpoint_with_any_byte_of_its_header_changed_never_crashes(
    kind: str, tiny: Callable[[str], Path], tmp_path: Path
) -> None:
    config = open_model(str(tiny("llama"))).config
    path = write_gguf_checkpoint(tiny("llama"), tmp_path / "m.gguf", kind)
    whole = path.read_bytes()
    with GGUFFile(path) as file:
        begins = min(tensor.offset for tensor in file.tensors.values())
    tensors = whole.index(b"output_norm.weight")
    rng = random.Random(1)
    refused = 0
    for position in [*range(24), *(rng.randrange(tensors - 200, begins) for _ in range(200))]:
        changed = bytearray(whole)
        changed[position] ^= 1 << rng.randrange(8)
        path.write_bytes(changed)
        try:
            with GGUFFile(path) as file:
                decode_once(config, GGUFWeights(file, config))
        except ModelError:
            refused += 1
    assert refused > 100


@pytest.mark.parametrize("value", [np.nan, np.inf, -np.inf])
def test_weights_that_are_no_numbers_are_refused_by_name(
    value: float, tiny: Callable[[str], Path], tmp_path: Path
) -> None:
    folder = tmp_path / "folder"
    shutil.copytree(tiny("llama"), folder)
    tensors = load_file(folder / "model.safetensors")
    name = "model.layers.1.mlp.down_proj.weight"
    tensors[name] = tensors[name].copy()
    tensors[name][3, 5] = value
    save_file(tensors, folder / "model.safetensors", {"format": "pt"})
    with pytest.raises(ModelDamagedError, match=name):
        Engine.load(str(folder), kv_blocks=4, threads=1)


@pytest.mark.parametrize("precision", ["fp32", "stored"])
def test_quantised_weights_that_are_no_numbers_are_refused_by_name(
    precision: str, tiny: Callable[[str], Path], tmp_path: Path
) -> None:
    path = write_gguf_checkpoint(tiny("llama"), tmp_path / "m.gguf", "Q8_0")
    with GGUFFile(path) as file:
        scale = file.tensors["blk.1.ffn_up.weight"].offset
    whole = bytearray(path.read_bytes())
    whole[scale : scale + 2] = np.float16(np.nan).tobytes()
    path.write_bytes(whole)
    with pytest.raises(ModelDamagedError, match="up_proj"):
        Engine.load(str(path), kv_blocks=4, threads=1, precision=precision)


def test_an_architecture_s_missing_part_is_named(tiny: Callable[[str], Path], tmp_path: Path) -> None:
    """A GGUF file of one layer less than it says."""
    path = write_gguf_checkpoint(tiny("llama"), tmp_path / "m.gguf", "F32")
    whole = path.read_bytes().replace(b"blk.1.attn_q.weight", b"blk.7.attn_q.weight")
    path.write_bytes(whole)
    with pytest.raises(EngineError, match=r"layers\.1\.self_attn\.q_proj"):
        Engine.load(str(path), kv_blocks=4, threads=1)
