"""What docs/grpc.md says, done; and health while a node drains."""

from __future__ import annotations

import os
import re
import subprocess
import sys
import threading
from pathlib import Path

import grpc
import pytest
from grpc_health.v1 import health_pb2, health_pb2_grpc

from certs.roles import Role
from certs.token import MeshToken
from certs.token_source import caller_credentials
from node.client import Client
from node.demo.local_mesh import LocalMesh
from rumormill.v1 import inference_pb2
from tests.e2e.conftest import ROOT, rumormill, serving

pytestmark = pytest.mark.e2e

TEXT = (ROOT / "docs" / "grpc.md").read_text()
TOKEN_CLIENT, ASYNC_CLIENT, STUBS = re.findall(r"```python\n(.*?)```", TEXT, re.DOTALL)
(SHELL,) = re.findall(r"```sh\n(.*?)```", TEXT, re.DOTALL)


@pytest.fixture(scope="module")
def certificates(mesh: LocalMesh, tmp_path_factory: pytest.TempPathFactory) -> tuple[str, str]:
    """A folder with a client certificate, and the server name to expect."""
    folder = tmp_path_factory.mktemp("client")
    issued = rumormill("certs", "issue", "--token", mesh.token, "--out", str(folder), "--json").json()
    return str(folder), issued["server_name"]


def python(program: str, *arguments: str) -> str:
    done = subprocess.run(
        [sys.executable, "-c", program, *arguments],
        capture_output=True,
        text=True,
        timeout=120,
        cwd=ROOT,
        check=False,
    )
    assert done.returncode == 0, done.stderr
    return done.stdout


def test_every_client_says_the_same(mesh: LocalMesh, certificates: tuple[str, str]) -> None:
    address = mesh.nodes[0].grpc
    said = {
        python(TOKEN_CLIENT, address, mesh.token),
        python(ASYNC_CLIENT, address, mesh.token),
        python(STUBS, address, *certificates),
    }
    assert len(said) == 1
    assert said != {""}


def test_the_shell_commands(mesh: LocalMesh, certificates: tuple[str, str]) -> None:
    folder, name = certificates
    path = f"{Path(sys.executable).parent}{os.pathsep}{os.environ['PATH']}"
    variables = {"FOLDER": folder, "SERVER_NAME": name, "ADDRESS": mesh.nodes[0].grpc, "PATH": path}
    done = subprocess.run(
        ["bash", "-euo", "pipefail", "-c", SHELL],
        capture_output=True,
        text=True,
        timeout=120,
        env={**os.environ, **variables},
        check=False,
    )
    assert done.returncode == 0, done.stderr
    assert "json_schema" in done.stdout
    assert '"status": "SERVING"' in done.stdout
    assert "topLogprobs" in done.stdout or "top_logprobs" in done.stdout


def test_a_draining_node_says_that_it_does_not_serve(tmp_path: Path) -> None:
    """While what it runs goes on to its end."""
    token = str(MeshToken.make())
    with serving(tmp_path, "--no-mdns", "--token", token) as ready:
        credentials = caller_credentials(MeshToken.parse(token), Role.OPERATOR)
        with Client.from_token(ready["grpc"], token, Role.OPERATOR) as client:
            sampling = inference_pb2.Sampling(max_tokens=200, ignore_eos=True)
            answer = client.generate("The sea is", sampling)
            tokens = len(next(response for response in answer if response.token_ids).token_ids)
            options = (("grpc.ssl_target_name_override", credentials.any_node_name),)
            with grpc.secure_channel(ready["grpc"], credentials.channel_credentials(), options) as channel:
                watching = health_pb2_grpc.HealthStub(channel).Watch(health_pb2.HealthCheckRequest())  # type: ignore[attr-defined]
                end = threading.Timer(60, watching.cancel)
                end.start()
                assert next(watching).status == health_pb2.HealthCheckResponse.SERVING
                assert client.drain() == 1
                assert next(watching).status == health_pb2.HealthCheckResponse.NOT_SERVING
                end.cancel()
            tokens += sum(len(response.token_ids) for response in answer)
    assert tokens == 200
