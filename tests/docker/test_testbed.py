"""Four nodes in containers: one mesh, reached from this machine, that no fault makes lose a request."""

from __future__ import annotations

import json
import ssl
import subprocess
import sys
import urllib.request
from pathlib import Path
from typing import Any

import pytest

from node.client import Client
from node.testbed import containers
from node.testbed.containers import FOLDER, docker
from node.testbed.testbed import Testbed
from rumormill.v1 import inference_pb2
from tests.docker.conftest import run_testbed

pytestmark = [pytest.mark.docker, pytest.mark.timeout(1800)]

GRPCURL = Path(sys.executable).parent / "grpcurl"
SECRETS = FOLDER / "secrets"


def secret(name: str) -> str:
    return (SECRETS / name).read_text().strip()


def show(report: dict[str, Any]) -> None:
    """One line of figures, for the record."""
    total = report["phases"]["all"]
    print(
        f"\n{report['fault']} {' '.join(report['targets'])}: {total['requests']} requests, "
        f"{total['failed']} failed, {total['lost']} lost with their entry, {total['moved']} moved, "
        f"longest gap {total['longest_gap_s']:.2f} s, "
        f"ttft p50 {total['ttft_p50_ms']:.0f} p95 {total['ttft_p95_ms']:.0f} ms, "
        f"whole again after {report['whole_again_s'] or 0:.1f} s"
    )


def test_four_healthy_nodes_see_one_another(started: Any, bed: Testbed) -> None:
    for node in started["nodes"]:
        print(
            f"\n{node['name']}: serving after {node['serving_after_s']:.1f} s, "
            f"healthy after {node['healthy_after_s']:.1f} s"
        )
    print(f"image: {started['image_bytes'] / 1e6:.0f} MB; whole after {started['whole_after_s']:.1f} s")
    assert len(started["nodes"]) == 4
    assert [bed.seen_by(node) for node in bed.nodes()] == [3] * 4


def test_a_prefix_that_one_node_has_serves_those_who_ask_another(bed: Testbed) -> None:
    prompt = "The following is a list of facts about rivers, each with its source. " * 30
    first, *others = bed.nodes()
    with bed.client(first.grpc) as client:
        owner = last(client, prompt, "local").route.node
    hits = 0
    for node in others:
        with bed.client(node.grpc) as client:
            for _ in range(100):
                if any(not c.is_self and c.cached_tokens for c in client.explain(prompt).candidates):
                    break
            answer = last(client, prompt, "cost")
        hits += answer.route.node == owner and answer.usage.cached_tokens > 0.9 * answer.usage.prompt_tokens
    assert hits == 3


def last(client: Client, prompt: str, policy: str) -> inference_pb2.GenerateResponse:
    return list(client.generate(prompt, inference_pb2.Sampling(max_tokens=2), policy=policy))[-1]


def test_grpcurl_reaches_it_with_a_client_certificate(bed: Testbed, tmp_path: Path) -> None:
    issue = ["certs", "issue", "--token", secret("operator-token"), "--out", str(tmp_path), "--json"]
    issued = subprocess.run(
        [sys.executable, "-m", "node.cli", *issue], capture_output=True, text=True, check=True
    )
    name = json.loads(issued.stdout)["server_name"]
    request = json.dumps({"prompt": "The capital of France is", "sampling": {"maxTokens": 6}})
    call = [bed.nodes()[0].grpc, "rumormill.v1.Inference/Generate"]
    tls = [f"-{kind}={tmp_path}/{file}" for kind, file in (("cert", "tls.crt"), ("key", "tls.key"))]
    trust = [f"-cacert={tmp_path}/ca.crt", "-servername", name]
    done = subprocess.run(
        [str(GRPCURL), *trust, *tls, "-d", request, *call], capture_output=True, text=True, check=False
    )
    assert "Paris" in done.stdout, done.stderr
    refused = subprocess.run(
        [str(GRPCURL), *trust, "-d", request, *call], capture_output=True, text=True, check=False
    )
    assert refused.returncode != 0


def test_metrics_are_scraped_over_tls_with_a_key_and_not_without(bed: Testbed) -> None:
    trust = ssl.create_default_context(cafile=str(SECRETS / "http.crt"))
    for node in bed.nodes():
        url = f"https://{node.http}/metrics"
        request = urllib.request.Request(
            url, headers={"authorization": f"Bearer {secret('metrics-api-key')}"}
        )
        with urllib.request.urlopen(request, context=trust) as answer:
            assert b"rumormill_kv_blocks" in answer.read()
        with pytest.raises(urllib.error.HTTPError, match="401"):
            urllib.request.urlopen(url, context=trust)


def test_it_runs_as_nobody_on_a_file_system_that_it_cannot_write(bed: Testbed) -> None:
    (node, *_) = bed.nodes()
    details = json.loads(docker("inspect", node.id))[0]
    assert details["HostConfig"]["ReadonlyRootfs"]
    assert docker("exec", node.id, "id", "-u").strip() != "0"
    for folder in ("/", "/opt/rumormill", "/usr/local/bin", "/etc"):
        written = subprocess.run(
            ["docker", "exec", node.id, "touch", f"{folder}/x"], capture_output=True, text=True, check=False
        )
        assert "Read-only file system" in written.stderr, folder
    capabilities = docker("exec", node.id, "grep", "CapEff", "/proc/1/status").split()[1]
    assert int(capabilities, 16) == 0
    image = json.loads(docker("image", "inspect", details["Image"]))[0]
    assert image["Config"]["User"] not in ("", "0", "root")


def test_the_compiled_decoder_runs_without_a_compiler(bed: Testbed) -> None:
    program = "from engine.native.library import load_library; print(load_library()._name)"
    (node, *_) = bed.nodes()
    assert "/ahead/decoder-" in docker("exec", node.id, "python3", "-c", program)


@pytest.mark.parametrize("fault", ["kill", "pause", "partition", "slow"])
def test_a_fault_costs_no_request_that_entered_at_a_living_node(started: Any, fault: str) -> None:
    report = run_testbed(fault)
    show(report)
    assert report["phases"]["all"]["failed"] == 0
    assert report["phases"]["during"]["requests"] > 20


def test_a_rolling_restart_costs_no_request(started: Any) -> None:
    report = run_testbed("rolling-restart")
    show(report)
    assert len(report["targets"]) == 4
    assert report["phases"]["all"]["failed"] == report["phases"]["all"]["lost"] == 0


def test_it_grows_to_eight_nodes_and_shrinks_again(started: Any, bed: Testbed) -> None:
    for count in (8, 4):
        report = run_testbed("scale", str(count))
        show(report)
        assert report["phases"]["all"]["failed"] == report["phases"]["all"]["lost"] == 0
        assert [bed.seen_by(node) for node in bed.nodes()] == [count - 1] * count


def test_faults_that_are_kept_are_healed_all_at_once(started: Any, bed: Testbed) -> None:
    names = [node.name for node in bed.nodes()]
    run_testbed("pause", names[3], "--for", "1", "--keep")
    run_testbed("kill", names[2], "--for", "1", "--keep")
    assert [node.is_healthy for node in bed.nodes()].count(False) == 2
    assert run_testbed("heal")["whole_again_s"] >= 0
    assert [bed.seen_by(node) for node in bed.nodes()] == [3] * 4


@pytest.mark.parametrize("kind", ["lan", "wan"])
def test_other_networks_carry_a_mesh_too(base_images: dict[str, str], kind: str) -> None:
    """Found by mDNS on a bridge; and over long links between three regions. Ends the testbed before it."""
    containers.compose("names", "down", "--volumes", "--timeout", "60")
    try:
        assert len(run_testbed("up", "--kind", kind)["nodes"]) == 4
        report = run_testbed("load", "--rate", "1")
        show(report)
        assert report["phases"]["all"]["failed"] == 0
        if kind == "wan":
            bed = Testbed(SECRETS)
            with bed.client(next(node.grpc for node in bed.nodes() if node.name.startswith("ap"))) as client:
                nearest = min(peer.rtt_s for peer in client.peers())
            print(f"the nearest peer of ap-1 is {nearest * 1000:.0f} ms away")
            assert nearest >= 2 * 0.075
    finally:
        containers.compose(kind, "down", "--volumes", "--timeout", "60")
