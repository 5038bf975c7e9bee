"""Decode steps, padded and replayed on static buffers, give what the same steps give by themselves."""

from __future__ import annotations

import itertools
from collections.abc import Callable
from pathlib import Path

import pytest
import torch

from engine.cuda.graphs import LARGEST_BATCH, batch_sizes
from engine.span import Span
from tests.unit.engine.cuda_cases import CASES, load_case
from tests.unit.engine.test_families import random_tokens

MOST = 6


@pytest.mark.parametrize("most", [1, 2, 3, 24, 32, 1000])
def test_batch_sizes_cover_every_batch_and_pad_to_less_than_twice(most: int) -> None:
    sizes = batch_sizes(most)
    assert sizes == sorted(set(sizes))
    assert sizes[0] == 1
    assert sizes[-1] == min(most, LARGEST_BATCH)
    assert all(large <= 2 * small for small, large in itertools.pairwise(sizes))


@pytest.mark.parametrize("case", CASES)
def test_a_replay_equals_the_step_and_touches_no_other_block(case: str, tiny: Callable[[str], Path]) -> None:
    replaying = load_case(case, tiny("llama"), max_running=MOST)
    plain = load_case(case, tiny("llama"), max_running=MOST)
    plain._graphs = None
    spare = slice(-replaying._block_size, None)
    graphs = replaying._graphs
    if graphs is None:
        pytest.skip("PyTorch's attention can't be captured")
    lengths = [3, 16, 17, 40, 9, 31, 55]
    prompts = [random_tokens(length, seed) for seed, length in enumerate(lengths)]
    tables = [list(range(4 * index, 4 * index + 4)) for index in range(len(prompts))]
    with torch.inference_mode():
        for decoder in (replaying, plain):
            prefills = [Span(0, length, table) for length, table in zip(lengths, tables, strict=True)]
            decoder.forward([token for prompt in prompts for token in prompt], prefills, [])
        for step, count in enumerate((7, 1, 6, 3, 2, 5, 1)):
            tokens = random_tokens(count, 50 + step)
            spans = [Span(lengths[i] + step, 1, tables[i]) for i in range(count)]
            assert graphs.fits(spans, range(count)) == (count <= MOST)
            logits = [decoder.forward(tokens, spans, range(count)) for decoder in (replaying, plain)]
            torch.testing.assert_close(logits[0], logits[1], atol=2e-5, rtol=0)
            for mine, other in (
                (replaying._cache.keys, plain._cache.keys),
                (replaying._cache.values, plain._cache.values),
            ):
                kept = slice(0, spare.start)
                torch.testing.assert_close(mine[:, kept], other[:, kept], atol=2e-5, rtol=0)


@pytest.mark.parametrize("case", CASES)
def test_results_outlive_the_next_replay(case: str, tiny: Callable[[str], Path]) -> None:
    decoder = load_case(case, tiny("llama"), max_running=2)
    with torch.inference_mode():
        first = decoder.forward([5, 6], [Span(0, 1, [0]), Span(0, 1, [1])], [0, 1])
        kept = first.clone()
        decoder.forward([7, 8], [Span(0, 1, [2]), Span(0, 1, [3])], [0, 1])
    assert torch.equal(first, kept)


def test_what_is_no_decode_step_is_not_replayed(tiny: Callable[[str], Path]) -> None:
    graphs = load_case("cpu-torch", tiny("llama"), max_running=2)._graphs
    assert graphs is not None
    one, two = Span(4, 1, [0]), Span(4, 2, [0])
    assert graphs.fits([one, one], [0, 1])
    assert not graphs.fits([one, two], [0, 2])
    assert not graphs.fits([one, one], [1])
    assert not graphs.fits([one, one, one], [0, 1, 2])
