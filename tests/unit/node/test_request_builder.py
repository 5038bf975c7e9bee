"""What a request must be like, and that every refusal says how to mend it."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, cast

import pytest

from engine.tokenizer import Tokenizer
from node.errors import InvalidRequestError, UnknownModelError
from node.request_builder import Prompt, RequestBuilder, SamplingOptions
from node.tenants import Caller
from tests.unit.node.fakes import INFO, FakeTokenizer


class ChatTokenizer(FakeTokenizer):
    chat_takes_tools = False

    def encode_chat(
        self, messages: Sequence[Mapping[str, Any]], tools: Sequence[Mapping[str, Any]] = ()
    ) -> list[int]:
        return self.encode("".join(message["content"] for message in messages))


@pytest.fixture
def builder() -> RequestBuilder:
    return RequestBuilder(cast(Tokenizer, ChatTokenizer()), INFO)


def test_text_ids_and_chats_become_exact_token_ids(builder: RequestBuilder) -> None:
    expected = (72, 105)
    prompts: list[Prompt] = ["Hi", [72, 105], [{"role": "user", "content": "Hi"}]]
    for prompt in prompts:
        assert builder.build(prompt, SamplingOptions()).token_ids == expected


@pytest.mark.parametrize(
    ("prompt", "says"),
    [
        ("", "empty"),
        ([], "empty"),
        ([{"role": "user", "content": ""}], "no text"),
        ([{"role": "robot", "content": "x"}], "unknown chat role 'robot'"),
        ("x" * 128, "128 tokens and the model's context 128"),
        ("x" * 100_000, "100000 characters"),
        ([0, 1000], "outside the vocabulary of 1000"),
        ([-1], "outside the vocabulary"),
    ],
)
def test_a_bad_prompt_is_refused_with_the_remedy(builder: RequestBuilder, prompt: Prompt, says: str) -> None:
    with pytest.raises(InvalidRequestError, match=says):
        builder.build(prompt, SamplingOptions())


@pytest.mark.parametrize(
    ("options", "parameter"),
    [
        (SamplingOptions(max_tokens=0), "max_tokens"),
        (SamplingOptions(temperature=-0.1), "temperature"),
        (SamplingOptions(temperature=float("nan")), "temperature"),
        (SamplingOptions(top_p=0.0), "top_p"),
        (SamplingOptions(top_p=1.5), "top_p"),
        (SamplingOptions(top_k=-1), "top_k"),
        (SamplingOptions(stop=("",)), "stop"),
        (SamplingOptions(stop=("x",) * 17), "stop"),
        (SamplingOptions(seed=1 << 64), "seed"),
        (SamplingOptions(min_p=1.5), "min_p"),
        (SamplingOptions(repetition_penalty=0.0), "repetition_penalty"),
        (SamplingOptions(presence_penalty=2.5), "presence_penalty"),
        (SamplingOptions(frequency_penalty=float("nan")), "frequency_penalty"),
        (SamplingOptions(logit_bias=((1000, 1.0),)), "logit_bias"),
        (SamplingOptions(logprobs=21), "logprobs"),
        (SamplingOptions(stop_token_ids=(1000,)), "stop_token_ids"),
    ],
)
def test_absurd_sampling_is_refused_by_name(
    builder: RequestBuilder, options: SamplingOptions, parameter: str
) -> None:
    with pytest.raises(InvalidRequestError) as refusal:
        builder.build("x", options)
    assert refusal.value.parameter == parameter


def test_the_answer_is_bounded_by_the_context(builder: RequestBuilder) -> None:
    assert builder.build("x" * 120, SamplingOptions(max_tokens=500)).sampling.max_tokens == 8


def test_a_seed_is_drawn_when_none_is_given_and_kept_when_one_is(builder: RequestBuilder) -> None:
    assert builder.build("x", SamplingOptions(seed=7)).sampling.seed == 7
    drawn = {builder.build("x", SamplingOptions()).sampling.seed for _ in range(8)}
    assert len(drawn) == 8


def test_unknown_models_and_policies_are_named(builder: RequestBuilder) -> None:
    with pytest.raises(UnknownModelError, match="'other' is not served here; this node serves 'fake'"):
        builder.build("x", SamplingOptions(), model="other")
    with pytest.raises(InvalidRequestError, match="longest-prefix"):
        builder.build("x", SamplingOptions(), policy="fastest")


def test_a_salt_separates_the_namespace(builder: RequestBuilder) -> None:
    tenant = Caller(b"tenant", "ada")
    assert builder.build("x", SamplingOptions(), caller=tenant).namespace.salt == b"tenant"
    assert builder.build("x", SamplingOptions()).namespace == INFO.namespace
