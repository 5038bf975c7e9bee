"""Leaves, authorities and tokens are changed under load: real nodes, real TLS, and no request is dropped."""

from __future__ import annotations

import asyncio
import shutil
import threading
import time
import urllib.request
from collections import Counter
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

from certs import pki
from certs.credentials import Credentials
from certs.directory_source import directory_credentials
from certs.files import write_atomically
from certs.roles import Role
from certs.token import MeshToken
from certs.token_file import CHECK_PERIOD_S
from certs.token_source import caller_credentials
from node.client import Client, ClientError
from overlay.net.first_contact import first_contact
from overlay.net.targets import parse_seed
from rumormill.v1 import inference_pb2
from tests.e2e.conftest import serving
from tests.unit.engine.conftest import make_folder

pytestmark = [pytest.mark.e2e, pytest.mark.soak]

SAMPLING = inference_pb2.Sampling(max_tokens=8, ignore_eos=True)
CALLS_PER_CONNECTION = 5
STEP_CALLS = 6
"""Requests of each kind, each way, that a step must see before the next one."""


class Load:
    """Clients that ask without pause: over gRPC at both nodes, on kept and on new connections, and HTTP."""

    def __init__(self, nodes: list[dict[str, str]], credentials: Callable[[], Credentials]) -> None:
        """`credentials` are taken anew for each connection, as a client's own rotation would."""
        self._nodes = nodes
        self._credentials = credentials
        self._ending = False
        self.answered: Counter[str] = Counter()
        self.dropped: list[str] = []
        self._threads = [threading.Thread(target=self._grpc, args=(node,)) for node in nodes]
        self._threads += [threading.Thread(target=self._http, args=(node,)) for node in nodes]

    def __enter__(self) -> Load:
        for thread in self._threads:
            thread.start()
        self.goes_on()
        return self

    def __exit__(self, *_: object) -> None:
        self._ending = True
        for thread in self._threads:
            thread.join()

    def _grpc(self, node: dict[str, str]) -> None:
        while not self._ending:
            try:
                with Client(node["grpc"], self._credentials()) as client:
                    for _ in range(CALLS_PER_CONNECTION):
                        answers = list(client.generate("Hello", SAMPLING, policy="random", timeout_s=30))
                        assert sum(len(answer.token_ids) for answer in answers) == SAMPLING.max_tokens
                        where = "here" if answers[-1].route.node == node["node_id"] else "elsewhere"
                        self.answered[f"gRPC {node['grpc']} {where}"] += 1
            except (ClientError, AssertionError) as error:
                self.dropped.append(f"gRPC {node['grpc']}: {error}")

    def _http(self, node: dict[str, str]) -> None:
        body = b'{"prompt": "Hello", "max_tokens": 8}'
        headers = {"content-type": "application/json"}
        while not self._ending:
            request = urllib.request.Request(f"{node['http']}/v1/completions", body, headers)
            try:
                with urllib.request.urlopen(request, timeout=30) as response:
                    assert b"finish_reason" in response.read()
                    self.answered[f"HTTP {node['http']}"] += 1
            except OSError as error:
                self.dropped.append(f"HTTP {node['http']}: {error}")
            time.sleep(0.01)

    def goes_on(self) -> None:
        """Returns when every kind of request has been answered again and again, both ways."""
        kinds = [f"gRPC {node['grpc']} {where}" for node in self._nodes for where in ("here", "elsewhere")]
        kinds += [f"HTTP {node['http']}" for node in self._nodes]
        before = self.answered.copy()
        until = time.monotonic() + 120
        while any(self.answered[kind] < before[kind] + STEP_CALLS for kind in kinds):
            assert not self.dropped, self.dropped[:5]
            assert time.monotonic() < until, f"{self.answered - before} of {kinds}"
            time.sleep(0.05)
        assert not self.dropped, self.dropped[:5]


@pytest.fixture(scope="module")
def model(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return make_folder(tmp_path_factory.mktemp("model") / "tiny", "llama")


@contextmanager
def two_nodes(folder: Path, model: Path, trust: list[list[str]]) -> Iterator[list[dict[str, str]]]:
    common = ["--model", str(model), "--kv-memory-mib", "32", "--no-mdns"]
    with (
        serving(folder / "s1", *common, *trust[0]) as first,
        serving(folder / "s2", *common, *trust[1], "--peer", first["grpc"]) as second,
    ):
        yield [first, second]


def leaf_of(node: dict[str, str], credentials: Credentials) -> bytes:
    """What a node shows to whoever connects now."""
    return asyncio.run(first_contact(parse_seed(node["grpc"]), None, credentials)).leaf


def until_shown(nodes: list[dict[str, str]], before: list[bytes], credentials: Credentials) -> list[bytes]:
    """Waits until every node shows another leaf."""
    until = time.monotonic() + 30
    while True:
        now = [leaf_of(node, credentials) for node in nodes]
        if not any(one == other for one, other in zip(now, before, strict=True)):
            return now
        assert time.monotonic() < until, "a node keeps its old leaf"
        time.sleep(0.1)


def test_leaves_and_authorities_are_replaced(tmp_path: Path, model: Path) -> None:
    old, new = tmp_path / "old", tmp_path / "new"
    for authority in (old, new):
        pki.init(authority, "prod")
    shutil.copy(old / "hash.key", new / "hash.key")
    only_new = (new / "ca.crt").read_bytes()
    both = (old / "ca.crt").read_bytes() + only_new
    folders = [tmp_path / "n1", tmp_path / "n2"]
    client = tmp_path / "client"
    for folder in folders:
        pki.issue(old, Role.NODE, folder)
    pki.issue(old, Role.CLIENT, client, "carl")
    retired = tmp_path / "retired"
    shutil.copytree(client, retired)

    def mine() -> Credentials:
        return directory_credentials(client)

    with two_nodes(tmp_path, model, [["--certs", str(folder)] for folder in folders]) as nodes:
        with Load(nodes, mine) as load:
            leaves = [leaf_of(node, mine()) for node in nodes]
            for _ in range(3):
                for folder in folders:
                    pki.issue(old, Role.NODE, folder)
                leaves = until_shown(nodes, leaves, mine())
                load.goes_on()
            for authority in (old, new):  # both vouch for the mesh from now on
                (authority / "ca.crt").write_bytes(both)
            for folder in folders:  # a running node forgives a file that is half written
                (folder / "ca.crt").write_bytes(both)
            write_atomically(client / "ca.crt", both)
            load.goes_on()
            for folder in folders:
                pki.issue(new, Role.NODE, folder)
            leaves = until_shown(nodes, leaves, mine())
            pki.issue(new, Role.CLIENT, client, "carl")
            load.goes_on()
            load.goes_on()  # until no connection is older than the new leaves
            for folder in folders:
                (folder / "ca.crt").write_bytes(only_new)
            write_atomically(client / "ca.crt", only_new)
            time.sleep(2 * CHECK_PERIOD_S)
            load.goes_on()
        print(dict(load.answered))
        assert not load.dropped
        (retired / "ca.crt").write_bytes(both)
        with (
            Client(nodes[0]["grpc"], directory_credentials(retired)) as late,
            pytest.raises(ClientError),
        ):
            list(late.generate("Hello", SAMPLING))


def test_the_token_is_changed(tmp_path: Path, model: Path) -> None:
    old, new = MeshToken.make(), MeshToken.make()
    files = [tmp_path / "t1", tmp_path / "t2"]
    held = [old]

    def write(*tokens: MeshToken) -> None:
        for file in files:
            file.touch(mode=0o600)
            file.write_text("".join(f"{token}\n" for token in tokens))

    def mine() -> Credentials:
        return caller_credentials(held[0], Role.CLIENT)

    write(old)
    with two_nodes(tmp_path, model, [["--token-file", str(file)] for file in files]) as nodes:
        with Load(nodes, mine) as load:
            write(old, new)
            time.sleep(2 * CHECK_PERIOD_S)
            load.goes_on()
            write(new, old)
            until_shown(nodes, [b"", b""], caller_credentials(new, Role.NODE))
            load.goes_on()
            held[0] = new
            load.goes_on()
            load.goes_on()  # until no connection is older than that
            write(new)
            time.sleep(2 * CHECK_PERIOD_S)
            load.goes_on()
        print(dict(load.answered))
        assert not load.dropped
        for token, may in ((new, True), (old, False)):
            with Client(nodes[1]["grpc"], caller_credentials(token, Role.CLIENT)) as client:
                if may:
                    assert list(client.generate("Hello", SAMPLING))
                else:
                    with pytest.raises(ClientError):
                        list(client.generate("Hello", SAMPLING))
