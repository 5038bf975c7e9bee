"""Answers that must match a grammar, and log-probabilities of prompts: whole, in parts, begun elsewhere."""

from __future__ import annotations

import json
from collections.abc import Sequence
from dataclasses import replace
from typing import Any

import pytest

from engine.engine import Engine
from engine.errors import InvalidSamplingError
from engine.grammar import MAX_GRAMMAR_CHARACTERS, json_grammar
from engine.interface import FinishReason, GenerationRequest, SamplingParams, TokenLogprobs, TokenOutput
from engine.model_files import open_model
from engine.tokenizer import Tokenizer
from tests.reference import Reference

pytestmark = pytest.mark.model

PERSON: dict[str, Any] = {
    "type": "object",
    "properties": {"name": {"type": "string", "maxLength": 12}, "age": {"type": "integer", "maximum": 150}},
    "required": ["name", "age"],
    "additionalProperties": False,
}
DIGITS = "start: /[0-9]{5}/"


@pytest.fixture(scope="module")
def engine() -> Engine:
    return Engine.load(precision="fp32", kv_blocks=256, threads=1)


@pytest.fixture(scope="module")
def reference() -> Reference:
    return Reference()


@pytest.fixture(scope="module")
def tokenizer() -> Tokenizer:
    return Tokenizer(open_model("smollm2"))


def run(engine: Engine, *requests: GenerationRequest) -> dict[str, list[TokenOutput]]:
    outputs: dict[str, list[TokenOutput]] = {request.request_id: [] for request in requests}
    for request in requests:
        engine.add_request(request)
    while engine.busy:
        for output in engine.step():
            outputs[output.request_id].append(output)
        engine.check()
    return outputs


def ask(engine: Engine, token_ids: list[int], sampling: SamplingParams, name: str = "r") -> GenerationRequest:
    return GenerationRequest(name, tuple(token_ids), engine.info.namespace, sampling)


def tokens(outputs: list[TokenOutput]) -> list[int]:
    return [token for output in outputs for token in output.token_ids]


@pytest.mark.parametrize("temperature", [0.0, 1.0, 3.0])
def test_an_answer_matches_its_schema(engine: Engine, tokenizer: Tokenizer, temperature: float) -> None:
    sampling = SamplingParams(120, temperature, seed=5, grammar=json_grammar(PERSON))
    prompt = tokenizer.encode_chat([{"role": "user", "content": "Describe a person as JSON."}])
    outputs = run(engine, ask(engine, prompt, sampling))["r"]
    assert outputs[-1].finish_reason == FinishReason.STOP
    person = json.loads(tokenizer.decode(tokens(outputs)))
    assert set(person) == {"name", "age"}
    assert isinstance(person["age"], int)


def test_a_constraint_binds_its_own_answer_alone(engine: Engine, tokenizer: Tokenizer) -> None:
    prompt = tokenizer.encode("The capital of France is")
    free = ask(engine, prompt, SamplingParams(8), "free")
    alone = tokens(run(engine, free)["free"])
    bound = ask(engine, prompt, SamplingParams(20, grammar=DIGITS), "bound")
    together = run(engine, free, bound)
    assert tokens(together["free"]) == alone
    assert tokenizer.decode(tokens(together["bound"])).isdigit()
    assert together["bound"][-1].finish_reason == FinishReason.STOP


def test_another_engine_goes_on_inside_the_grammar(engine: Engine, tokenizer: Tokenizer) -> None:
    sampling = SamplingParams(120, 1.5, seed=9, grammar=json_grammar(PERSON))
    prompt = tokenizer.encode("A person:")
    whole = tokens(run(engine, ask(engine, prompt, sampling))["r"])
    for done in range(1, len(whole)):
        rest = replace(
            ask(engine, prompt + whole[:done], replace(sampling, max_tokens=120 - done)), resumed_tokens=done
        )
        assert whole[:done] + tokens(run(engine, rest)["r"]) == whole


def test_what_is_no_grammar_is_refused(engine: Engine, tokenizer: Tokenizer) -> None:
    for text, says in (
        ("start: nothing", "unknown name"),
        (json_grammar({"type": "cow"}), "Invalid type"),
        (json_grammar({"type": "object", "if": {}}), "Unimplemented keys"),
        ("start: /" + "a" * MAX_GRAMMAR_CHARACTERS + "/", "at most"),
    ):
        with pytest.raises(InvalidSamplingError, match=says) as refusal:
            engine.add_request(ask(engine, [1, 2], SamplingParams(grammar=text)))
        assert "\n" not in str(refusal.value)
    wrong = replace(ask(engine, [1, 2, 3], SamplingParams(grammar=DIGITS)), resumed_tokens=1)
    with pytest.raises(InvalidSamplingError, match="does not match"):
        engine.add_request(wrong)
    assert not engine.busy


def test_tokens_tell_their_bytes(tokenizer: Tokenizer) -> None:
    ids = tokenizer.encode("naïve 🙂 日本")
    assert b"".join(map(tokenizer.grammars.token_bytes, ids)) == "naïve 🙂 日本".encode()


@pytest.mark.parametrize("chunk", [7, 512])
def test_a_prompts_log_probabilities_are_the_models(
    tokenizer: Tokenizer, reference: Reference, chunk: int
) -> None:
    """Also where the prompt is cached, comes in chunks, and another runs beside it."""
    engine = Engine.load(precision="fp32", kv_blocks=256, threads=1, prefill_tokens_per_step=chunk)
    ids = tokenizer.encode(
        "The sea is salt, since rivers carry what they dissolve to it, and only water leaves."
    )
    run(engine, ask(engine, ids, SamplingParams(1)))
    scored = ask(engine, ids, SamplingParams(2, prompt_logprobs=3))
    outputs = run(engine, scored, ask(engine, ids[:9], SamplingParams(20), "other"))["r"]
    assert outputs[-1].cached_tokens == 0
    found = [each for output in outputs for each in output.prompt_logprobs]
    check_logprobs(found, reference, ids, 3)
    first = next(index for index, output in enumerate(outputs) if output.token_ids)
    assert not any(output.prompt_logprobs for output in outputs[first + 1 :])


def test_preempted_prompts_are_scored_once(tokenizer: Tokenizer, reference: Reference) -> None:
    engine = Engine.load(precision="fp32", kv_blocks=14, threads=1, prefill_tokens_per_step=32)
    ids = tokenizer.encode("one two three four five six seven eight nine ten " * 4)[:60]
    requests = [
        ask(engine, ids[start:], SamplingParams(60, 1.0, prompt_logprobs=0, ignore_eos=True), f"r{start}")
        for start in range(3)
    ]
    outputs = run(engine, *requests)
    assert engine.preemptions
    for start, request in enumerate(requests):
        found = [each for output in outputs[request.request_id] for each in output.prompt_logprobs]
        check_logprobs(found, reference, ids[start:], 0)


def check_logprobs(found: Sequence[TokenLogprobs], reference: Reference, ids: list[int], count: int) -> None:
    """Within rounding, what transformers says of the same prompt."""
    logprobs = reference.logprobs(ids)
    assert len(found) == len(ids) - 1
    for position, (token, each) in enumerate(zip(ids[1:], found, strict=True)):
        assert each.logprob == pytest.approx(float(logprobs[position, token]), abs=1e-3)
        values, top = logprobs[position].topk(count)
        assert [token for token, _ in each.top] == top.tolist()
        assert [value for _, value in each.top] == pytest.approx(values.tolist(), abs=1e-3)
