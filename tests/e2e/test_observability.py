"""A request can be followed through the mesh: by its id in logs, its trace, and what nodes count."""

from __future__ import annotations

import json
import time
import urllib.request
from pathlib import Path
from typing import Any

import pytest

from node.demo.local_mesh import LocalMesh
from tests.e2e.conftest import rumormill
from tests.e2e.test_mesh import wait_until_cached

pytestmark = pytest.mark.e2e

LOG_SECONDS = 10.0
TRACE = "0af7651916cd43dd8448eb211c80319c"


def ask(url: str, prompt: str) -> tuple[str, str]:
    """The request's id, and which node answered."""
    body = json.dumps({"prompt": prompt, "max_tokens": 2}).encode()
    headers = {"content-type": "application/json", "traceparent": f"00-{TRACE}-b7ad6b7169203331-01"}
    call = urllib.request.Request(f"{url}/v1/completions", body, headers)
    with urllib.request.urlopen(call) as response:
        return response.headers["x-request-id"], response.headers["x-rumormill-node"]


def line_of(log: Path, request_id: str) -> dict[str, Any]:
    """The one line of a request in a node's log, which a peer writes a moment after it has answered."""
    deadline = time.monotonic() + LOG_SECONDS
    while True:
        text = log.read_text().rpartition("\n")[0]
        found: list[dict[str, Any]] = [json.loads(line) for line in text.splitlines() if line.startswith("{")]
        if mine := [line for line in found if line.get("request_id") == request_id]:
            assert len(mine) == 1
            return mine[0]
        assert time.monotonic() < deadline, f"{request_id} is not in {log}"


def test_one_request_id_in_the_logs_of_both_nodes_and_in_the_answer(mesh: LocalMesh) -> None:
    here, there = mesh.nodes
    prompt = "A list of facts about lighthouses. " * 20
    with mesh.client(1) as other:
        list(other.generate(prompt, policy="local"))
        tokens = len(other.tokenize(prompt))
    wait_until_cached(mesh, prompt)
    with mesh.client(0) as client:
        url = client.status().http_url
    request_id, answered = ask(url, prompt)
    assert answered == there.node_id
    entered, served = line_of(here.log, request_id), line_of(there.log, request_id)
    assert (entered["message"], served["message"]) == ("request", "forwarded request")
    assert entered["trace_id"] == served["trace_id"] == TRACE
    assert entered["node"] == there.node_id[:8]
    assert served["from"] == here.node_id[:8]
    assert entered["prompt_tokens"] == served["prompt_tokens"] == tokens
    assert entered["cached_tokens"] == served["cached_tokens"] > tokens / 2
    assert "lighthouse" not in here.log.read_text() + there.log.read_text()


def test_top_tells_what_every_node_has_served(mesh: LocalMesh, node: list[str]) -> None:
    for index in range(2):
        with mesh.client(index) as client:
            before = client.status().served
            list(client.generate("Hello", policy="local"))
            after = client.status().served
            assert after.requests == before.requests + 1
            assert after.generated_tokens > before.generated_tokens
    shown = rumormill("top", "--json", "--interval", "0.2", *node).json()
    assert {row["node_id"] for row in shown["nodes"]} == {n.node_id for n in mesh.nodes}
    assert all(0 <= row["hit_rate"] <= 1 and row["kv_cached"] > 0 for row in shown["nodes"])


def test_bench_measures_through_every_node(mesh: LocalMesh, node: list[str], tmp_path: Path) -> None:
    records, picture = tmp_path / "records.jsonl", tmp_path / "run.svg"
    options = ["--requests", "6", "--concurrency", "2", "--policy", "local", "--seed", "2"]
    shown = rumormill(
        "bench", *options, "--records", str(records), "--plot", str(picture), "--json", *node
    ).json()
    figures = shown["policies"]["local"]
    assert (figures["requests"], figures["failed"], figures["forwarded"]) == (6, 0, 0)
    assert 0 < figures["ttft_p50_ms"] <= figures["ttft_p99_ms"]
    assert sum(part["requests"] for part in figures["nodes"].values()) == 6
    kept = [json.loads(line) for line in records.read_text().splitlines()]
    assert len(kept) == 6
    assert all(each["output_tokens"] == 4 for each in kept)
    assert picture.read_bytes().startswith(b"<?xml")
