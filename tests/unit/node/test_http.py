"""The OpenAI door, on a pipeline between fakes."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, cast

import httpx
import pytest

from engine.errors import InvalidSamplingError
from engine.tokenizer import Tokenizer
from node import limits
from node.call_budget import CallBudget
from node.http.api_keys import ApiKeys
from node.http.application import make_application
from node.http.callers import Callers
from node.limits import MAX_BODY_BYTES
from node.request_builder import RequestBuilder
from node.tenants import Tenants
from tests.unit.node.fakes import INFO, FakeEngine, FakeTokenizer, continuation
from tests.unit.node.test_pipeline import World

CHAT = {"messages": [{"role": "user", "content": "Hi"}], "max_tokens": 4, "temperature": 0}


class FakeGrammars:
    """Any text but 'wrong' is a grammar."""

    def check(self, text: str) -> None:
        if "wrong" in text:
            raise InvalidSamplingError("the grammar can't be used: it is wrong")

    def token_bytes(self, token: int) -> bytes:
        """Odd tokens are half a character."""
        whole = FakeTokenizer().decode([token]).encode()
        return whole[:1] if token % 2 else whole


class ChatTokenizer(FakeTokenizer):
    """Writes tools and messages one after the other."""

    chat_takes_tools = writes_tool_calls = True
    grammars = FakeGrammars()

    def encode_chat(
        self, messages: Sequence[Mapping[str, Any]], tools: Sequence[Mapping[str, Any]] = ()
    ) -> list[int]:
        return self.encode("".join(message["content"] for message in messages) + "+" * len(tools))


class Door:
    """An HTTP client of one node's application."""

    def __init__(
        self,
        world: World,
        keys: ApiKeys | None = None,
        *,
        isolated: bool = False,
        cors_origins: Sequence[str] = (),
    ) -> None:
        self.world = world
        tokenizer = cast(Tokenizer, ChatTokenizer())
        builder = RequestBuilder(tokenizer, INFO)
        tenants = Tenants(b"k" * 32, isolated=isolated)
        application = make_application(
            builder,
            world.pipeline,
            INFO,
            tokenizer,
            world.admission,
            world.metrics,
            tenants,
            Callers(keys),
            CallBudget(),
            cors_origins,
        )
        transport = httpx.ASGITransport(application)
        self.client = httpx.AsyncClient(transport=transport, base_url="http://127.0.0.1")

    async def post(self, path: str, body: Mapping[str, Any], key: str = "") -> httpx.Response:
        headers = {"authorization": f"Bearer {key}"} if key else {}
        async with self.client as client:
            return await client.post(path, json=body, headers=headers)


EXPECTED = FakeTokenizer().decode(continuation((72, 105), 4))


async def test_a_chat_is_answered_whole() -> None:
    response = await Door(World()).post("/v1/chat/completions", CHAT)
    body = response.json()
    assert response.status_code == 200
    assert body["choices"][0]["message"] == {"role": "assistant", "content": EXPECTED, "refusal": None}
    assert body["choices"][0]["finish_reason"] == "length"
    assert body["usage"] == {
        "prompt_tokens": 2,
        "completion_tokens": 4,
        "total_tokens": 6,
        "prompt_tokens_details": {"cached_tokens": 2},
    }
    assert response.headers["x-rumormill-node"] == "self"
    assert response.headers["x-rumormill-cached-tokens"] == "2"
    assert response.headers["x-rumormill-route"] == "longest-prefix: the only node"


async def test_a_stream_has_the_same_text_and_ends_with_usage() -> None:
    body = {**CHAT, "stream": True, "stream_options": {"include_usage": True}}
    response = await Door(World()).post("/v1/chat/completions", body)
    lines = [line.removeprefix("data: ") for line in response.text.split("\n\n") if line]
    assert lines.pop() == "[DONE]"
    parts = [json.loads(line) for line in lines]
    deltas = [part["choices"][0]["delta"] for part in parts if part["choices"]]
    assert "".join(delta.get("content", "") for delta in deltas) == EXPECTED
    assert parts[-1]["usage"]["completion_tokens"] == 4


async def test_text_and_token_prompts_complete_the_same() -> None:
    prompts: tuple[Any, ...] = ("Hi", [72, 105])
    for prompt in prompts:
        body = {"prompt": prompt, "max_tokens": 4, "temperature": 0}
        response = await Door(World()).post("/v1/completions", body)
        assert response.json()["choices"][0]["text"] == EXPECTED


@pytest.mark.parametrize(
    ("body", "status", "says"),
    [
        ({}, 400, "messages"),
        ({**CHAT, "messages": []}, 400, "messages"),
        ({**CHAT, "functions": []}, 400, "functions is not supported"),
        ({**CHAT, "n": 0}, 400, "n"),
        ({**CHAT, "model": "gpt-5"}, 404, "this node serves 'fake'"),
        ({**CHAT, "temperature": -1}, 400, "temperature"),
        ({**CHAT, "messages": [{"role": "user", "content": "x" * 500}]}, 400, "context"),
    ],
)
@pytest.mark.parametrize("stream", [False, True])
async def test_what_cannot_be_served_gets_its_status_in_openais_shape(
    body: dict[str, Any], status: int, says: str, stream: bool
) -> None:
    response = await Door(World()).post("/v1/chat/completions", {**body, "stream": stream})
    assert response.status_code == status
    error = response.json()["error"]
    assert says in error["message"]
    assert error["type"]


async def test_a_full_node_says_when_to_come_back() -> None:
    response = await Door(World(FakeEngine(queued=4000))).post("/v1/chat/completions", CHAT)
    assert response.status_code == 429
    assert response.headers["retry-after"] == "2"


async def test_a_body_past_the_limit_is_not_read() -> None:
    body = {**CHAT, "messages": [{"role": "user", "content": "x" * MAX_BODY_BYTES}]}
    response = await Door(World()).post("/v1/chat/completions", body)
    assert response.status_code == 413
    assert "smaller" in response.json()["error"]["message"]


async def test_a_body_that_nests_too_deep_is_not_parsed() -> None:
    depth = limits.MAX_JSON_DEPTH + 1
    for text in (b"[" * depth, b'{"a":' * depth, b'{"messages": [' + b"[" * 100_000):
        async with Door(World()).client as client:
            headers = {"content-type": "application/json"}
            response = await client.post("/v1/chat/completions", content=text, headers=headers)
        assert response.status_code == 400
        assert "deep" in response.json()["error"]["message"]
    brackets = {**CHAT, "messages": [{"role": "user", "content": '"[{\\' * 20}]}
    assert (await Door(World()).post("/v1/chat/completions", brackets)).status_code == 200


@pytest.mark.parametrize("text", [r"\ud800", r"\udfff and more", r"\ud83d\ud83d", r"\\\ud800"])
async def test_half_a_character_is_no_text(text: str) -> None:
    body = f'{{"messages": [{{"role": "user", "content": "{text}"}}], "{text}": 1}}'
    async with Door(World()).client as client:
        headers = {"content-type": "application/json"}
        response = await client.post("/v1/chat/completions", content=body, headers=headers)
    assert response.status_code == 400
    assert "surrogate" in response.json()["error"]["message"]
    for whole in (r"\ud83d\ude00", r"\\ud800", r"\u00e9"):
        async with Door(World()).client as client:
            response = await client.post(
                "/v1/chat/completions", content=body.replace(text, whole), headers=headers
            )
        assert "surrogate" not in response.text


async def test_one_caller_may_not_call_without_end(keys: ApiKeys, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(limits, "CALLS_AT_ONCE", 2.0)
    monkeypatch.setattr(limits, "CALLS_PER_S", 0.0)
    async with Door(World(), keys).client as client:
        for name, statuses in (("ada", [200, 200, 429]), ("bob", [200, 200, 429])):
            headers = {"authorization": f"Bearer {KEYS[name]}"}
            answers = [await client.get("/v1/models", headers=headers) for _ in statuses]
            assert [answer.status_code for answer in answers] == statuses
        assert answers[-1].headers["retry-after"] == "1"
        assert answers[-1].json()["error"]["type"] == "rate_limit_error"


async def test_health_turns_while_draining() -> None:
    door = Door(World())
    async with door.client as client:
        assert (await client.get("/health")).status_code == 200
        door.world.admission.draining = True
        assert (await client.get("/health")).status_code == 503
        assert (await client.get("/nowhere")).json()["error"]["type"] == "invalid_request_error"
        assert "rumormill_requests_total" in (await client.get("/metrics")).text


KEYS = {"ada": "a" * 32, "bob": "b" * 32}


@pytest.fixture
def keys(tmp_path: Path) -> ApiKeys:
    file = tmp_path / "keys"
    file.touch(mode=0o600)
    file.write_text("".join(f"{name} {key}\n" for name, key in KEYS.items()))
    return ApiKeys(file)


@pytest.mark.parametrize("key", ["", "wrong", "a" * 31, "A" * 32])
async def test_with_api_keys_only_their_holders_are_served(keys: ApiKeys, key: str) -> None:
    refused = await Door(World(), keys).post("/v1/chat/completions", CHAT, key)
    assert refused.status_code == 401
    assert refused.headers["www-authenticate"] == "Bearer"
    assert "API key" in refused.json()["error"]["message"]
    assert (await Door(World(), keys).post("/v1/chat/completions", CHAT, KEYS["ada"])).status_code == 200


async def test_without_a_key_only_health_is_told(keys: ApiKeys) -> None:
    async with Door(World(), keys).client as client:
        assert (await client.get("/health")).status_code == 200
        assert (await client.get("/metrics")).status_code == 401
        assert (await client.get("/v1/models")).status_code == 401


async def test_isolated_callers_never_share_a_namespace(keys: ApiKeys) -> None:
    salts = {}
    for isolated in (True, False):
        for name, key in KEYS.items():
            world = World()
            await Door(world, keys, isolated=isolated).post("/v1/chat/completions", CHAT, key)
            salts[isolated, name] = world.engine.submitted[0].namespace.salt
    assert salts[True, "ada"] != salts[True, "bob"]
    assert all(len(salts[True, name]) == 16 for name in KEYS)
    assert salts[False, "ada"] == salts[False, "bob"] == b""


async def test_priority_and_time_reach_the_engine() -> None:
    world = World()
    body = CHAT | {"priority": 2, "timeout_s": 5.0}
    assert (await Door(world).post("/v1/chat/completions", body)).status_code == 200
    (submitted,) = world.engine.submitted
    assert (submitted.priority, submitted.deadline) == (2, world.now + 5.0)


@pytest.mark.parametrize("stream", [False, True])
async def test_time_that_is_up_before_the_first_token_is_a_504(stream: bool) -> None:
    world = World(FakeEngine(expires_after=0))
    body = CHAT | {"timeout_s": 0.001, "stream": stream}
    response = await Door(world).post("/v1/chat/completions", body)
    assert response.status_code == 504
    assert response.json()["error"]["type"] == "timeout_error"


@pytest.mark.parametrize(
    "field", [{"priority": 3}, {"priority": "high"}, {"timeout_s": 0}, {"timeout_s": "soon"}]
)
async def test_absurd_priorities_and_times_are_refused_by_name(field: dict[str, object]) -> None:
    response = await Door(World()).post("/v1/chat/completions", CHAT | field)
    assert response.status_code == 400
    assert next(iter(field)) in response.json()["error"]["message"]
