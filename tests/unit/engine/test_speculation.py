"""Guessed tokens: taken from what was said before, given up where they fail, never part of an answer."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import pytest

from engine import Engine
from engine.config import EngineConfig
from engine.interface import SamplingParams
from engine.speculation import HIGHEST_PRICE, MOST_GUESSES, Speculator

TEXT = [1, 2, 3, 4, 5, 6, 7, 8, 9, 1, 2, 3]


def test_what_followed_the_last_tokens_before_is_guessed() -> None:
    assert Speculator().guess(TEXT, 0.1, 10) == (4, 5, 6, 7)
    assert Speculator().guess(TEXT, 0.1, 2) == (4, 5)
    assert Speculator().guess(TEXT, 0.1, 0) == ()
    assert Speculator().guess([1, 2, 3, 4], 0.1, 4) == ()
    assert Speculator().guess([5, 1, 2, 7, 9, 1, 2, 8, 6, 1, 2], 0.1, 1) == (8,)


def test_a_high_price_stops_guessing_and_so_do_guesses_that_fail() -> None:
    speculator = Speculator()
    assert speculator.guess(TEXT, HIGHEST_PRICE + 0.01, 4) == ()
    for _ in range(40):
        speculator.judge(MOST_GUESSES, 0)
    assert speculator.guess(TEXT, 0.1, 4) == ()
    tries = next(count for count in range(1000) if speculator.guess(TEXT, 0.1, 4))
    assert 5 < tries < 100


def test_guesses_that_come_true_make_them_longer() -> None:
    speculator = Speculator()
    short = len(speculator.guess(TEXT, 0.34, 4))
    for _ in range(40):
        speculator.judge(MOST_GUESSES, MOST_GUESSES)
    assert short < len(speculator.guess(TEXT, 0.34, 4)) == MOST_GUESSES


@pytest.mark.parametrize("temperature", [0.0, 0.5])
@pytest.mark.parametrize("backend", ["auto", "torch"])
def test_answers_are_the_same_with_guesses_and_without(
    backend: str, temperature: float, tiny: Callable[[str], Path], monkeypatch: pytest.MonkeyPatch
) -> None:
    config = EngineConfig(
        b"0123456789abcdef",
        model=str(tiny("llama")),
        precision="fp32",
        threads=1,
        kv_blocks=64,
        backend=backend,  # type: ignore[arg-type]  # one of the choices
    )
    prompts = [[5, 6, 7, 8] * 10, [9, 10, 11] * 5]
    few = tuple((token, 30.0) for token in (5, 6, 7))
    sampling = SamplingParams(
        max_tokens=60, ignore_eos=True, temperature=temperature, seed=7, logit_bias=few, logprobs=1
    )
    true: list[int] = []
    judge = Speculator.judge

    def noted(self: Speculator, guesses: int, right: int) -> None:
        true.append(right)
        judge(self, guesses, right)

    monkeypatch.setattr(Speculator, "judge", noted)
    monkeypatch.setattr("engine.cost.CostMeter.guess_price", lambda self, decoding: 0.01)
    engine = Engine(config)
    guessing = engine.generate(prompts, sampling)
    engine.check()
    assert sum(true) > 10
    monkeypatch.setattr("engine.cost.CostMeter.guess_price", lambda self, decoding: 1.0)
    count = len(true)
    engine.flush()
    plain = engine.generate(prompts, sampling)
    assert len(true) == count
    assert [answer.token_ids for answer in guessing] == [answer.token_ids for answer in plain]
