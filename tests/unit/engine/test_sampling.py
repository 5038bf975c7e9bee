"""Sampling: the right distribution, noise from (seed, position) alone, absurd parameters refused."""

from __future__ import annotations

from collections import Counter
from dataclasses import replace

import numpy as np
import pytest

from engine.errors import InvalidSamplingError
from engine.interface import SamplingParams
from engine.sampling import check_sampling, gumbel, is_plain_greedy, sample, token_logprobs

LOGITS = np.log(np.array([0.5, 0.25, 0.125, 0.075, 0.05], np.float32))
PINNED = [-0.923859264, 1.04290263, 0.198672097]
WARM = SamplingParams(temperature=1.0)


def draw_one(sampling: SamplingParams, position: int) -> int:
    return sample(LOGITS, sampling, range(position), position)


def draw(sampling: SamplingParams, count: int = 6_000) -> dict[int, float]:
    drawn = Counter(draw_one(sampling, position) for position in range(count))
    return {token: number / count for token, number in sorted(drawn.items())}


def test_temperature_zero_takes_the_largest() -> None:
    assert sample(LOGITS[::-1].copy(), SamplingParams(), [0], 1) == 4
    assert is_plain_greedy(SamplingParams())
    assert not is_plain_greedy(SamplingParams(logit_bias=((1, 1.0),)))


def test_draws_follow_the_softmax() -> None:
    shares = draw(WARM)
    for token, share in enumerate(np.exp(LOGITS)):
        assert shares[token] == pytest.approx(share, abs=0.03)


def test_temperature_sharpens() -> None:
    squared = np.exp(2 * LOGITS) / np.exp(2 * LOGITS).sum()
    shares = draw(replace(WARM, temperature=0.5))
    assert shares[0] == pytest.approx(squared[0], abs=0.03)


def test_top_k_and_top_p_keep_only_the_likeliest() -> None:
    assert set(draw(replace(WARM, top_k=2))) == {0, 1}
    assert set(draw(replace(WARM, top_p=0.7))) == {0, 1}
    assert set(draw(replace(WARM, top_p=1e-9))) == {0}
    both = draw(replace(WARM, top_k=3, top_p=0.6))
    assert set(both) == {0, 1}
    assert both[0] == pytest.approx(2 / 3, abs=0.03)


def test_min_p_keeps_what_is_likely_enough_beside_the_likeliest() -> None:
    assert set(draw(replace(WARM, min_p=0.2))) == {0, 1, 2}
    assert set(draw(replace(WARM, min_p=1.0))) == {0}
    assert set(draw(replace(WARM, min_p=0.1, top_k=2))) == {0, 1}


def test_penalties_and_biases_move_the_logits_they_say() -> None:
    """Token 0 leads 1 by log 2 = 0.69 and 2 by 1.39; 0 is in the prompt, 1 twice in the answer."""
    history, start = [0, 1, 1], 1

    def best(**options: object) -> int:
        return sample(LOGITS, SamplingParams(**options), history, start)  # type: ignore[arg-type]  # test shorthand

    assert best() == 0
    assert best(repetition_penalty=3.5) == 2
    assert best(presence_penalty=2.0) == 0
    assert best(logit_bias=((0, -0.8),)) == 1
    assert best(logit_bias=((0, -0.8),), presence_penalty=0.5) == 0
    assert best(logit_bias=((0, -0.8),), frequency_penalty=0.1) == 0
    assert best(logit_bias=((0, -0.8),), frequency_penalty=0.01) == 1
    assert best(logit_bias=((4, 5.0),)) == 4


def test_logprobs_are_the_softmax_s_own() -> None:
    result = token_logprobs(LOGITS + 3, token=2, count=2)
    assert result.logprob == pytest.approx(np.log(0.125), abs=1e-6)
    assert [token for token, _ in result.top] == [0, 1]
    assert result.top[1][1] == pytest.approx(np.log(0.25), abs=1e-6)
    assert token_logprobs(LOGITS, 0, 0).top == ()


def test_noise_is_a_function_of_seed_position_and_token_alone() -> None:
    ids = np.arange(1000)
    noise = gumbel(5, 17, ids)
    assert np.array_equal(noise[[3, 900]], gumbel(5, 17, ids[[3, 900]]))
    assert not np.isclose(noise, gumbel(5, 18, ids)).any()
    assert not np.isclose(noise, gumbel(6, 17, ids)).any()
    assert gumbel(2**64 - 1, 2**31, np.array([0])).shape == (1,)


def test_noise_never_changes_between_releases() -> None:
    """A node that takes over a stream may run another build; it must draw the same noise."""
    assert gumbel(42, 7, np.array([0, 1, 49_151])).round(9).tolist() == PINNED


def test_neighbouring_seeds_and_positions_are_uncorrelated() -> None:
    ids = np.arange(20_000)
    for other in (gumbel(1, 0, ids), gumbel(0, 1, ids), gumbel(0, 0, ids + 1)):
        assert abs(np.corrcoef(gumbel(0, 0, ids), other)[0, 1]) < 0.03


@pytest.mark.parametrize(
    "change",
    [
        {"max_tokens": 0},
        {"temperature": -0.1},
        {"temperature": float("nan")},
        {"temperature": float("inf")},
        {"top_p": 0.0},
        {"top_p": 1.01},
        {"top_p": float("nan")},
        {"top_k": -1},
        {"seed": -1},
        {"seed": 2**64},
        {"min_p": -0.1},
        {"min_p": 1.5},
        {"repetition_penalty": 0.0},
        {"presence_penalty": 2.5},
        {"frequency_penalty": float("nan")},
        {"logit_bias": ((100, 1.0),)},
        {"logit_bias": ((1, float("inf")),)},
        {"logprobs": 21},
        {"stop_token_ids": frozenset({100})},
        {"stop_token_ids": frozenset({-1})},
        {"stop_token_ids": frozenset(range(65))},
    ],
)
def test_absurd_parameters_are_refused_by_name(change: dict[str, object]) -> None:
    (name,) = change
    with pytest.raises(InvalidSamplingError, match=name):
        check_sampling(replace(SamplingParams(), **change), vocabulary_size=100)  # type: ignore[arg-type]  # on purpose
