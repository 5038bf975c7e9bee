"""What OpenAI's clients read from answers: several choices, log-probabilities, echoes, tools, grammars."""

from __future__ import annotations

import json
from typing import Any

import httpx
import pytest

from node.http.application import EXPOSED_HEADERS
from node.http.tools import ToolReader, forced_call_grammar
from tests.unit.node.fakes import FakeEngine, FakeTokenizer, continuation
from tests.unit.node.test_http import Door
from tests.unit.node.test_pipeline import World

CHAT: dict[str, Any] = {"messages": [{"role": "user", "content": "Hi"}], "max_tokens": 4, "temperature": 0}
TEXT: dict[str, Any] = {"prompt": "Hi", "max_tokens": 4, "temperature": 0}
HI = (72, 105)


def text_of(prompt: tuple[int, ...], count: int = 4) -> str:
    return FakeTokenizer().decode(continuation(prompt, count))


def parts_of(response: httpx.Response) -> list[dict[str, Any]]:
    lines = [line.removeprefix("data: ") for line in response.text.split("\n\n") if line]
    assert lines.pop() == "[DONE]"
    return [json.loads(line) for line in lines]


async def test_every_prompt_gets_n_choices_in_order() -> None:
    world = World()
    body = {**TEXT, "prompt": ["Hi", "Ho"], "n": 2, "seed": 11, "temperature": 1}
    answer = (await Door(world).post("/v1/completions", body)).json()
    assert [choice["index"] for choice in answer["choices"]] == [0, 1, 2, 3]
    texts = [choice["text"] for choice in answer["choices"]]
    assert texts == [text_of(HI)] * 2 + [text_of((72, 111))] * 2
    assert answer["usage"]["prompt_tokens"] == 4, "each prompt counts once"
    assert answer["usage"]["completion_tokens"] == 16
    assert sorted(request.sampling.seed for request in world.engine.submitted) == [11, 11, 12, 12]
    assert len({request.request_id for request in world.engine.submitted}) == 4


@pytest.mark.parametrize("path", ["/v1/chat/completions", "/v1/completions"])
async def test_several_choices_stream_side_by_side(path: str) -> None:
    body = {**(CHAT if "chat" in path else TEXT), "n": 3, "stream": True}
    response = await Door(World()).post(path, {**body, "stream_options": {"include_usage": True}})
    *parts, last = parts_of(response)
    assert last["choices"] == []
    assert last["usage"]["completion_tokens"] == 12
    assert all(part["usage"] is None for part in parts)
    for index in range(3):
        choices = [part["choices"][0] for part in parts if part["choices"][0]["index"] == index]
        text = "".join(c["delta"].get("content", "") if "delta" in c else c["text"] for c in choices)
        assert text == text_of(HI)
        assert [choice["finish_reason"] for choice in choices if choice["finish_reason"]] == ["length"]


async def test_one_choice_that_fails_ends_the_others() -> None:
    world = World(FakeEngine(deaths=4, lives=0))
    response = await Door(world).post("/v1/completions", {**TEXT, "n": 2})
    assert response.status_code == 503
    assert world.engine.open == world.in_flight.count == 0


async def test_a_chats_log_probabilities() -> None:
    body = {**CHAT, "logprobs": True, "top_logprobs": 2}
    choice = (await Door(World()).post("/v1/chat/completions", body)).json()["choices"][0]
    content = choice["logprobs"]["content"]
    assert len(content) == 4
    for token, entry in zip(continuation(HI, 4), content, strict=True):
        whole = FakeTokenizer().decode([token])
        raw = list(whole.encode())
        assert entry["logprob"] == -token / 7
        assert entry["bytes"] == (raw[:1] if token % 2 else raw)
        assert entry["token"] == (f"bytes:\\x{raw[0]:02x}" if token % 2 else whole)
        assert [top["logprob"] for top in entry["top_logprobs"]] == [-token / 7, -token / 7 - 1]
    streamed = parts_of(await Door(World()).post("/v1/chat/completions", {**body, "stream": True}))
    found = [c["logprobs"] for part in streamed for c in part["choices"] if c["logprobs"]]
    assert [entry for each in found for entry in each["content"]] == content


@pytest.mark.parametrize("stream", [False, True])
async def test_an_echo_has_the_prompts_log_probabilities(stream: bool) -> None:
    body = {**TEXT, "prompt": [list(HI), [70, 71, 72]], "echo": True, "logprobs": 1, "stream": stream}
    response = await Door(World()).post("/v1/completions", body)
    choices = response.json()["choices"] if not stream else joined(parts_of(response), 2)
    for choice, prompt in zip(choices, (HI, (70, 71, 72)), strict=True):
        token_ids = [*prompt, *continuation(prompt, 4)]
        assert choice["text"] == FakeTokenizer().decode(prompt) + text_of(prompt)
        logprobs = choice["logprobs"]
        assert logprobs["token_logprobs"] == [None, *(-token / 7 for token in token_ids[1:])]
        assert logprobs["top_logprobs"][0] is None
        assert [max(top.values()) for top in logprobs["top_logprobs"][1:]] == logprobs["token_logprobs"][1:]
        lengths = [len(text) for text in logprobs["tokens"]]
        assert logprobs["text_offset"] == [sum(lengths[:index]) for index in range(len(lengths))]


async def test_an_echo_alone_has_nothing_after_the_prompt() -> None:
    body = {"prompt": "Hi", "max_tokens": 0, "echo": True, "logprobs": 0, "temperature": 0}
    choice = (await Door(World()).post("/v1/completions", body)).json()["choices"][0]
    assert choice["text"] == "Hi"
    assert len(choice["logprobs"]["tokens"]) == 2
    refused = await Door(World()).post("/v1/completions", {**body, "echo": False})
    assert refused.json()["error"]["param"] == "max_tokens"


def joined(parts: list[dict[str, Any]], count: int) -> list[dict[str, Any]]:
    """The choices that a stream's parts make up."""
    choices: list[dict[str, Any]] = [{"text": "", "logprobs": {}} for _ in range(count)]
    for part in parts:
        for choice in part["choices"]:
            whole = choices[choice["index"]]
            whole["text"] += choice["text"]
            for name, values in (choice["logprobs"] or {}).items():
                whole["logprobs"].setdefault(name, []).extend(values)
    return choices


async def test_formats_become_grammars_of_the_request() -> None:
    for form, says in (
        ({"type": "json_object"}, '"type": "object"'),
        ({"type": "json_schema", "json_schema": {"name": "n", "schema": {"type": "integer"}}}, "integer"),
    ):
        world = World()
        response = await Door(world).post("/v1/chat/completions", {**CHAT, "response_format": form})
        assert response.status_code == 200
        assert says in world.engine.submitted[0].sampling.grammar
    wrong = {"type": "json_schema", "json_schema": {"name": "n", "schema": {"type": "wrong"}}}
    for form, says in (
        (wrong, "wrong"),
        ({"type": "json_schema"}, "response_format"),
        ({"type": "x"}, "type"),
    ):
        response = await Door(World()).post("/v1/chat/completions", {**CHAT, "response_format": form})
        assert response.status_code == 400
        assert says in response.json()["error"]["message"]


FUNCTION = {"name": "look", "parameters": {"type": "object"}}
TOOLS = [{"type": "function", "function": FUNCTION}]


async def test_a_forced_tool_is_a_grammar_and_an_unknown_one_refused() -> None:
    world = World()
    named = {"type": "function", "function": {"name": "look"}}
    body = {**CHAT, "tools": TOOLS, "tool_choice": named, "parallel_tool_calls": False}
    assert (await Door(world).post("/v1/chat/completions", body)).status_code == 200
    grammar = forced_call_grammar([FUNCTION], several=False)
    assert world.engine.submitted[0].sampling.grammar == grammar
    assert len(world.engine.submitted[0].token_ids) == 3, "the template wrote the tool"
    for choice in ({"type": "function", "function": {"name": "feel"}}, "required"):
        wrong = {**body, "tools": TOOLS if choice != "required" else [], "tool_choice": choice}
        response = await Door(World()).post("/v1/chat/completions", wrong)
        assert response.json()["error"]["param"] == "tool_choice"


CALL = '<tool_call>\n{"name": "look", "arguments": {"at": "<sea>"}}\n</tool_call>'


@pytest.mark.parametrize("size", [1, 3, 1000])
def test_calls_are_told_from_content_however_text_is_cut(size: int) -> None:
    for text, content, calls in (
        ("No calls, 1 < 2 <tool", "No calls, 1 < 2 <tool", 0),
        (f"Let me see.{CALL}\n{CALL}", "Let me see.", 2),
        ("<tool_call>not JSON</tool_call>!", "<tool_call>not JSON</tool_call>!", 0),
        (f"{CALL}<tool_call>cut", "<tool_call>cut", 1),
    ):
        reader = ToolReader(several=True)
        pushed = [reader.push(text[at : at + size]) for at in range(0, len(text), size)]
        assert "".join(shown for shown, _ in pushed) + reader.flush() == content
        found = [call for _, each in pushed for call in each]
        assert len(found) == calls
        assert len({call["id"] for call in found}) == calls
        for call in found:
            assert json.loads(call["function"]["arguments"]) == {"at": "<sea>"}
    single = ToolReader(several=False)
    assert len(single.push(CALL + CALL)[1]) == 1


async def test_models_can_be_listed_and_asked_for() -> None:
    async with Door(World()).client as client:
        (model,) = (await client.get("/v1/models")).json()["data"]
        assert (await client.get(f"/v1/models/{model['id']}")).json() == model
        assert (await client.get("/v1/models/gpt-5")).status_code == 404


async def test_embeddings_are_refused_clearly() -> None:
    response = await Door(World()).post("/v1/embeddings", {"input": "x", "model": "fake"})
    assert response.status_code == 400
    assert "embeddings" in response.json()["error"]["message"]


async def test_the_api_is_described_offline() -> None:
    async with Door(World()).client as client:
        page = (await client.get("/docs")).text
        described = (await client.get("/openapi.json")).json()
    assert "<script" not in page
    assert "http" not in page.replace("/openapi.json", "")
    for path in ("/v1/chat/completions", "/v1/completions", "/v1/models"):
        assert path in page
        assert path in described["paths"]
    assert "top_logprobs" in page


async def test_other_origins_read_answers_only_where_they_are_named() -> None:
    asked = {"origin": "https://a.example", "access-control-request-method": "POST"}
    for origins, allowed in (((), None), (("https://a.example",), "https://a.example")):
        async with Door(World(), cors_origins=origins).client as client:
            preflight = await client.options("/v1/completions", headers=asked)
            answer = await client.post("/v1/completions", json=TEXT, headers={"origin": "https://a.example"})
        assert preflight.headers.get("access-control-allow-origin") == allowed
        assert answer.headers.get("access-control-allow-origin") == allowed
        if allowed:
            assert set(EXPOSED_HEADERS) <= set(answer.headers["access-control-expose-headers"].split(", "))
