"""The engine model behaves as the engine's scheduler and cache do."""

from __future__ import annotations

import pytest

from overlay.core.types import BlockHash
from overlay.sim.routing.block_cache import BlockCache
from overlay.sim.routing.calibration import Calibration, CalibrationError
from overlay.sim.routing.engine_model import EngineModel, Job, Progress

SLOW = Calibration(
    seconds_per_prefill_token=0.001,
    step_overhead_s=0.0,
    decode_steps=((1, 0.020), (4, 0.050)),
    prefill_tokens_per_step=100,
    max_running=4,
)


def blocks(first: int, count: int) -> list[BlockHash]:
    return [BlockHash(number) for number in range(first, first + count)]


def job(tokens: int, first: int, answer: int = 1) -> Job:
    return Job(tokens, blocks(first, (tokens + answer) // 16), answer)


def finish(engine: EngineModel) -> list[Progress]:
    news = []
    while (at := engine.next_at) is not None:
        news += engine.run_to(at)
    return news


def test_a_lone_prompt_takes_its_tokens_times_the_rate_and_its_answer_a_step_a_token() -> None:
    engine = EngineModel(SLOW, 16)
    engine.submit(5.0, job(320, 1, answer=11))
    first, last = finish(engine)
    assert first.first_token
    assert first.at == pytest.approx(5.32)
    assert last.finished
    assert last.at == pytest.approx(5.32 + 10 * 0.020)
    assert engine.busy_s == pytest.approx(0.52)


def test_a_cached_prefix_is_not_computed_again() -> None:
    engine = EngineModel(SLOW, 16)
    engine.submit(0.0, job(320, 1))
    finish(engine)
    again = job(320, 1)
    engine.submit(1.0, again)
    (news,) = finish(engine)
    assert again.cached_tokens == 304  # the last token is always computed, and with it its block
    assert news.at == pytest.approx(1.016)


def test_a_prompt_waits_for_a_prefix_that_is_being_computed() -> None:
    engine = EngineModel(SLOW, 16)
    engine.submit(0.0, job(320, 1))
    second = Job(340, [*blocks(1, 20), BlockHash(99)], 1)
    engine.submit(0.01, second)
    finish(engine)
    assert second.cached_tokens == 320


def test_prompts_beside_running_streams_are_slowed_but_do_not_stall_them() -> None:
    """A step takes at most three times as long as one without prompts."""
    engine = EngineModel(SLOW, 16)
    engine.submit(0.0, job(16, 1, answer=100))
    engine.run_to(0.1)
    assert engine.load().prefill_tokens_per_step == 40
    engine.submit(0.1, job(400, 100))
    news = next(each for each in finish(engine) if each.first_token)
    assert news.at == pytest.approx(0.1 + 10 * 0.060, abs=0.021)


def test_what_is_seen_between_steps_is_what_stepping_one_by_one_shows() -> None:
    def ends(looks: int) -> list[float]:
        engine = EngineModel(SLOW, 16)
        seen = []
        for number in range(6):
            engine.submit(number * 0.05, job(200 + 16 * number, 1 + 50 * number, answer=20))
            for look in range(looks):
                seen += engine.run_to(number * 0.05 + 0.05 * (look + 1) / (looks + 1))
            seen += engine.run_to((number + 1) * 0.05)
        return [each.at for each in [*seen, *finish(engine)]]

    assert ends(0) == pytest.approx(ends(7))


def test_blocks_are_evicted_oldest_first_and_told() -> None:
    engine = EngineModel(SLOW.with_kv_blocks(30), 16)
    engine.submit(0.0, job(320, 1))
    finish(engine)
    assert engine.cache.take_events() == (blocks(1, 20), [])
    engine.submit(1.0, job(320, 100))
    finish(engine)
    stored, removed = engine.cache.take_events()
    assert set(stored) == set(blocks(100, 20))
    assert removed == [BlockHash(number) for number in range(20, 20 - len(removed), -1)]
    assert 10 <= len(removed) <= 12
    assert len(engine.cache) <= 30


def test_too_little_room_for_all_preempts_the_youngest_and_all_finish() -> None:
    engine = EngineModel(SLOW.with_kv_blocks(12), 16)
    for number in range(3):
        engine.submit(0.0, job(40, 1 + 50 * number, answer=80))
    ended = [each for each in finish(engine) if each.finished]
    assert len(ended) == 3
    assert engine.preemptions > 0
    assert engine.cache.used == 0


def test_it_says_busy_by_what_is_left_to_compute() -> None:
    engine = EngineModel(Calibration(max_queued_tokens=500), 16)
    engine.submit(0.0, job(800, 1))
    assert not engine.accepts_peers
    assert engine.accepts_clients
    assert not engine.load().accepting
    finish(engine)
    assert engine.accepts_peers


def test_a_cache_gives_back_what_it_handed_out() -> None:
    cache = BlockCache(4)
    assert cache.allocate(3)
    assert not cache.allocate(2)
    cache.insert(BlockHash(1))
    cache.give_back(2)
    assert (cache.used, cache.available) == (1, 3)
    cache.release([BlockHash(1)])
    assert cache.allocate(4)
    assert cache.take_events() == ([], [])


@pytest.mark.parametrize(
    ("content", "problem"),
    [
        ("[]", "object"),
        ("{", "JSON"),
        ('{"speed": 1}', "unknown fields: speed"),
        ('{"decode_steps": [[8, 1.0], [1, 1.0]]}', "rising"),
        ('{"seconds_per_prefill_token": 0}', "seconds_per_prefill_token"),
    ],
)
def test_a_wrong_calibration_is_refused_with_the_reason(
    content: str, problem: str, tmp_path_factory: pytest.TempPathFactory
) -> None:
    path = tmp_path_factory.mktemp("calibration") / "engine.json"
    path.write_text(content)
    with pytest.raises(CalibrationError, match=problem):
        Calibration.from_json(path)


def test_a_calibration_survives_its_file(tmp_path_factory: pytest.TempPathFactory) -> None:
    path = tmp_path_factory.mktemp("calibration") / "engine.json"
    path.write_text(Calibration.datacenter().to_json())
    assert Calibration.from_json(path) == Calibration.datacenter()
