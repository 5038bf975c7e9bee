"""What goes over the wire comes back the same: every sampling option, and what was asked for of tokens."""

from __future__ import annotations

from dataclasses import fields, replace
from typing import Any

import pytest

from engine.interface import SamplingParams, TokenLogprobs, TokenOutput
from node import wire
from node.errors import InvalidRequestError
from node.request_builder import SamplingOptions
from rumormill.v1 import inference_pb2, overlay_pb2

UNLIKE_DEFAULT: dict[str, Any] = {
    "max_tokens": 77,
    "temperature": 0.7,
    "top_p": 0.9,
    "top_k": 40,
    "seed": (1 << 64) - 1,
    "stop_token_ids": frozenset({3, 1}),
    "ignore_eos": True,
    "min_p": 0.05,
    "repetition_penalty": 1.1,
    "presence_penalty": -0.3,
    "frequency_penalty": 0.2,
    "logit_bias": ((5, -100.0), (9, 0.1)),
    "logprobs": 0,
    "prompt_logprobs": 0,
    "grammar": "start: /[0-9]+/",
}


def over_the_wire(sampling: SamplingParams) -> SamplingParams:
    message = inference_pb2.Sampling.FromString(wire.sampling_to_pb(sampling).SerializeToString())
    return wire.sampling_from_pb(message)


@pytest.mark.parametrize("name", [each.name for each in fields(SamplingParams)])
def test_every_sampling_option_reaches_the_peer_exactly(name: str) -> None:
    """To the last bit: the peer draws the very tokens that this node would."""
    changed = replace(SamplingParams(), **{name: UNLIKE_DEFAULT[name]})
    assert changed != SamplingParams()
    assert over_the_wire(changed) == changed


def test_defaults_and_all_options_at_once_survive() -> None:
    for sampling in (SamplingParams(), SamplingParams(**UNLIKE_DEFAULT)):
        assert over_the_wire(sampling) == sampling


def test_what_a_client_leaves_unset_stays_unset() -> None:
    assert wire.options_from_pb(inference_pb2.Sampling()) == SamplingOptions()
    zeros = inference_pb2.Sampling(max_tokens=0, temperature=0, logprobs=0, seed=0)
    assert wire.options_from_pb(zeros) == SamplingOptions(max_tokens=0, temperature=0, logprobs=0, seed=0)


def test_every_option_of_a_client_is_read() -> None:
    asked = wire.options_from_pb(wire.sampling_to_pb(SamplingParams(**UNLIKE_DEFAULT)))
    for name, value in UNLIKE_DEFAULT.items():
        got = getattr(asked, name)
        assert (sorted(got) if isinstance(got, tuple) else got) == (
            sorted(value) if isinstance(got, tuple) else value
        )


def test_a_schema_is_a_grammar() -> None:
    asked = wire.options_from_pb(inference_pb2.Sampling(json_schema='{"type": "integer"}'))
    assert asked.grammar.startswith("start: %json")
    for wrong in ("[1]", "{", '"' + "[" * 100_000):
        with pytest.raises(InvalidRequestError, match="json_schema"):
            wire.options_from_pb(inference_pb2.Sampling(json_schema=wrong))
    with pytest.raises(InvalidRequestError, match="exclude"):
        wire.options_from_pb(inference_pb2.Sampling(json_schema="{}", grammar="start: /a/"))


def test_log_probabilities_travel_with_their_tokens() -> None:
    logprobs = (TokenLogprobs(-0.1, ((7, -0.1), (8, -2.7))), TokenLogprobs(-1 / 3))
    output = TokenOutput("r", 4, (7, 9), 16, logprobs=logprobs, prompt_logprobs=logprobs[::-1])
    message = overlay_pb2.Tokens.FromString(wire.tokens_to_pb(output).SerializeToString())
    assert wire.tokens_from_pb("r", message) == output
