"""docs/openai.md, row by row, against a node; and that no parameter of OpenAI's is missing there."""

from __future__ import annotations

import re
from pathlib import Path
from typing import Any

import pytest
from openai.types import completion_create_params as text_params
from openai.types.chat import completion_create_params as chat_params

from node.http.schema import ChatBody, CompletionBody
from tests.unit.node.test_http import Door
from tests.unit.node.test_pipeline import World

DOCS = Path(__file__).parents[3] / "docs" / "openai.md"
ROW = re.compile(
    r"^\| (\w+) \| (supported|refused|ignored|-) \| (supported|refused|ignored|-) \|", re.MULTILINE
)
ROWS = {name: (chat, text) for name, chat, text in ROW.findall(DOCS.read_text())}

CHAT: dict[str, Any] = {"messages": [{"role": "user", "content": "Hi"}], "max_tokens": 4, "temperature": 0}
TEXT: dict[str, Any] = {"prompt": "Hi", "max_tokens": 4, "temperature": 0}
FUNCTION = {"name": "look", "parameters": {"type": "object"}}
TOOLS = [{"type": "function", "function": FUNCTION}]

EXAMPLES: dict[str, Any] = {
    "messages": CHAT["messages"],
    "prompt": [[72], [105, 3]],
    "model": "fake",
    "max_tokens": 3,
    "max_completion_tokens": 3,
    "temperature": 0.5,
    "top_p": 0.9,
    "n": 2,
    "best_of": 3,
    "stop": ["x"],
    "seed": -7,
    "presence_penalty": 0.5,
    "frequency_penalty": -0.5,
    "logit_bias": {"5": -100},
    "logprobs": {"chat": True, "completions": 3},
    "top_logprobs": 2,
    "echo": True,
    "suffix": "x",
    "stream": True,
    "stream_options": {"include_usage": True, "include_obfuscation": True},
    "response_format": {"type": "json_schema", "json_schema": {"name": "x", "schema": {}}},
    "tools": TOOLS,
    "tool_choice": "required",
    "parallel_tool_calls": False,
    "functions": [FUNCTION],
    "function_call": "auto",
    "modalities": ["text"],
    "audio": {"voice": "ash", "format": "wav"},
    "web_search_options": {},
    "reasoning_effort": "low",
    "verbosity": "low",
    "moderation": {},
    "prompt_cache_options": {},
    "store": True,
    "metadata": {"a": "b"},
    "user": "ada",
    "safety_identifier": "x",
    "service_tier": "auto",
    "prompt_cache_key": "x",
    "prompt_cache_retention": "24h",
    "prediction": {"type": "content", "content": "x"},
    "top_k": 5,
    "min_p": 0.1,
    "repetition_penalty": 1.1,
    "stop_token_ids": [7],
    "ignore_eos": True,
    "priority": 1,
    "timeout_s": 30.0,
}

ENDPOINTS = {"chat": ("/v1/chat/completions", CHAT), "completions": ("/v1/completions", TEXT)}
COMPANIONS: dict[tuple[str, str], dict[str, Any]] = {
    ("top_logprobs", "chat"): {"logprobs": True},
    ("tool_choice", "chat"): {"tools": TOOLS},
}


def example(name: str, endpoint: str) -> dict[str, Any]:
    value = EXAMPLES[name]
    if name == "logprobs":
        value = value[endpoint]
    return {**ENDPOINTS[endpoint][1], **COMPANIONS.get((name, endpoint), {}), name: value}


def test_the_table_has_every_parameter_and_no_other() -> None:
    for column, params, body in ((0, chat_params, ChatBody), (1, text_params, CompletionBody)):
        theirs = set(params.CompletionCreateParamsBase.__annotations__) | {"stream"}
        assert theirs <= {name for name, row in ROWS.items() if row[column] != "-"}
        served = {name for name, row in ROWS.items() if row[column] in ("supported", "ignored")}
        fields = {field.alias or name for name, field in body.model_fields.items()}
        assert served <= fields
        assert fields <= {name for name, row in ROWS.items() if row[column] != "-"}
    assert set(EXAMPLES) == set(ROWS)


@pytest.mark.parametrize("endpoint", ["chat", "completions"])
@pytest.mark.parametrize("name", ROWS)
async def test_a_row_is_true(name: str, endpoint: str) -> None:
    path, base = ENDPOINTS[endpoint]
    promise = ROWS[name][endpoint == "completions"]
    response = await Door(World()).post(path, example(name, endpoint))
    if promise in ("refused", "-"):
        assert response.status_code == 400
        assert name in response.json()["error"]["message"]
        return
    assert response.status_code == 200, response.text
    if promise == "ignored":
        plain = await Door(World()).post(path, base)
        assert response.json()["choices"] == plain.json()["choices"]


async def test_a_parameter_that_nobody_knows_is_named() -> None:
    for path, base in ENDPOINTS.values():
        response = await Door(World()).post(path, {**base, "tempreature": 1})
        assert response.status_code == 400
        assert response.json()["error"]["param"] == "tempreature"
