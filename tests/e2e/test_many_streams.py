"""200 clients that stream from one node at once: none fails, nothing is left behind."""

from __future__ import annotations

import asyncio
import json
import re
import time
from collections.abc import Awaitable, Callable, Iterator

import httpx
import psutil
import pytest

from tests.e2e.conftest import serving

pytestmark = [pytest.mark.e2e, pytest.mark.soak, pytest.mark.timeout(1200)]

CLIENTS = 200
TOKENS = 24
PATIENCE = httpx.Timeout(900.0)
FREED_SECONDS = 30.0
"""A deadline, not a measurement; bench_mesh has that."""


@pytest.fixture(scope="module")
def url(tmp_path_factory: pytest.TempPathFactory) -> Iterator[str]:
    options = ("--no-mdns", "--max-running", "256", "--kv-memory-mib", "512")
    with serving(tmp_path_factory.mktemp("node"), *options) as ready:
        yield str(ready["http"])


def body(index: int, tokens: int) -> dict[str, object]:
    prompt = f"Client {index} of the two hundred says:"
    return {"prompt": prompt, "max_tokens": tokens, "stream": True, "ignore_eos": True, "temperature": 0}


async def read(client: httpx.AsyncClient, url: str, index: int) -> int:
    """The tokens of one stream that ends as it should."""
    parts = 0
    async with client.stream("POST", f"{url}/v1/completions", json=body(index, TOKENS)) as response:
        assert response.status_code == 200
        lines = [line async for line in response.aiter_lines() if line]
    assert lines[-1] == "data: [DONE]"
    for line in lines[:-1]:
        part = json.loads(line.removeprefix("data: "))
        assert "error" not in part
        parts += part["choices"][0]["finish_reason"] is None
    return parts


def connections() -> httpx.AsyncClient:
    limits = httpx.Limits(max_connections=CLIENTS + 10, max_keepalive_connections=0)
    return httpx.AsyncClient(timeout=PATIENCE, limits=limits)


def gauge(metrics: str, name: str, state: str) -> float:
    found = re.search(rf'^{name}{{state="{state}"}} (\S+)$', metrics, re.MULTILINE)
    assert found is not None
    return float(found[1])


def memory(url: str) -> int:
    """Bytes resident of the node that listens there and of its engine."""
    port = int(url.rpartition(":")[2])
    (node,) = {
        connection.pid
        for connection in psutil.net_connections("tcp")
        if connection.status == psutil.CONN_LISTEN and connection.laddr and connection.laddr.port == port
    }
    process = psutil.Process(node)
    return sum(each.memory_info().rss for each in (process, *process.children()))


async def test_none_fails_and_memory_stays_flat(url: str) -> None:
    used = []
    for _ in range(3):
        async with connections() as client:
            counts = await asyncio.gather(*(read(client, url, index) for index in range(CLIENTS)))
        assert min(counts) > 0
        used.append(memory(url))
    assert used[2] - used[1] < 0.05 * used[1], used


async def test_those_who_leave_free_their_blocks(url: str) -> None:
    async with connections() as client:
        begun = asyncio.Semaphore(0)

        async def stay(index: int) -> None:
            path = f"{url}/v1/completions"
            async with client.stream("POST", path, json=body(index, 100_000)) as response:
                async for line in response.aiter_lines():
                    if line:
                        begun.release()
                        break
                await asyncio.Event().wait()

        streams = [asyncio.create_task(stay(index)) for index in range(CLIENTS)]
        for _ in streams:
            await begun.acquire()

        async def metrics() -> str:
            return (await client.get(f"{url}/metrics")).text

        before = gauge(await metrics(), "rumormill_kv_blocks", "used")
        for stream in streams[: CLIENTS // 2]:
            stream.cancel()
        await until(metrics, lambda text: running(text) <= CLIENTS // 2)
        assert gauge(await metrics(), "rumormill_kv_blocks", "used") < 0.75 * before
        for stream in streams:
            stream.cancel()
        await until(metrics, lambda text: gauge(text, "rumormill_kv_blocks", "used") == 0)
        await asyncio.gather(*streams, return_exceptions=True)


def running(metrics: str) -> float:
    return gauge(metrics, "rumormill_engine_requests", "running")


async def until(metrics: Callable[[], Awaitable[str]], true: Callable[[str], bool]) -> None:
    deadline = time.monotonic() + FREED_SECONDS
    while not true(await metrics()):
        assert time.monotonic() < deadline
        await asyncio.sleep(0.02)
