"""The engine on a tiny checkpoint: caching, batching, chunking and preemption never change an answer."""

from __future__ import annotations

import random
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import pytest

from engine import Engine
from engine.block_hash import BlockHasher, Namespace
from engine.config import EngineConfig
from engine.errors import (
    DuplicateRequestError,
    EmptyPromptError,
    EngineConfigError,
    InvalidSamplingError,
    InvalidSchedulingError,
    InvalidTokenIdsError,
    PromptTooLongError,
    QueueFullError,
    RequestError,
)
from engine.interface import FinishReason, GenerationRequest, SamplingParams, TokenOutput

KEY = b"0123456789abcdef"
GREEDY = SamplingParams(max_tokens=12, ignore_eos=True)
RANDOM = SamplingParams(max_tokens=12, ignore_eos=True, temperature=1.0, top_p=0.9, seed=3)

Load = Callable[..., Engine]


class Clock:
    """Time as a test sets it."""

    now = 100.0

    def __call__(self) -> float:
        return self.now


@pytest.fixture
def clock() -> Clock:
    return Clock()


@pytest.fixture
def load(tiny: Callable[[str], Path], clock: Clock) -> Load:
    def build(**options: Any) -> Engine:
        defaults: dict[str, Any] = {"precision": "fp32", "threads": 1, "kv_blocks": 64, "block_hash_key": KEY}
        chosen = defaults | {"device": "cpu"} | options
        return Engine(EngineConfig(model=str(tiny("llama")), **chosen), clock)

    return build


def prompts(count: int, shared: int = 40) -> list[list[int]]:
    """Prompts with a common prefix and ends of their own."""
    rng = random.Random(5)
    prefix = [rng.randrange(2, 320) for _ in range(shared)]
    return [prefix + [rng.randrange(2, 320) for _ in range(rng.randrange(1, 50))] for _ in range(count)]


def answers(
    engine: Engine, batch: Sequence[Sequence[int]], sampling: SamplingParams
) -> list[tuple[int, ...]]:
    result = [answer.token_ids for answer in engine.generate(batch, sampling)]
    engine.check()
    return result


@pytest.mark.parametrize("sampling", [GREEDY, RANDOM], ids=["greedy", "random"])
@pytest.mark.parametrize("precision", ["fp32", "fp16"])
def test_an_answer_depends_on_nothing_but_its_request(
    load: Load, sampling: SamplingParams, precision: str
) -> None:
    batch = prompts(8)
    fresh = [answers(load(precision=precision), [prompt], sampling)[0] for prompt in batch[:3]]
    engine = load(precision=precision)
    alone = [answers(engine, [prompt], sampling)[0] for prompt in batch]
    assert alone[:3] == fresh
    assert answers(engine, batch, sampling) == alone
    engine.flush()
    assert answers(engine, batch, sampling) == alone
    assert answers(load(precision=precision, prefill_tokens_per_step=5), batch, sampling) == alone
    crowded = load(precision=precision, kv_blocks=14)
    assert answers(crowded, batch, sampling) == alone
    assert answers(load(precision=precision, block_size=4, kv_blocks=256), batch, sampling) == alone


def test_preemption_happens_and_changes_nothing(load: Load) -> None:
    batch = prompts(6, shared=0)
    sampling = SamplingParams(max_tokens=60, ignore_eos=True)
    roomy, crowded = load(), load(kv_blocks=12)
    assert answers(crowded, batch, sampling) == answers(roomy, batch, sampling)
    assert crowded.preemptions > 0


def test_an_interrupted_answer_continues_elsewhere_as_it_would_have_here(load: Load) -> None:
    """A node that takes over gets prompt and delivered tokens as its prompt, and the same seed."""
    prompt = prompts(1)[0]
    (whole,) = answers(load(), [prompt], RANDOM)
    rest = SamplingParams(max_tokens=7, ignore_eos=True, temperature=1.0, top_p=0.9, seed=3)
    (continued,) = answers(load(), [[*prompt, *whole[:5]]], rest)
    assert whole == whole[:5] + continued


def test_penalties_and_logprobs_survive_an_interruption(load: Load) -> None:
    engine = load()
    sampling = SamplingParams(
        max_tokens=12, ignore_eos=True, frequency_penalty=2.0, presence_penalty=1.0, logprobs=2
    )
    tokens = tuple(prompts(1)[0])
    engine.add_request(GenerationRequest("whole", tokens, engine.info.namespace, sampling))
    whole = run(engine)
    delivered = tuple(output.token_ids[0] for output in whole[:5])
    engine.add_request(
        GenerationRequest("rest", tokens + delivered, engine.info.namespace, sampling, resumed_tokens=5)
    )
    rest = run(engine)
    assert [output.token_ids for output in rest[:7]] == [output.token_ids for output in whole[5:]]
    for output in whole:
        (logprobs,) = output.logprobs
        assert len(logprobs.top) == 2
        assert logprobs.top[0][1] >= logprobs.top[1][1]
        assert logprobs.logprob <= logprobs.top[0][1]


def test_the_cache_is_used_and_told_of(load: Load) -> None:
    engine = load()
    prompt = prompts(1)[0]
    engine.generate([prompt], GREEDY)
    events = engine.take_events()
    sequence = [*prompt, *engine.generate([prompt], GREEDY)[0].token_ids]
    hashes = BlockHasher(KEY, 16).prefix(engine.info.namespace, sequence[:-1])
    assert list(events.stored) == hashes
    assert engine.take_events().stored == ()
    assert engine.generate([prompt], GREEDY)[0].cached_tokens == len(prompt) - 1
    assert engine.stats.kv_blocks_used == 0
    assert engine.stats.kv_blocks_cached == len(hashes)
    engine.flush()
    assert set(engine.take_events().removed) == set(hashes)
    assert engine.generate([prompt], GREEDY)[0].cached_tokens == 0


def test_tenants_do_not_share_a_cache(load: Load) -> None:
    engine = load()
    tokens = tuple(prompts(1)[0])
    cached = []
    for salt in (b"", b"alice", b"bob", b"alice"):
        namespace = Namespace(engine.info.namespace.model, salt)
        engine.add_request(GenerationRequest("r", tokens, namespace, GREEDY))
        cached.append(run(engine)[-1].cached_tokens)
    assert cached == [0, 0, 0, len(tokens) - 1]


def run(engine: Engine) -> list[TokenOutput]:
    outputs = []
    while engine.busy:
        outputs += engine.step()
    return outputs


def test_outputs_number_their_tokens_and_end_with_a_reason(load: Load) -> None:
    engine = load()
    engine.add_request(GenerationRequest("r", (5, 6, 7), engine.info.namespace, GREEDY))
    outputs = run(engine)
    assert [output.first_index for output in outputs] == list(range(12))
    assert [output.finish_reason for output in outputs] == [None] * 11 + [FinishReason.LENGTH]
    stop = outputs[3].token_ids[0]
    first = [output.token_ids[0] for output in outputs].index(stop)
    sampling = SamplingParams(max_tokens=12, ignore_eos=True, stop_token_ids=frozenset({stop}))
    engine.add_request(GenerationRequest("r", (5, 6, 7), engine.info.namespace, sampling))
    outputs = run(engine)
    assert len(outputs) == first + 1
    assert outputs[-1].finish_reason is FinishReason.STOP
    assert outputs[-1].token_ids == (stop,)


def test_answers_end_at_the_context_and_at_the_cache(load: Load) -> None:
    endless = SamplingParams(max_tokens=10_000, ignore_eos=True)
    engine = load()
    (answer,) = engine.generate([[5] * 200], endless)
    assert (len(answer.token_ids), answer.finish_reason) == (56, FinishReason.LENGTH)
    small = load(kv_blocks=4)
    (answer,) = small.generate([[5] * 20], endless)
    assert len(answer.token_ids) == 44
    small.check()


@pytest.mark.parametrize(
    ("tokens", "sampling", "error"),
    [
        ((), GREEDY, EmptyPromptError),
        ((5,) * 256, GREEDY, PromptTooLongError),
        ((5, 320), GREEDY, InvalidTokenIdsError),
        ((5, -1), GREEDY, InvalidTokenIdsError),
        ((5,), SamplingParams(temperature=float("nan")), InvalidSamplingError),
    ],
)
def test_bad_requests_are_refused_and_the_engine_lives_on(
    load: Load, tokens: tuple[int, ...], sampling: SamplingParams, error: type[RequestError]
) -> None:
    engine = load()
    with pytest.raises(error):
        engine.add_request(GenerationRequest("r", tokens, engine.info.namespace, sampling))
    assert not engine.busy
    assert engine.generate([[5, 6]], GREEDY)


@pytest.mark.parametrize(
    "options", [{"client": "x" * 129}, {"priority": 3}, {"priority": -3}, {"deadline": float("nan")}]
)
def test_absurd_scheduling_is_refused_by_name(load: Load, options: dict[str, Any]) -> None:
    engine = load()
    with pytest.raises(InvalidSchedulingError, match=next(iter(options))):
        engine.add_request(GenerationRequest("r", (5, 6), engine.info.namespace, GREEDY, **options))


def test_duplicates_and_full_queues_are_refused(load: Load) -> None:
    engine = load(max_waiting=2)
    for name in ("a", "b"):
        engine.add_request(GenerationRequest(name, (5, 6), engine.info.namespace, GREEDY))
    with pytest.raises(DuplicateRequestError):
        engine.add_request(GenerationRequest("a", (5, 6), engine.info.namespace, GREEDY))
    with pytest.raises(QueueFullError):
        engine.add_request(GenerationRequest("c", (5, 6), engine.info.namespace, GREEDY))


def test_abort_frees_blocks_at_once(load: Load) -> None:
    engine = load()
    engine.add_request(GenerationRequest("a", (5,) * 100, engine.info.namespace, GREEDY))
    engine.step()
    assert engine.stats.kv_blocks_used > 0
    engine.abort("a")
    engine.abort("never seen")
    assert (engine.stats.kv_blocks_used, engine.busy, engine.step()) == (0, False, [])
    engine.check()


@pytest.mark.parametrize("waits", [True, False], ids=["waiting", "running"])
def test_a_deadline_ends_a_request_and_frees_everything(load: Load, clock: Clock, waits: bool) -> None:
    engine = load(max_running=1)
    if waits:
        engine.add_request(GenerationRequest("first", (5, 6), engine.info.namespace, GREEDY))
        engine.step()
    request = GenerationRequest("late", (5,) * 40, engine.info.namespace, GREEDY, deadline=clock.now + 1)
    engine.add_request(request)
    before = [output for output in engine.step() if output.request_id == "late"]
    clock.now += 1
    (end,) = [output for output in engine.step() if output.request_id == "late"]
    assert end == TokenOutput("late", 0 if waits else 1, (), 0, FinishReason.DEADLINE)
    assert len(before) == (0 if waits else 1)
    assert all(output.request_id == "first" for output in run(engine))
    assert engine.stats.kv_blocks_used == 0
    engine.check()


def test_a_deadline_that_has_passed_costs_nothing(load: Load, clock: Clock) -> None:
    engine = load()
    engine.add_request(GenerationRequest("r", (5,) * 40, engine.info.namespace, GREEDY, deadline=clock.now))
    (end,) = run(engine)
    assert end.finish_reason is FinishReason.DEADLINE
    assert engine.stats.kv_blocks_cached == 0


def test_a_begun_answer_that_waits_says_that_it_lives(load: Load, clock: Clock) -> None:
    engine = load(kv_blocks=6)
    sampling = SamplingParams(max_tokens=40, ignore_eos=True)
    for name, start in (("a", 5), ("b", 105)):
        tokens = tuple(range(start, start + 30))
        engine.add_request(GenerationRequest(name, tokens, engine.info.namespace, sampling))
    outputs = []
    while engine.busy:
        clock.now += 0.2
        outputs += engine.step()
    assert engine.preemptions > 0
    wordless = [output for output in outputs if not output.token_ids]
    assert wordless
    assert all(0 < output.first_index < 40 and output.finish_reason is None for output in wordless)
    assert sum(len(output.token_ids) for output in outputs) == 80


def test_a_batch_larger_than_the_queue_is_answered_whole(load: Load) -> None:
    engine = load(max_waiting=2, max_running=2)
    batch = prompts(7)
    assert answers(engine, batch, GREEDY) == answers(load(), batch, GREEDY)


def test_one_bad_prompt_of_a_batch_leaves_nothing_behind(load: Load) -> None:
    engine = load()
    with pytest.raises(EmptyPromptError):
        engine.generate([[5, 6], []], GREEDY)
    assert not engine.busy


def test_stop_strings_end_answers_offline_too_across_token_borders(load: Load) -> None:
    """Every token of the tiny model is one character, so that two of them span a border."""
    engine = load()
    batch = prompts(3)
    whole = engine.generate(batch, RANDOM)
    text = whole[1].text
    middle = len(text) // 2
    stop = text[middle : middle + 2]
    cut = engine.generate(batch, RANDOM, stop=["never said", stop])
    assert cut[1].text == text[: text.find(stop)]
    assert cut[1].finish_reason is FinishReason.STOP
    assert cut[1].token_ids == whole[1].token_ids[: len(cut[1].token_ids)]
    for answer, complete in zip(cut, whole, strict=True):
        assert complete.text.startswith(answer.text)
        assert stop not in answer.text
    assert engine.stats.kv_blocks_used == 0
    with pytest.raises(InvalidSamplingError, match="stop string"):
        engine.generate(batch, RANDOM, stop="")


def test_the_load_advertises_what_prompts_get_beside_streams(load: Load) -> None:
    engine = load(prefill_tokens_per_step=400)
    assert engine.stats.prefill_tokens_per_step == 400
    engine.add_request(GenerationRequest("r", (5, 6), engine.info.namespace, GREEDY))
    engine.step()
    stats = engine.stats
    room = int(2.0 * stats.seconds_per_decode_step / stats.seconds_per_prefill_token)
    assert stats.prefill_tokens_per_step == max(16, min(400, room))


def test_stats_say_what_is_queued_and_what_steps_cost(load: Load) -> None:
    engine = load(max_running=1)
    assert engine.stats.seconds_per_prefill_token > 0
    assert engine.stats.seconds_per_decode_step > 0
    engine.generate([[5] * 64], GREEDY)
    for name in ("a", "b"):
        engine.add_request(GenerationRequest(name, (*(5,) * 64, 9, 9), engine.info.namespace, GREEDY))
    assert (engine.stats.running, engine.stats.waiting) == (0, 2)
    assert engine.stats.queued_prefill_tokens == 2 * 2
    engine.step()
    assert (engine.stats.running, engine.stats.waiting) == (1, 1)
    assert engine.stats.queued_prefill_tokens == 2


@pytest.mark.parametrize(
    "option", [{"threads": -1}, {"precision": "int3"}, {"kv_memory_bytes": 1}, {"block_hash_key": b"short"}]
)
def test_absurd_options_are_refused_by_name(load: Load, option: dict[str, Any]) -> None:
    with pytest.raises(EngineConfigError, match=next(iter(option))):
        load(**option)
