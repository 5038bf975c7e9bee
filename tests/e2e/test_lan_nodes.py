"""Four machines, one `rumormill up` each: they become a mesh by themselves, and say nothing in clear."""

from __future__ import annotations

import base64
import http.client
import json
import socket
import struct
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import ExitStack, closing
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import pytest
from cryptography.hazmat.primitives.serialization import Encoding, NoEncryption, PrivateFormat
from zeroconf._dns import DNSText
from zeroconf._protocol.incoming import DNSIncoming

from certs.authority import Authority
from certs.node_key import load_private_key
from certs.roles import Role
from certs.token import MeshToken
from overlay.net.discovery import SERVICE_TYPE
from tests.e2e.capture import Capture
from tests.e2e.lan import Lan, new_lan, within
from tests.unit.engine.conftest import make_folder

pytestmark = pytest.mark.e2e

ROOT = Path(__file__).parents[2]
HOSTS = 4
MESH_SECONDS = 5.0
PROMPT = "Ninety-nine zebras waltz quietly through MARKER-7f3a9c Lisbon, humming xylophone music. " * 3


@dataclass
class Machine:
    """A host with one running node."""

    namespace: str
    folder: Path
    process: subprocess.Popen[str]
    node_id: str = ""

    def wait_ready(self) -> None:
        assert self.process.stdout is not None
        line = self.process.stdout.readline()
        assert line, (self.folder / "log").read_text()
        self.node_id = json.loads(line)["node_id"]

    def get(self, path: str) -> str:
        def fetch() -> str:
            with closing(http.client.HTTPConnection("127.0.0.1", 8080, timeout=10)) as connection:
                connection.request("GET", path)
                return connection.getresponse().read().decode()

        return within(self.namespace, fetch)

    def sees(self, others: int) -> bool:
        return f'rumormill_members{{state="alive"}} {others:.1f}\n' in self.get("/metrics")

    def ask(self, token: str, policy: str, prompt: str) -> dict[str, Any]:
        command = [sys.executable, "-m", "tests.e2e.ask", "127.0.0.1:7070", token, policy, prompt]
        done = subprocess.run(
            ["ip", "netns", "exec", self.namespace, *command],
            cwd=ROOT,
            capture_output=True,
            text=True,
            check=True,
        )
        answer: dict[str, Any] = json.loads(done.stdout)
        return answer


@dataclass
class Stranger:
    """A host with a member of another mesh; what it says goes to `said`."""

    process: subprocess.Popen[bytes]
    said: Path

    @property
    def lines(self) -> list[Any]:
        return [json.loads(line) for line in self.said.read_text().splitlines()]

    @property
    def node_id(self) -> str:
        return next((line for line in self.lines if isinstance(line, str)), "")

    @property
    def ever_met(self) -> set[str]:
        return {peer for line in self.lines if isinstance(line, list) for peer in line[0]}


@dataclass
class Meshes:
    """Machines of one token and strangers of another on one LAN, and what passed our machines' ports."""

    lan: Lan
    token: MeshToken
    ours: list[Machine]
    strangers: list[Stranger]
    by_mdns: bool
    formed_in_s: float
    captures: list[Capture] = field(default_factory=list)

    def captured(self) -> bytes:
        return b"".join(capture.everything() for capture in self.captures)


def spawn(host: str, folder: Path, model: Path, token: MeshToken, *options: str) -> Machine:
    folder.mkdir()
    command = [sys.executable, "-m", "node.cli", "up", "--json", "--until-eof", "--token", str(token)]
    command += ["--model", str(model), "--threads", "1", "--kv-memory-mib", "32", "--state-dir", str(folder)]
    with (folder / "log").open("w") as log:
        process = subprocess.Popen(
            ["ip", "netns", "exec", host, *command, *options],
            cwd=ROOT, stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=log, text=True,
        )  # fmt: skip
    return Machine(host, folder, process)


def spawn_stranger(host: str, folder: Path, token: MeshToken) -> Stranger:
    folder.mkdir()
    command = [sys.executable, "-m", "tests.e2e.lan_host", str(folder / "state"), str(token)]
    with (folder / "said").open("w") as said:
        process = subprocess.Popen(["ip", "netns", "exec", host, *command], cwd=ROOT, stdout=said)
    return Stranger(process, folder / "said")


def stop(machines: Sequence[Machine], strangers: Sequence[Stranger]) -> None:
    for stranger in strangers:
        stranger.process.terminate()
    for machine in machines:
        assert machine.process.stdin is not None
        machine.process.stdin.close()
    for stranger in strangers:
        stranger.process.wait(30)
    for machine in machines:
        machine.process.wait(30)
        assert machine.process.stdout is not None
        machine.process.stdout.close()


@pytest.fixture(scope="module", params=["mdns", pytest.param("one peer", marks=pytest.mark.soak)])
def meshes(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Meshes]:
    """One command a machine: by mDNS alone, or where multicast is blocked with one --peer."""
    folder = tmp_path_factory.mktemp("lan")
    model = make_folder(folder / "tiny", "llama", max_position_embeddings=4096)
    by_mdns = request.param == "mdns"
    seed = () if by_mdns else ("--peer", "10.77.0.1")
    token, other = MeshToken.make(), MeshToken.make()
    with new_lan() as lan, ExitStack() as stack:
        hosts = [lan.plug_in(number, multicast=by_mdns) for number in range(1, HOSTS + 3)]
        captures = [stack.enter_context(Capture(lan, number)) for number in range(1, HOSTS + 1)]
        names = hosts[:HOSTS]
        machines = [spawn(host, folder / host, model, token, *seed) for host in names]
        strangers = [spawn_stranger(host, folder / host, other) for host in hosts[HOSTS:]]
        stack.callback(stop, machines, strangers)
        for machine in machines:
            machine.wait_ready()
        started = time.monotonic()
        wait_for(lambda: all(machine.sees(HOSTS - 1) for machine in machines))
        formed = time.monotonic() - started
        yield Meshes(lan, token, machines, strangers, by_mdns, formed, captures)


def test_the_mesh_is_whole_soon_after_its_last_machine_is_ready(meshes: Meshes) -> None:
    print(f"whole after {meshes.formed_in_s:.2f} s")
    assert meshes.formed_in_s < MESH_SECONDS


def test_two_meshes_on_one_lan_never_mix(meshes: Meshes) -> None:
    a, b = meshes.strangers
    wait_for(lambda: bool(a.node_id and b.node_id))
    if meshes.by_mdns:
        wait_for(lambda: bool(a.ever_met and b.ever_met))
    assert a.ever_met <= {b.node_id}
    assert b.ever_met <= {a.node_id}
    for machine in meshes.ours:
        assert machine.sees(HOSTS - 1)


def encodings(ids: Sequence[int]) -> Iterator[bytes]:
    """A run of token ids in every way that programs write numbers."""
    for order in "<>":
        for size in "BHIQ":
            if size != "B" or max(ids) < 256:
                yield struct.pack(f"{order}{len(ids)}{size}", *ids)
    yield b"".join(map(varint, ids))
    for separator in (",", ", ", " "):
        yield separator.join(map(str, ids)).encode()


def varint(value: int) -> bytes:
    """Protocol Buffers' own."""
    out = bytearray()
    while value > 127:
        out.append(value & 127 | 128)
        value >>= 7
    return bytes((*out, value))


def writings(text: bytes) -> Iterator[bytes]:
    yield text
    yield text.hex().encode()
    yield text.decode("utf-8", "replace").encode("utf-16-le")
    # Wherever in a base64 text it starts, but for the letters that it shares with its neighbours.
    for lead in range(3):
        yield base64.b64encode(bytes(lead) + text)[4:-4]


WINDOW = 8


def needles(answer: dict[str, Any]) -> list[bytes]:
    """What must not be on the wire: any 15 tokens or bytes on end contain one whole window."""
    found: list[bytes] = []
    for ids in (answer["prompt_ids"], answer["token_ids"]):
        for at in range(0, len(ids) - WINDOW, WINDOW):
            found += encodings(ids[at : at + WINDOW])
    for text in (PROMPT.encode(), answer["text"].encode()):
        for at in range(0, len(text) - 2 * WINDOW, 2 * WINDOW):
            found += writings(text[at : at + 2 * WINDOW])
    return found


def say_in_clear(meshes: Meshes, data: bytes) -> None:
    """Plain TCP from the first machine to the second."""
    listener = within(meshes.ours[1].namespace, lambda: socket.create_server(("10.77.0.2", 8090)))

    def listen() -> None:
        with listener.accept()[0] as connection:
            while connection.recv(1 << 16):
                pass

    listening = threading.Thread(target=listen)
    listening.start()
    with within(meshes.ours[0].namespace, lambda: socket.create_connection(("10.77.0.2", 8090))) as speaker:
        speaker.sendall(data)
    listening.join()
    listener.close()


def wait_for(condition: Callable[[], bool]) -> None:
    until = time.monotonic() + 60
    while not condition():
        assert time.monotonic() < until
        time.sleep(0.05)


def test_no_text_and_no_token_of_a_forwarded_request_is_on_the_wire(meshes: Meshes) -> None:
    entry, token = meshes.ours[0], str(meshes.token)
    for _ in range(5 * HOSTS):
        answer = entry.ask(token, "random", PROMPT)
        if answer["node"] != entry.node_id:
            break
    else:
        pytest.fail("no request was forwarded")
    secrets = needles(answer)
    assert len(answer["token_ids"]) > 2 * WINDOW
    assert len(secrets) > 300
    captured = meshes.captured()
    assert len(captured) > 100_000
    assert not [secret for secret in secrets if secret in captured]
    # And they would have been seen.
    say_in_clear(meshes, b"\n".join(secrets))
    wait_for(lambda: all(secret in meshes.captured() for secret in secrets))


def private_bytes(meshes: Meshes) -> Iterator[bytes]:
    for role in (Role.OPERATOR, Role.NODE, Role.CLIENT):
        token, authority = meshes.token.for_role(role), Authority.from_token(meshes.token, role)
        yield str(token).encode()
        yield token.secret
        yield authority.certificate().public_bytes(Encoding.DER)[-100:]
        assert authority.private_key is not None
        yield authority.private_key.private_numbers().private_value.to_bytes(32, "big")
    yield meshes.token.block_hash_key
    for machine in meshes.ours:
        key = load_private_key(machine.folder / "node.key")
        yield key.private_numbers().private_value.to_bytes(32, "big")
        yield key.private_bytes(Encoding.DER, PrivateFormat.PKCS8, NoEncryption())


def test_mdns_says_where_nodes_are_and_nothing_else(meshes: Meshes) -> None:
    packets = [packet for capture in meshes.captures for packet in capture.mdns()]
    said = b"\0".join(packets)
    for secret in private_bytes(meshes):
        for form in (secret, secret.hex().encode(), base64.b64encode(secret), base64.b32encode(secret)):
            assert form.lower() not in said.lower()
    records = [answer for packet in packets for answer in DNSIncoming(packet).answers()]
    texts = {
        record.text
        for record in records
        if isinstance(record, DNSText) and record.name.endswith(SERVICE_TYPE)
    }
    ours = f"mesh={meshes.token.discovery_tag}".encode()
    assert bytes((len(ours),)) + ours in texts
    assert len(texts) <= 2, "one for each mesh"
    for machine in meshes.ours:
        assert any(record.name.startswith(machine.node_id) for record in records)
