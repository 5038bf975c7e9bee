"""Two nodes answer as one, through every door."""

from __future__ import annotations

import json
import re
import time
import urllib.request
from collections.abc import Iterator

import openai
import pytest

from node.demo.local_mesh import LocalMesh
from rumormill.v1 import inference_pb2
from tests.e2e.conftest import rumormill

pytestmark = pytest.mark.e2e

GOSSIP_SECONDS = 30.0
QUESTION = "Name the planets of the solar system, from the one nearest to the sun outwards."


def answers(mesh: LocalMesh, policy: str) -> Iterator[inference_pb2.GenerateResponse]:
    with mesh.client(0) as client:
        sampling = inference_pb2.Sampling(max_tokens=16)
        yield from client.generate(QUESTION, sampling, policy=policy)


def test_both_nodes_see_each_other(mesh: LocalMesh, node: list[str]) -> None:
    shown = rumormill("peers", *node, "--json").json()
    assert {peer["node_id"] for peer in shown["peers"]} == {n.node_id for n in mesh.nodes}
    assert all(peer["state"] == "alive" and peer["connected"] for peer in shown["peers"])
    assert mesh.nodes[1].node_id[:8] in rumormill("peers", *node).out


def test_an_answer_is_the_same_wherever_it_is_computed(mesh: LocalMesh) -> None:
    here, there = mesh.nodes[0].node_id, mesh.nodes[1].node_id
    texts, served = set(), set()
    for _ in range(12):
        responses = list(answers(mesh, "random"))
        texts.add("".join(response.text for response in responses))
        served.add(responses[-1].route.node)
        if served == {here, there}:
            break
    assert served == {here, there}
    assert len(texts) == 1


def test_a_prompt_goes_where_its_prefix_is_cached(mesh: LocalMesh) -> None:
    """What the second node computed, the first one learns by gossip and uses."""
    prompt = "The following is a list of facts about the sea. " * 30
    with mesh.client(1) as there:
        first = list(there.generate(prompt, inference_pb2.Sampling(max_tokens=2), policy="local"))[-1]
    with mesh.client(0) as here:
        wait_until_cached(mesh, prompt)
        second = list(here.generate(prompt, inference_pb2.Sampling(max_tokens=2), policy="cost"))[-1]
    assert first.route.node == second.route.node == mesh.nodes[1].node_id
    assert second.usage.cached_tokens > 0.9 * second.usage.prompt_tokens
    assert second.route.predicted_cached_tokens <= second.usage.cached_tokens


def wait_until_cached(mesh: LocalMesh, prompt: str) -> None:
    """Until the first node believes that the second has the prompt's blocks."""
    with mesh.client(0) as client:
        deadline = time.monotonic() + GOSSIP_SECONDS
        while time.monotonic() < deadline:
            explained = client.explain(prompt)
            if any(not c.is_self and c.cached_tokens for c in explained.candidates):
                return
            time.sleep(0.02)
        pytest.fail("gossip did not tell of the cached prefix")


def test_explain_shows_candidates_times_and_the_reason(mesh: LocalMesh, node: list[str]) -> None:
    explained = rumormill("explain", QUESTION, *node, "--json").json()
    assert {c["node_id"] for c in explained["candidates"]} == {n.node_id for n in mesh.nodes}
    assert all(c["total_ms"] > 0 for c in explained["candidates"])
    assert "ms expected" in explained["reason"]
    shown = rumormill("explain", QUESTION, *node).out
    assert "chosen" in shown
    assert "PREFILL" in shown


def test_the_doctor_looks_at_the_engine_of_a_running_node(node: list[str]) -> None:
    """Other things may be wrong with this machine; here only the node counts."""
    checks = json.loads(rumormill("doctor", "--no-mdns", *node, "--json").out)["checks"]
    (found,) = [check for check in checks if check["name"] == "node"]
    assert found["severity"] == "ok"
    assert re.search(r"on the (native|torch|triton) backend; \d+ cached blocks in order", found["detail"])


def test_generate_streams_text_and_says_where_from(mesh: LocalMesh, node: list[str]) -> None:
    answer = rumormill("generate", QUESTION, "--max-tokens", "16", *node, "--json").json()
    assert answer["completion_tokens"] == 16
    assert answer["served_by"] in {n.node_id for n in mesh.nodes}
    piped = rumormill("generate", "-", "--max-tokens", "16", *node, stdin=QUESTION)
    assert piped.out.strip() == answer["text"].strip()


def test_generate_through_either_node_answers_the_same(mesh: LocalMesh) -> None:
    texts = {
        rumormill("generate", QUESTION, "--max-tokens", "16", "--node", n.grpc, "--token", mesh.token).out
        for n in mesh.nodes
    }
    assert len(texts) == 1


def test_chat_keeps_the_conversation(node: list[str]) -> None:
    said = rumormill(
        "chat", "--max-tokens", "24", *node, "--json", stdin="My name is Ada.\nWhat is my name?\n"
    )
    assert said.status == 0, said.err
    turns = [json.loads(line) for line in said.out.splitlines()]
    assert len(turns) == 2
    assert turns[1]["prompt_tokens"] > turns[0]["prompt_tokens"] + turns[0]["completion_tokens"]
    assert turns[1]["cached_tokens"] > turns[0]["prompt_tokens"] // 2, (
        "the first turn is cached for the second"
    )


def test_seeded_sampling_repeats_anywhere(mesh: LocalMesh) -> None:
    texts = set()
    for policy in ("local", "random", "random", "random"):
        with mesh.client(0) as client:
            sampling = inference_pb2.Sampling(max_tokens=12, temperature=1.0, top_p=0.9, seed=7)
            texts.add("".join(r.text for r in client.generate(QUESTION, sampling, policy=policy)))
    assert len(texts) == 1


def test_an_openai_client_is_served(mesh: LocalMesh) -> None:
    with mesh.client(0) as client:
        url = client.status().http_url
    with openai.OpenAI(base_url=f"{url}/v1", api_key="unused") as api:
        assert [model.id for model in api.models.list().data] == ["SmolLM2-135M-Instruct"]
        messages = [{"role": "user", "content": QUESTION}]
        settings = {"model": "smollm2", "messages": messages, "temperature": 0, "max_tokens": 16}
        whole = api.chat.completions.with_raw_response.create(**settings)  # type: ignore[call-overload]
        completion = whole.parse()
        assert completion.usage.prompt_tokens_details.cached_tokens >= 0
        assert whole.headers["x-rumormill-node"] in {n.node_id for n in mesh.nodes}
        assert whole.headers["x-rumormill-route"]
        text = ""
        stream = api.chat.completions.create(  # type: ignore[call-overload]
            **settings, stream=True, stream_options={"include_usage": True}
        )
        for part in stream:
            text += (part.choices[0].delta.content or "") if part.choices else ""
            usage = part.usage
        assert text == completion.choices[0].message.content
        assert usage.completion_tokens == 16
        with pytest.raises(openai.BadRequestError, match="context"):
            api.completions.create(model="smollm2", prompt="word " * 20_000)
        with pytest.raises(openai.NotFoundError, match="served"):
            api.completions.create(model="gpt-5", prompt="x")
        with pytest.raises(openai.BadRequestError, match="suffix is not supported"):
            api.completions.create(model="smollm2", prompt="x", suffix="y")


def test_metrics_tell_what_happened(mesh: LocalMesh) -> None:
    with mesh.client(0) as client:
        list(client.generate("Hello", inference_pb2.Sampling(max_tokens=2)))
        url = client.status().http_url
    with urllib.request.urlopen(f"{url}/metrics") as response:
        text = response.read().decode()
    for name in (
        'rumormill_requests_total{outcome="ok"',
        "rumormill_ttft_seconds_count",
        'rumormill_prompt_tokens_total{source="computed"}',
        "rumormill_predicted_cached_tokens_total",
        'rumormill_gossip_bytes_total{direction="sent"',
        "rumormill_replica_age_seconds",
        'rumormill_members{state="alive"} 1.0',
        'rumormill_kv_blocks{state="cached"}',
    ):
        assert name in text
