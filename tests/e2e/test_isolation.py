"""With isolation on nobody can tell what others asked: cached tokens are what time would tell of."""

from __future__ import annotations

import json
import urllib.request
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from certs.roles import Role
from certs.token import MeshToken
from certs.token_source import caller_credentials
from node.client import Client
from rumormill.v1 import inference_pb2
from tests.e2e.conftest import serving
from tests.unit.engine.conftest import make_folder

pytestmark = pytest.mark.e2e

KEYS = {"ada": "a" * 32, "bob": "b" * 32}
SAMPLING = inference_pb2.Sampling(max_tokens=4)
LONG = 200
"""Characters, which are this model's tokens."""


class Nodes:
    """A mesh, and its two tenants at both kinds of door."""

    def __init__(self, token: MeshToken, nodes: list[dict[str, str]]) -> None:
        self.nodes = nodes
        self.clients = {
            (tenant, at): Client(node["grpc"], credentials)
            for tenant in KEYS
            for credentials in [caller_credentials(token, Role.CLIENT)]
            for at, node in enumerate(nodes)
        }

    def close(self) -> None:
        for client in self.clients.values():
            client.close()

    def http(self, tenant: str, at: int, path: str, body: dict[str, Any]) -> tuple[int, dict[str, Any]]:
        """(cached tokens, answer) of a request with a tenant's API key."""
        request = urllib.request.Request(
            f"{self.nodes[at]['http']}/v1/{path}",
            json.dumps({"max_tokens": 4, "temperature": 0} | body).encode(),
            {"content-type": "application/json", "authorization": f"Bearer {KEYS[tenant]}"},
        )
        with urllib.request.urlopen(request, timeout=60) as response:
            answer = json.loads(response.read())
            cached = answer["usage"]["prompt_tokens_details"]["cached_tokens"]
            assert int(response.headers["x-rumormill-cached-tokens"]) == cached
            return cached, answer

    def grpc(self, tenant: str, at: int, prompt: str, policy: str = "local") -> tuple[int, str]:
        """(cached tokens, the node that answered) of a request with a tenant's certificate."""
        last = list(self.clients[tenant, at].generate(prompt, SAMPLING, policy=policy, timeout_s=60))[-1]
        if not last.usage.cached_tokens:
            assert last.route.predicted_cached_tokens == 0
        return last.usage.cached_tokens, last.route.node


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("isolation")
    make_folder(folder / "tiny", "llama", max_position_embeddings=4096)
    keys = folder / "keys"
    keys.touch(mode=0o600)
    keys.write_text("".join(f"{name} {key}\n" for name, key in KEYS.items()))
    return folder


def options(folder: Path, token: MeshToken) -> list[str]:
    return [
        "--model", str(folder / "tiny"), "--kv-memory-mib", "32", "--no-mdns", "--token", str(token),
        "--api-keys", str(folder / "keys"),
    ]  # fmt: skip


@pytest.fixture(scope="module")
def isolated(folder: Path) -> Iterator[Nodes]:
    token = MeshToken.make()
    common = [*options(folder, token), "--isolate-tenants"]
    with (
        serving(folder / "s1", *common) as first,
        serving(folder / "s2", *common, "--peer", first["grpc"]) as second,
    ):
        nodes = Nodes(token, [first, second])
        yield nodes
        nodes.close()


@pytest.fixture(scope="module")
def shared(folder: Path) -> Iterator[Nodes]:
    token = MeshToken.make()
    with serving(folder / "s3", *options(folder, token)) as only:
        nodes = Nodes(token, [only])
        yield nodes
        nodes.close()


def text(subject: str) -> str:
    """A prompt like no other test's from its first letter on: parts of blocks are found too."""
    return (f"{subject} are what I want to know all about. " * LONG)[:LONG]


def chat(subject: str, *answers: str) -> dict[str, Any]:
    """A conversation as a client sends it at its next turn."""
    messages = [{"role": "user", "content": text(subject)}]
    for answer in answers:
        messages += [{"role": "assistant", "content": answer}, {"role": "user", "content": "And then?"}]
    return {"messages": messages}


def test_without_isolation_one_tenant_sees_what_another_asked(shared: Nodes) -> None:
    """What the rest of this file would miss if it could not see it."""
    assert shared.http("ada", 0, "completions", {"prompt": text("owls")})[0] == 0
    assert shared.http("bob", 0, "completions", {"prompt": text("owls")})[0] > LONG // 2
    assert shared.grpc("ada", 0, text("owls"))[0] > LONG // 2
    assert shared.grpc("ada", 0, text("cats"))[0] == 0
    assert shared.grpc("bob", 0, text("cats"))[0] > LONG // 2
    _, answer = shared.http("ada", 0, "chat/completions", chat("dogs"))
    said = answer["choices"][0]["message"]["content"]
    assert shared.http("bob", 0, "chat/completions", chat("dogs", said))[0] > LONG // 2


def test_api_keys_share_nothing(isolated: Nodes) -> None:
    body = {"prompt": text("foxes")}
    assert isolated.http("ada", 0, "completions", body)[0] == 0
    assert isolated.http("ada", 0, "completions", body)[0] > LONG // 2
    assert isolated.http("bob", 0, "completions", body)[0] == 0
    assert isolated.http("bob", 0, "completions", body)[0] > LONG // 2


def test_certificates_share_nothing_with_each_other_nor_with_keys(isolated: Nodes) -> None:
    assert isolated.grpc("ada", 0, text("hares"))[0] == 0
    assert isolated.grpc("ada", 0, text("hares"))[0] > LONG // 2
    assert isolated.grpc("bob", 0, text("hares"))[0] == 0
    assert isolated.http("bob", 0, "completions", {"prompt": text("hares")})[0] == 0


def test_the_turns_of_a_conversation_are_its_owners_alone(isolated: Nodes) -> None:
    _, first = isolated.http("ada", 0, "chat/completions", chat("bees"))
    said = first["choices"][0]["message"]["content"]
    assert isolated.http("ada", 0, "chat/completions", chat("bees", said))[0] > LONG // 2
    assert isolated.http("bob", 0, "chat/completions", chat("bees", said))[0] == 0
    assert isolated.http("bob", 0, "chat/completions", chat("bees", said, "No."))[0] > LONG // 2, "his own"


def test_forwarded_requests_find_their_owners_blocks_alone(isolated: Nodes) -> None:
    """Whichever node answers, and wherever the request came in."""
    ids = [node["node_id"] for node in isolated.nodes]
    seen = {"ada": set[tuple[int, str]](), "bob": set[tuple[int, str]]()}
    everywhere = {(at, node_id) for at in range(2) for node_id in ids}
    for number in range(60):
        prompt = text(f"{chr(ord('!') + number)} ships")
        for at in range(2):
            isolated.grpc("ada", at, prompt)
        entry = number % 2
        for tenant, cached in (("bob", False), ("ada", True)):
            tokens, answered = isolated.grpc(tenant, entry, prompt, "random")
            assert (tokens > LONG // 2) == cached, f"{tenant} finds {tokens} tokens cached at {answered}"
            assert cached or tokens == 0
            seen[tenant].add((entry, answered))
        if all(places == everywhere for places in seen.values()):
            return
    pytest.fail(f"not every way was tried: {seen}")
