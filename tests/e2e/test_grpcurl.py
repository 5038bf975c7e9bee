"""A foreign gRPC tool, with a client certificate and without."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path

import pytest

from node.demo.local_mesh import LocalMesh
from tests.e2e.conftest import rumormill

pytestmark = pytest.mark.e2e

GRPCURL = Path(sys.executable).parent / "grpcurl"


@pytest.fixture(scope="module")
def certificates(mesh: LocalMesh, tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, str]:
    """A folder with a client certificate, and the server name to expect."""
    folder = tmp_path_factory.mktemp("client")
    issued = rumormill("certs", "issue", "--token", mesh.token, "--out", str(folder), "--json").json()
    return folder, issued["server_name"]


def grpcurl(certificates: tuple[Path, str], address: str, *call: str, data: str = "") -> str:
    folder, name = certificates
    tls = ["-cacert", f"{folder}/ca.crt", "-cert", f"{folder}/tls.crt", "-key", f"{folder}/tls.key"]
    request = ["-d", data] if data else []
    done: subprocess.CompletedProcess[str] = subprocess.run(
        [str(GRPCURL), *tls, "-servername", name, *request, address, *call],
        capture_output=True,
        text=True,
        timeout=60,
        check=False,
    )
    return done.stdout + done.stderr


def test_a_client_certificate_lists_services_and_streams_an_answer(
    mesh: LocalMesh, certificates: tuple[Path, str]
) -> None:
    address = mesh.nodes[0].grpc
    listed = grpcurl(certificates, address, "list").split()
    assert {"rumormill.v1.Inference", "rumormill.v1.Overlay", "rumormill.v1.Admin"} <= set(listed)
    request = json.dumps({"prompt": "The capital of France is", "sampling": {"maxTokens": 6}})
    streamed = grpcurl(certificates, address, "rumormill.v1.Inference/Generate", data=request)
    assert "Paris" in "".join(part.get("text", "") for part in objects(streamed))
    assert objects(streamed)[-1]["finish_reason"] == "FINISH_REASON_LENGTH"


def test_bad_requests_get_their_status(mesh: LocalMesh, certificates: tuple[Path, str]) -> None:
    generate = "rumormill.v1.Inference/Generate"
    for request, status, says in (
        ({}, "InvalidArgument", "empty"),
        ({"prompt": "word " * 9000}, "InvalidArgument", "context"),
        ({"prompt": "x", "model": "gpt-5"}, "NotFound", "not served here"),
        ({"prompt": "x", "sampling": {"temperature": -1}}, "InvalidArgument", "temperature"),
        ({"prompt": "x", "policy": "best"}, "InvalidArgument", "least-loaded"),
        ({"tokenIds": {"ids": [99999999]}}, "InvalidArgument", "vocabulary"),
    ):
        said = grpcurl(certificates, mesh.nodes[0].grpc, generate, data=json.dumps(request))
        assert f"Code: {status}" in said
        assert says in said


def test_a_client_may_neither_gossip_nor_administrate(
    mesh: LocalMesh, certificates: tuple[Path, str]
) -> None:
    for method in ("Overlay/Forward", "Overlay/Gossip", "Admin/GetStatus", "Admin/Drain"):
        said = grpcurl(certificates, mesh.nodes[0].grpc, f"rumormill.v1.{method}", data="{}")
        assert "Code: PermissionDenied" in said, said


def test_without_a_certificate_there_is_nothing(mesh: LocalMesh, certificates: tuple[Path, str]) -> None:
    folder, name = certificates
    for tls in (["-cacert", str(folder / "ca.crt"), "-servername", name], ["-insecure"], ["-plaintext"]):
        done = subprocess.run(
            [GRPCURL, "-connect-timeout", "3", *tls, mesh.nodes[0].grpc, "list"],
            capture_output=True,
            text=True,
            timeout=60,
            check=False,
        )
        assert done.returncode != 0
        assert "rumormill" not in done.stdout


def objects(stream: str) -> list[dict[str, str]]:
    """The JSON objects that follow each other in a text."""
    decoder, found, at = json.JSONDecoder(), [], 0
    while at < len(stream.rstrip()):
        value, at = decoder.raw_decode(stream, at)
        found.append(value)
        while at < len(stream) and stream[at].isspace():
            at += 1
    return found


def test_health_can_be_watched(mesh: LocalMesh, certificates: tuple[Path, str]) -> None:
    folder, name = certificates
    tls = ["-cacert", f"{folder}/ca.crt", "-cert", f"{folder}/tls.crt", "-key", f"{folder}/tls.key"]
    call = [mesh.nodes[0].grpc, "grpc.health.v1.Health/Watch"]
    with subprocess.Popen(
        [str(GRPCURL), *tls, "-servername", name, *call], stdout=subprocess.PIPE, text=True
    ) as watching:
        try:
            assert watching.stdout is not None
            assert "SERVING" in watching.stdout.readline() + watching.stdout.readline()
        finally:
            watching.kill()
