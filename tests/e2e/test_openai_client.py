"""The openai client, and curl, against a mesh: the same answers whichever node they are computed on."""

from __future__ import annotations

import json
import shutil
import subprocess
from collections.abc import Iterator
from typing import Any

import openai
import pytest
from pydantic import BaseModel

from node.demo.local_mesh import LocalMesh

pytestmark = pytest.mark.e2e

MESSAGES: Any = [{"role": "user", "content": "Name the planets of the solar system."}]


class Person(BaseModel):
    """What an answer must be."""

    name: str
    age: int


@pytest.fixture(scope="module")
def url(mesh: LocalMesh) -> str:
    with mesh.client(0) as client:
        return client.status().http_url


@pytest.fixture(scope="module")
def api(url: str) -> Iterator[openai.OpenAI]:
    with openai.OpenAI(base_url=f"{url}/v1", api_key="unused", max_retries=0) as client:
        yield client


def served_by(api: openai.OpenAI, **options: Any) -> tuple[str, Any]:
    raw = api.chat.completions.with_raw_response.create(model="smollm2", messages=MESSAGES, **options)
    choice = raw.parse().choices[0]
    logprobs = choice.logprobs.content if choice.logprobs else None
    return raw.headers["x-rumormill-node"], (choice.message.content, logprobs, choice.finish_reason)


@pytest.mark.parametrize(
    "options",
    [
        {"temperature": 1.2, "seed": 5, "top_p": 0.9, "logprobs": True, "top_logprobs": 3},
        {"temperature": 0, "frequency_penalty": 1.5, "presence_penalty": 0.5, "logit_bias": {"30": -100}},
        {"temperature": 1, "seed": 3, "extra_body": {"min_p": 0.1, "top_k": 40, "repetition_penalty": 1.2}},
        {"temperature": 1, "seed": 3, "response_format": {"type": "json_object"}},
    ],
)
def test_every_option_gives_the_same_answer_on_either_node(
    mesh: LocalMesh, api: openai.OpenAI, options: dict[str, Any]
) -> None:
    """The nodes share the caches of one kind of model, and both answer while both are as good."""
    with mesh.client(1) as other:
        there = openai.OpenAI(base_url=f"{other.status().http_url}/v1", api_key="unused")
    with there:
        answers = [served_by(client, max_tokens=24, **options) for client in (api, there)]
    assert answers[0][1] == answers[1][1]


def test_several_choices_whole_and_streamed(api: openai.OpenAI) -> None:
    settings: Any = {"model": "smollm2", "messages": MESSAGES, "n": 3, "seed": 1, "max_tokens": 12}
    whole = api.chat.completions.create(**settings)
    texts = [""] * 3
    for part in api.chat.completions.create(**settings, stream=True):
        for choice in part.choices:
            texts[choice.index] += choice.delta.content or ""
    assert texts == [choice.message.content for choice in whole.choices]
    assert len(set(texts)) > 1, "each choice has a seed of its own"


def test_a_schema_is_kept(api: openai.OpenAI) -> None:
    parsed = api.chat.completions.parse(
        model="smollm2",
        messages=[{"role": "user", "content": "Ada Lovelace is 36 years old."}],
        response_format=Person,
        max_tokens=80,
        temperature=0,
    )
    assert parsed.choices[0].message.parsed is not None
    assert "Ada" in parsed.choices[0].message.parsed.name


def test_errors_reach_the_client_as_its_own(api: openai.OpenAI) -> None:
    tool: Any = {"type": "function", "function": {"name": "look", "parameters": {}}}
    with pytest.raises(openai.BadRequestError, match="no tools") as refusal:
        api.chat.completions.create(model="smollm2", messages=MESSAGES, tools=[tool])
    assert refusal.value.param == "tools"
    with pytest.raises(openai.BadRequestError, match="embeddings"):
        api.embeddings.create(model="smollm2", input="x")


@pytest.mark.skipif(shutil.which("curl") is None, reason="needs curl")
def test_curl_streams(url: str) -> None:
    body = json.dumps({"prompt": "1, 2, 3,", "max_tokens": 4, "temperature": 0, "stream": True})
    command = ["curl", "-sN", f"{url}/v1/completions", "-H", "content-type: application/json", "-d", body]
    said = subprocess.run(command, capture_output=True, text=True, timeout=60, check=True).stdout
    lines = [line for line in said.splitlines() if line]
    assert lines[-1] == "data: [DONE]"
    text = "".join(json.loads(line.removeprefix("data: "))["choices"][0]["text"] for line in lines[:-1])
    assert "4" in text
