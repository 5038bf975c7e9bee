"""A full node says so at once, before any prefill, and takes work again as soon as it has room."""

from __future__ import annotations

import time
import urllib.request
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from typing import Any, cast

import grpc
import pytest

from certs.token import MeshToken
from certs.token_source import node_credentials
from node.client import Client
from node.demo.local_mesh import LocalMesh
from node.forwarding import BUSY_TRAILER
from overlay.core.types import NodeId
from overlay.net.codec import node_id_bytes
from rumormill.v1 import inference_pb2, overlay_pb2, overlay_pb2_grpc

pytestmark = pytest.mark.e2e

FULL_AT = 64
LONG_PROMPT = "The sea is deep and wide. " * 200


@pytest.fixture(scope="module")
def mesh() -> Iterator[LocalMesh]:
    """Two nodes; more than `FULL_AT` queued tokens make either full."""
    options = ["--threads", "1", "--kv-memory-mib", "128", "--max-queued-tokens", str(FULL_AT)]
    with LocalMesh(2, options, report=lambda text: None) as local_mesh:
        yield local_mesh


@pytest.fixture(scope="module")
def forward(mesh: LocalMesh, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Forward]:
    """Calls the first node as a peer of its mesh would."""
    credentials = node_credentials(MeshToken.parse(mesh.token), tmp_path_factory.mktemp("peer"))
    options = (("grpc.ssl_target_name_override", credentials.any_node_name),)
    with (
        grpc.secure_channel(
            mesh.nodes[0].grpc, credentials.channel_credentials(), options=options
        ) as channel,
        mesh.client(0) as client,
    ):
        stub, model = overlay_pb2_grpc.OverlayStub(channel), client.status().model.namespace
        yield Forward(stub, model, NodeId(credentials.node_id))


class Forward:
    """Sends one small request; the time until the peer's first word, and whether it was BUSY."""

    def __init__(self, stub: overlay_pb2_grpc.OverlayStub, model: bytes, node_id: NodeId) -> None:
        self._stub = stub
        self._model = model
        self._node_id = node_id
        self._number = 0

    def refused(self, **fields: Any) -> grpc.Call:
        """How a request with these fields is refused."""
        with pytest.raises(grpc.RpcError) as refusal:
            list(self._stub.Forward(self._request(fields), timeout=60))
        return cast(grpc.Call, refusal.value)

    def _request(self, fields: dict[str, Any]) -> overlay_pb2.ForwardRequest:
        self._number += 1
        good: dict[str, Any] = {
            "request_id": f"r{self._number}",
            "entry_node": node_id_bytes(self._node_id),
            "hops": 1,
            "namespace": overlay_pb2.Namespace(model=self._model),
            "prompt": inference_pb2.TokenIds(ids=[1, 2, 3]),
            "sampling": inference_pb2.Sampling(max_tokens=1, top_p=1, repetition_penalty=1),
        }
        return overlay_pb2.ForwardRequest(**good | fields)

    def __call__(self) -> tuple[float, overlay_pb2.Busy | None]:
        started = time.perf_counter()
        call = self._stub.Forward(self._request({}), timeout=60)
        try:
            next(call)
            return time.perf_counter() - started, None
        except grpc.RpcError as error:
            elapsed = time.perf_counter() - started
            failure = cast(grpc.Call, error)  # what a channel raises is both
            assert failure.code() is grpc.StatusCode.RESOURCE_EXHAUSTED, failure.details()
            trailers: dict[str, Any] = dict(failure.trailing_metadata() or ())
            return elapsed, overlay_pb2.Busy.FromString(trailers[BUSY_TRAILER])
        finally:
            call.cancel()


def occupy(client: Client) -> None:
    list(client.generate(LONG_PROMPT, inference_pb2.Sampling(max_tokens=2), policy="local"))


def test_a_full_node_is_busy_at_once_and_open_again_soon(mesh: LocalMesh, forward: Forward) -> None:
    assert forward()[1] is None
    with mesh.client(0) as client, ThreadPoolExecutor(1) as pool:
        working = pool.submit(occupy, client)
        refusals, still_busy = [], 0
        while not working.done():
            elapsed, busy = forward()
            if busy is not None:
                refusals.append(elapsed)
                assert busy.retry_after_ms > 0
                assert busy.load.queued_prefill_tokens >= FULL_AT
        working.result()
        done = time.perf_counter()
        while (busy := forward()[1]) is not None:
            still_busy += 1
            assert time.perf_counter() - done < 30, "the node stays full with nothing to do"
        reopened = time.perf_counter() - done
    assert refusals
    refusals.sort()
    print(f"BUSY after {refusals[len(refusals) // 2] * 1000:.1f} ms (median of {len(refusals)})")
    print(f"open again {reopened * 1000:.0f} ms after the work was done")
    with mesh.client(0) as client:
        url = client.status().http_url
    with urllib.request.urlopen(f"{url}/metrics") as response:
        metrics = response.read().decode()
    assert f'rumormill_forwarded_here_total{{outcome="busy"}} {len(refusals) + still_busy}.0' in metrics
    assert 'rumormill_forwarded_here_total{outcome="accepted"}' in metrics


def test_what_a_peer_may_not_send_is_refused_by_status(forward: Forward) -> None:
    for field, value, says in (
        ("hops", 2, "1 hop"),
        ("entry_node", bytes(32), "entry_node"),
        ("client", "x" * 65, "client"),
        ("request_id", "", "request_id"),
        ("request_id", "x" * 65, "request_id"),
        ("namespace", overlay_pb2.Namespace(model=b"other"), "another model"),
        ("namespace", overlay_pb2.Namespace(salt=bytes(65)), "salt"),
        ("prompt", inference_pb2.TokenIds(), "token"),
        ("prompt", inference_pb2.TokenIds(ids=[10**9]), "49151"),
        ("sampling", inference_pb2.Sampling(max_tokens=1, temperature=-1, top_p=1), "temperature"),
    ):
        error = forward.refused(**{field: value})
        assert error.code() is grpc.StatusCode.INVALID_ARGUMENT, error.details()
        assert says in (error.details() or "")
