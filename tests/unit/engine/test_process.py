"""The engine's process: streams, aborts, typed errors, death of either side."""

from __future__ import annotations

import asyncio
import os
import signal
import subprocess
import sys
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from dataclasses import replace
from pathlib import Path

import pytest

from engine.config import EngineConfig
from engine.errors import (
    DuplicateRequestError,
    EngineDiedError,
    ModelDamagedError,
    ModelNotFoundError,
    PromptTooLongError,
)
from engine.interface import (
    BlockEvents,
    BlockListener,
    EngineStats,
    FinishReason,
    GenerationRequest,
    SamplingParams,
    StatsListener,
)
from engine.process import EngineProcess

KEY = b"0123456789abcdef"
SHORT = SamplingParams(max_tokens=8, ignore_eos=True)
LONG = SamplingParams(max_tokens=200, ignore_eos=True)
DEADLINE = 60.0


@pytest.fixture
def config(tiny: Callable[[str], Path]) -> EngineConfig:
    return EngineConfig(KEY, model=str(tiny("llama")), precision="fp32", threads=1, kv_blocks=32)


@asynccontextmanager
async def running(
    config: EngineConfig,
    on_blocks: BlockListener = lambda events: None,
    on_stats: StatsListener = lambda stats: None,
) -> AsyncIterator[EngineProcess]:
    engine = EngineProcess(config)
    engine.listen(on_blocks, on_stats)
    await engine.start()
    try:
        yield engine
    finally:
        await engine.stop()


def request(engine: EngineProcess, name: str, sampling: SamplingParams = SHORT) -> GenerationRequest:
    return GenerationRequest(name, tuple(range(5, 45)), engine.info.namespace, sampling)


async def collect(engine: EngineProcess, name: str) -> list[int]:
    tokens: list[int] = []
    async for output in engine.submit(request(engine, name)):
        assert output.first_index == len(tokens)
        tokens += output.token_ids
    assert output.finish_reason is FinishReason.LENGTH
    return tokens


async def eventually(condition: Callable[[], bool]) -> None:
    async with asyncio.timeout(DEADLINE):
        while not condition():  # noqa: ASYNC110 - what other processes do sets no event
            await asyncio.sleep(0.01)


async def test_streams_side_by_side_with_news_of_blocks_and_load(config: EngineConfig) -> None:
    blocks: list[BlockEvents] = []
    stats: list[EngineStats] = []
    async with running(config, on_blocks=blocks.append, on_stats=stats.append) as engine:
        answers = await asyncio.gather(*(collect(engine, name) for name in "abcd"))
        assert answers == [answers[0]] * 4
        assert len(answers[0]) == 8
        assert {block for event in blocks for block in event.stored}
        assert any(report.waiting + report.running > 0 for report in stats)
        await eventually(lambda: engine.stats.running == 0)
        assert engine.stats.seconds_per_prefill_token > 0
        await engine.flush()
        assert engine.stats.kv_blocks_cached == 0
        assert {block for event in blocks for block in event.removed}


async def test_what_was_just_submitted_counts_at_once(config: EngineConfig) -> None:
    async with running(config) as engine:
        stream = engine.submit(request(engine, "a"))
        first = asyncio.ensure_future(anext(stream))
        await asyncio.sleep(0)
        assert engine.stats.waiting == 1
        assert engine.stats.queued_prefill_tokens == 40
        await first
        assert engine.stats.waiting == 0
        await stream.aclose()


async def test_closing_a_stream_frees_its_blocks(config: EngineConfig) -> None:
    async with running(config) as engine:
        stream = engine.submit(request(engine, "a", LONG))
        await anext(stream)
        assert engine.stats.kv_blocks_used > 0
        await stream.aclose()
        await eventually(lambda: engine.stats.kv_blocks_used == 0)
        assert await collect(engine, "a")


async def test_bad_requests_are_refused_and_others_go_on(config: EngineConfig) -> None:
    async with running(config) as engine:
        with pytest.raises(PromptTooLongError):
            engine.submit(replace(request(engine, "a"), token_ids=(5,) * 300))
        stream = engine.submit(request(engine, "a", LONG))
        await anext(stream)
        with pytest.raises(DuplicateRequestError):
            engine.submit(request(engine, "a"))
        await stream.aclose()
        assert await collect(engine, "b")


async def test_a_killed_engine_fails_its_streams_says_so_and_comes_back(config: EngineConfig) -> None:
    blocks: list[BlockEvents] = []
    async with running(config, on_blocks=blocks.append) as engine:
        before = await collect(engine, "a")
        stream = engine.submit(request(engine, "b", LONG))
        await anext(stream)
        assert engine.pid is not None
        os.kill(engine.pid, signal.SIGKILL)
        with pytest.raises(EngineDiedError):
            async for _ in stream:
                pass
        assert blocks[-1] == BlockEvents(cleared=True)
        with pytest.raises(EngineDiedError):
            engine.submit(request(engine, "c"))
        await eventually(lambda: engine.pid is not None)
        assert await collect(engine, "d") == before


async def test_deaths_and_restarts_are_logged(config: EngineConfig, caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level("INFO", "engine")
    async with running(config) as engine:
        assert engine.pid is not None
        os.kill(engine.pid, signal.SIGKILL)
        await eventually(lambda: "the engine runs again" in caplog.messages)
    assert caplog.messages == ["the engine's process died; it is being restarted", "the engine runs again"]


async def test_a_start_tells_what_it_is_busy_with(config: EngineConfig) -> None:
    stages: list[str] = []
    engine = EngineProcess(config, on_progress=stages.append)
    await engine.start()
    await engine.stop()
    assert stages[-1] == "reading the weights"


async def test_an_engine_comes_back_whatever_its_listeners_do(config: EngineConfig) -> None:
    """A listener that is not ready for news must not keep a dead engine dead."""
    loop = asyncio.get_running_loop()
    complaints: list[object] = []
    loop.set_exception_handler(lambda _, context: complaints.append(context.get("exception")))
    broken = True

    def listener(news: object) -> None:
        if broken and isinstance(news, BlockEvents):
            raise AttributeError("not ready")

    async with running(config, on_blocks=listener, on_stats=listener) as engine:
        assert engine.pid is not None
        os.kill(engine.pid, signal.SIGKILL)
        await eventually(lambda: not engine.ready)
        await eventually(lambda: engine.ready)
        assert [type(complaint) for complaint in complaints] == [AttributeError]
        broken = False
        assert await collect(engine, "a")


async def test_the_books_of_the_cache_can_be_checked(config: EngineConfig) -> None:
    async with running(config) as engine:
        stream = engine.submit(request(engine, "a", LONG))
        await anext(stream)
        assert await engine.check() == ""
        await stream.aclose()


async def test_a_model_that_cannot_load_is_the_child_s_own_error(
    config: EngineConfig, tmp_path: Path, capfd: pytest.CaptureFixture[str]
) -> None:
    with pytest.raises(ModelNotFoundError, match="/no/such"):
        await EngineProcess(replace(config, model="/no/such/model")).start()
    (tmp_path / "m.gguf").write_bytes(b"GGUF\x03")
    with pytest.raises(ModelDamagedError, match="damaged"):
        await EngineProcess(replace(config, model=str(tmp_path / "m.gguf"))).start()
    assert capfd.readouterr().err == ""


async def test_stop_ends_the_process_and_its_streams(config: EngineConfig) -> None:
    engine = EngineProcess(config)
    await engine.start()
    stream = engine.submit(request(engine, "a", LONG))
    await anext(stream)
    pid = engine.pid
    await engine.stop()
    with pytest.raises(EngineDiedError):
        async for _ in stream:
            pass
    assert pid is not None
    assert not alive(pid)


OWNER = """
import asyncio, sys
from engine.config import EngineConfig
from engine.process import EngineProcess

async def main():
    engine = EngineProcess(EngineConfig(b"0123456789abcdef", model=sys.argv[1], threads=1, kv_blocks=8))
    await engine.start()
    print(engine.pid, flush=True)
    await asyncio.sleep(600)

try:
    asyncio.run(main())
except KeyboardInterrupt:
    pass
"""


@pytest.mark.parametrize("kill", [signal.SIGKILL, signal.SIGINT, signal.SIGTERM])
async def test_the_engine_never_outlives_its_owner(config: EngineConfig, kill: signal.Signals) -> None:
    owner = subprocess.Popen(  # noqa: ASYNC220 - the test has nothing else to do meanwhile
        [sys.executable, "-c", OWNER, config.model], stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True
    )
    try:
        assert owner.stdout is not None
        child = int(owner.stdout.readline())
        assert alive(child)
        owner.send_signal(kill)
        _, errors = owner.communicate(timeout=DEADLINE)
        assert "Traceback" not in errors
        await eventually(lambda: not alive(child))
    finally:
        owner.kill()
        owner.communicate()


def alive(pid: int) -> bool:
    """Whether a process runs; one that waits to be reaped doesn't."""
    try:
        return "\nState:\tZ" not in Path(f"/proc/{pid}/status").read_text()
    except OSError:
        return False
