"""The cost meter: the marginal cost of a token, whatever the base cost of a step."""

from __future__ import annotations

import random

import pytest

from engine.cost import LEAST_CHUNK, CostMeter


def feed(meter: CostMeter, base: float, slope: float, noise: float = 0.0) -> None:
    rng = random.Random(1)
    for _ in range(100):
        tokens = rng.choice((1, 2, 8, 64, 512))
        seconds = (base + slope * tokens) * (1 + rng.uniform(-noise, noise))
        meter.observe(tokens, tokens if tokens < 64 else 0, seconds)


def test_learns_the_slope_apart_from_the_base() -> None:
    meter = CostMeter()
    feed(meter, base=0.010, slope=0.0012)
    assert meter.seconds_per_prefill_token == pytest.approx(0.0012, rel=1e-6)
    feed(meter, base=0.010, slope=0.0012, noise=0.3)
    assert meter.seconds_per_prefill_token == pytest.approx(0.0012, rel=0.3)


def test_follows_a_machine_that_became_slower() -> None:
    meter = CostMeter()
    feed(meter, base=0.010, slope=0.001)
    feed(meter, base=0.030, slope=0.003)
    feed(meter, base=0.030, slope=0.003)
    assert meter.seconds_per_prefill_token == pytest.approx(0.003, rel=0.05)
    assert meter.seconds_per_decode_step > 0.03


def test_steps_of_one_size_give_their_average() -> None:
    meter = CostMeter()
    assert meter.seconds_per_prefill_token == 0.0
    for _ in range(3):
        meter.observe(10, 0, 0.5)
    assert meter.seconds_per_prefill_token == pytest.approx(0.05)


def test_prompts_beside_streams_get_what_keeps_a_step_within_three() -> None:
    meter = CostMeter()
    assert meter.prefill_allowance(4, 512) == 512
    feed(meter, base=0.010, slope=0.001)
    allowance = meter.prefill_allowance(4, 512)
    assert LEAST_CHUNK <= allowance < 512
    step = meter.seconds_per_decode_step + allowance * meter.seconds_per_prefill_token
    assert allowance == LEAST_CHUNK or step <= 3.01 * meter.seconds_per_decode_step
    assert meter.prefill_allowance(0, 512) == 512
    assert meter.prefill_allowance(4, 8) == 8
