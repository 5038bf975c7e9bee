"""Nonsense by the ten thousand at every door of a real node: typed refusals, bounded memory, and it goes on.

The node is a process of its own; an honest member of its mesh and an honest client look on all the while.
"""

from __future__ import annotations

import asyncio
import http.client
import json
import os
import random
import subprocess
import sys
import threading
from collections import Counter
from collections.abc import Iterator
from contextlib import closing, suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import grpc
import grpc.aio
import psutil
import pytest
from google.protobuf.message import Message

from certs.credentials import Credentials
from certs.roles import Role
from certs.token import MeshToken
from certs.token_source import caller_credentials
from node.client import Client
from overlay.core.types import NodeId
from overlay.net.codec import node_id_bytes
from overlay.net.targets import parse_seed
from rumormill.v1 import admin_pb2, inference_pb2
from rumormill.v1 import overlay_pb2 as pb
from tests.security.mutations import mutated, mutated_body, random_message, tweaked
from tests.security.test_hostile_peers import SPECIMENS, hello
from tests.unit.engine.conftest import make_folder
from tests.unit.overlay.net.meshes import Member, eventually

pytestmark = pytest.mark.e2e

LONG = [pytest.mark.soak, pytest.mark.timeout(3000)]
SEED = 20_261_201
FRAMES_PER_STREAM = 8
STREAMS_AT_ONCE = 8
MAX_GROWTH_BYTES = 96 << 20
"""Of the node's process, between its first hundred streams or bodies and its last."""

ENDS = (grpc.StatusCode.OK, grpc.StatusCode.CANCELLED)
CUT_OFF = "Internal error from Core"
"""What gRPC's client calls a stream that ended while it wrote."""

GOSSIP = "/rumormill.v1.Overlay/Gossip"


@dataclass
class Victim:
    """A node's process, and how to reach it."""

    process: subprocess.Popen[str]
    log: Path
    token: MeshToken
    grpc: str
    http: str

    def caller(self, role: Role) -> Credentials:
        return caller_credentials(self.token, role)

    def memory(self) -> int:
        """Of the node itself and of its engine, in bytes."""
        whole = psutil.Process(self.process.pid)
        return sum(each.memory_info().rss for each in (whole, *whole.children(recursive=True)))

    def answers(self) -> bool:
        """Whether an honest client is served."""
        with Client(self.grpc, self.caller(Role.CLIENT)) as client:
            sampling = inference_pb2.Sampling(max_tokens=4, ignore_eos=True)
            answers = list(client.generate("Hello", sampling, timeout_s=60))
        return sum(len(answer.token_ids) for answer in answers) == 4

    def is_well(self) -> bool:
        """Nothing failed that it did not expect, and it is the process that it was."""
        assert self.process.poll() is None, self.log.read_text()[-2000:]
        said = self.log.read_text()
        assert "Traceback" not in said, said[said.index("Traceback") - 2000 :][:4000]
        assert '"level": "error"' not in said
        return True


@pytest.fixture(scope="module")
def victim(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Victim]:
    folder = tmp_path_factory.mktemp("victim")
    # A small context, so that a number made large by chance does not keep the engine for long.
    model = make_folder(folder / "tiny", "llama", max_position_embeddings=128)
    token = MeshToken.make()
    command = [sys.executable, "-m", "node.cli", "up", "--json", "--listen", "127.0.0.1", "--no-mdns"]
    command += [
        "--grpc-port",
        "0",
        "--http-port",
        "0",
        "--state-dir",
        str(folder / "state"),
        "--threads",
        "1",
    ]
    command += ["--model", str(model), "--kv-memory-mib", "32", "--token", str(token)]
    log = folder / "log"
    env = {key: value for key, value in os.environ.items() if not key.startswith("RUMORMILL_")}
    with log.open("w") as stderr:
        process = subprocess.Popen(command, stdout=subprocess.PIPE, stderr=stderr, text=True, env=env)
    assert process.stdout is not None
    line = process.stdout.readline()
    assert line, log.read_text()
    ready = json.loads(line)
    yield Victim(process, log, token, ready["grpc"], ready["http"])
    process.terminate()
    process.wait(30)
    process.stdout.close()


# -- gossip ---------------------------------------------------------------------------------------


def nonsense(rng: random.Random) -> bytes:
    """A frame broken in its bytes, in its values, or in one value."""
    kind = rng.randrange(3)
    if kind == 0:
        return mutated(rng, rng.choice(SPECIMENS).SerializeToString())
    if kind == 1:
        return random_message(rng, pb.Frame).SerializeToString()
    return tweaked(rng, rng.choice(SPECIMENS)).SerializeToString()


async def attack(victim: Victim, rng: random.Random, frames: int) -> Counter[str]:
    """Some frames on one stream of a new member of the mesh; how the stream ended."""
    attacker = victim.caller(Role.NODE)
    options = (
        ("grpc.ssl_target_name_override", attacker.any_node_name),
        ("grpc.use_local_subchannel_pool", 1),
    )
    ends: Counter[str] = Counter()
    channel = grpc.aio.secure_channel(victim.grpc, attacker.channel_credentials(), options=options)
    async with channel, asyncio.timeout(60):
        method: grpc.aio.StreamStreamMultiCallable[bytes, bytes] = channel.stream_stream(GOSSIP)
        call = method()
        with suppress(grpc.aio.AioRpcError, asyncio.InvalidStateError):
            await call.write(hello(attacker))
            for _ in range(frames):
                await call.write(nonsense(rng))
                ends["written"] += 1
            await call.done_writing()
        with suppress(grpc.aio.AioRpcError):
            while (data := await call.read()) is not grpc.aio.EOF:
                assert isinstance(data, bytes)
                frame = pb.Frame.FromString(data)
                if frame.WhichOneof("body") == "bye":
                    ends[pb.ByeReason.Name(frame.bye.reason)] += 1
        code, details = await call.code(), await call.details()
        assert code in ENDS or details == CUT_OFF, details
        ends[code.name] += 1
    return ends


@pytest.mark.parametrize("frames", [5_000, pytest.param(100_000, marks=LONG)])
async def test_gossip(frames: int, victim: Victim, tmp_path: Path) -> None:
    rng = random.Random(SEED)
    ends: Counter[str] = Counter()
    async with Member(tmp_path, token=victim.token, seeds=(parse_seed(victim.grpc),)) as friend:
        await eventually(lambda: len(friend.mesh.peers()) == 1 and friend.mesh.peers()[0].connected)
        before = 0
        sent = 0
        while sent < frames:
            streams = [attack(victim, rng, FRAMES_PER_STREAM) for _ in range(STREAMS_AT_ONCE)]
            for each in await asyncio.gather(*streams):
                ends += each
            sent += FRAMES_PER_STREAM * STREAMS_AT_ONCE
            if not before and sent >= 100 * FRAMES_PER_STREAM:
                before = victim.memory()
        assert victim.is_well()
        assert any(peer.connected for peer in friend.mesh.peers() if peer.state.value == "alive")
    print(dict(ends), f"grown by {(victim.memory() - before) / 2**20:.0f} MiB")
    assert victim.memory() - before < MAX_GROWTH_BYTES
    # Nonsense was taken for what it is, and what only looks odd was not.
    assert ends["BYE_REASON_PROTOCOL"] > sent / FRAMES_PER_STREAM / 10
    assert ends["written"] > sent / 4
    assert victim.answers()


# -- HTTP -----------------------------------------------------------------------------------------

CHAT = {
    "model": "tiny", "messages": [{"role": "user", "content": "Hi"}], "max_tokens": 1, "temperature": 0,
    "top_p": 1, "seed": 1, "stop": ["x"], "stream": False,
}  # fmt: skip
COMPLETION = {"model": "tiny", "prompt": "Hi", "max_tokens": 1, "temperature": 0, "stream": True}
FIELDS = (*CHAT, *COMPLETION, "n", "top_k", "min_p", "logit_bias", "logprobs", "top_logprobs", "tools")
FIELDS += ("response_format", "stream_options", "presence_penalty", "user", "echo", "priority", "suffix")
TYPES = ("application/json", "application/json; charset=utf-16", "text/plain", "application/x-ndjson", "")
REFUSALS = {400, 404, 413, 415, 422, 429, 503, 504}


def ask(connection: http.client.HTTPConnection, rng: random.Random) -> int:
    """One body; the status, after its answer was found to be what that status promises."""
    path, specimen = rng.choice((("chat/completions", CHAT), ("completions", COMPLETION)))
    body = mutated_body(rng, specimen, FIELDS)
    kind = rng.choice(TYPES) if rng.random() < 0.1 else "application/json"
    connection.request("POST", f"/v1/{path}", body, {"content-type": kind} if kind else {})
    response = connection.getresponse()
    said = response.read()
    if response.status != 200:
        assert response.status in REFUSALS, (response.status, body, said)
        error = json.loads(said)["error"]
        assert error["message"], body
        assert error["type"], body
    elif response.headers["content-type"].startswith("text/event-stream"):
        assert said.endswith(b"data: [DONE]\n\n"), (body, said)
    else:
        assert json.loads(said)["choices"], body
    return response.status


def ask_many(
    victim: Victim, rng: random.Random, count: int, statuses: Counter[int], faults: list[Any]
) -> None:
    host = victim.http.removeprefix("http://")
    with closing(http.client.HTTPConnection(host, timeout=60)) as connection:
        for _ in range(count):
            try:
                statuses[ask(connection, rng)] += 1
            except (http.client.HTTPException, ConnectionError):
                connection.close()  # hung up on: what was no request was answered before
                statuses[0] += 1
            except (AssertionError, ValueError, KeyError, OSError) as fault:
                faults.append(fault)
                return


@pytest.mark.parametrize("bodies", [500, pytest.param(10_000, marks=LONG)])
def test_http(bodies: int, victim: Victim) -> None:
    statuses: Counter[int] = Counter()
    faults: list[Any] = []

    def fuzz(count: int, seed: int) -> None:
        rngs = [random.Random(seed + number) for number in range(4)]
        threads = [
            threading.Thread(target=ask_many, args=(victim, rng, count // 4, statuses, faults))
            for rng in rngs
        ]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
        assert not faults, faults[0]

    fuzz(100, SEED)
    before = victim.memory()
    fuzz(bodies - 100, SEED + 4)
    assert victim.is_well()
    print(dict(statuses), f"grown by {(victim.memory() - before) / 2**20:.0f} MiB")
    assert victim.memory() - before < MAX_GROWTH_BYTES
    assert statuses[200] > bodies / 20
    assert statuses[400] > bodies / 5
    assert statuses[0] < bodies / 20
    assert victim.answers()


# -- gRPC -----------------------------------------------------------------------------------------

TYPED = {
    grpc.StatusCode.OK, grpc.StatusCode.INVALID_ARGUMENT, grpc.StatusCode.NOT_FOUND,
    grpc.StatusCode.RESOURCE_EXHAUSTED, grpc.StatusCode.UNAVAILABLE, grpc.StatusCode.DEADLINE_EXCEEDED,
}  # fmt: skip


def methods(victim: Victim, sender: NodeId) -> list[tuple[str, Role, Message]]:
    """Full name, who may call it, and a request that is in order."""
    with Client(victim.grpc, victim.caller(Role.OPERATOR)) as client:
        namespace = pb.Namespace(model=client.status().model.namespace)
    sampling = inference_pb2.Sampling(max_tokens=1, top_p=1, repetition_penalty=1)
    forward = pb.ForwardRequest(
        request_id="r", entry_node=node_id_bytes(sender), hops=1, namespace=namespace,
        prompt=inference_pb2.TokenIds(ids=[2, 3, 4]), sampling=sampling,
    )  # fmt: skip
    chat = inference_pb2.Chat(messages=[inference_pb2.ChatMessage(role="user", content="Hi")])
    return [
        (
            "/rumormill.v1.Inference/Generate",
            Role.CLIENT,
            inference_pb2.GenerateRequest(chat=chat, sampling=sampling),
        ),
        (
            "/rumormill.v1.Inference/Generate",
            Role.CLIENT,
            inference_pb2.GenerateRequest(prompt="Hi", sampling=sampling),
        ),
        ("/rumormill.v1.Inference/Tokenize", Role.CLIENT, inference_pb2.TokenizeRequest(prompt="Hi")),
        ("/rumormill.v1.Admin/ExplainRoute", Role.OPERATOR, admin_pb2.ExplainRouteRequest(prompt="Hi")),
        ("/rumormill.v1.Overlay/Forward", Role.NODE, forward),
        ("/rumormill.v1.Overlay/Describe", Role.NODE, pb.DescribeRequest(runs=3)),
    ]


def rewritten(rng: random.Random, specimen: Message) -> bytes:
    kind = rng.randrange(3)
    if kind == 0:
        return mutated(rng, specimen.SerializeToString())
    message = tweaked(rng, specimen) if kind == 1 else random_message(rng, type(specimen))
    return message.SerializeToString()


@pytest.mark.parametrize("calls", [500, pytest.param(10_000, marks=LONG)])
async def test_grpc(calls: int, victim: Victim) -> None:
    rng = random.Random(SEED)
    callers = {role: victim.caller(role) for role in Role}
    known = methods(victim, NodeId(callers[Role.NODE].node_id))
    codes: Counter[grpc.StatusCode] = Counter()
    channels = {
        role: grpc.aio.secure_channel(
            victim.grpc,
            caller.channel_credentials(),
            options=(
                ("grpc.ssl_target_name_override", caller.any_node_name),
                ("grpc.use_local_subchannel_pool", 1),
            ),
        )
        for role, caller in callers.items()
    }
    before = victim.memory()
    for _ in range(calls):
        name, role, specimen = rng.choice(known)
        request = rewritten(rng, specimen)
        method: grpc.aio.UnaryStreamMultiCallable[bytes, bytes] = channels[role].unary_stream(name)
        call = method(request, timeout=60)
        with suppress(grpc.aio.AioRpcError):
            async for _ in call:
                pass
        code = await call.code()
        assert code in TYPED, (name, await call.details(), request)
        codes[code] += 1
    for channel in channels.values():
        await channel.close()
    print({code.name: count for code, count in codes.items()})
    assert victim.is_well()
    assert victim.memory() - before < MAX_GROWTH_BYTES
    assert codes[grpc.StatusCode.OK] > calls / 20
    assert codes[grpc.StatusCode.INVALID_ARGUMENT] > calls / 20
    assert victim.answers()
