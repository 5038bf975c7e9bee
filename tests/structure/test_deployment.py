"""Deployment files are what the programs that read them take, and name options and metrics that exist.

compose-spec.json is the Compose Specification's own schema, which compose 2 checks files by: it is
schema/compose-spec.json of compose-spec/compose-go e70e961, copyright The Compose Specification Authors,
Apache License 2.0.
"""

from __future__ import annotations

import json
import re
import shutil
import subprocess
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import jsonschema
import kubernetes_validate
import pytest
import yaml

from node.config import ENVIRONMENT_PREFIX, NodeConfig, make_config, read_config_file
from node.testbed.containers import KINDS

ROOT = Path(__file__).parents[2]
COMPOSE = [*sorted((ROOT / "docker").glob("compose*.yaml")), ROOT / "docker/node.yaml"]
KUBERNETES = sorted((ROOT / "deploy/kubernetes").glob("*.yaml"))
UNIT = ROOT / "deploy/systemd/rumormill.service"
MADE_BY_THE_USER = {"TESTBED_IMAGE", "TESTBED_USER", "TESTBED_THREADS", "TESTBED_KV_MEMORY_MIB"}


def load(path: Path) -> list[Any]:
    return list(yaml.safe_load_all(path.read_text()))


def kinds(path: Path) -> Iterator[tuple[str, Any]]:
    """The resources of a file that are Kubernetes' own."""
    for document in load(path):
        if document["kind"] != "Kustomization":
            yield document["kind"], document


@pytest.mark.parametrize("path", COMPOSE, ids=lambda path: path.name)
def test_compose_files_follow_the_specification(path: Path) -> None:
    schema = json.loads((Path(__file__).parent / "compose-spec.json").read_text())
    (document,) = load(path)
    jsonschema.validate(document, schema)
    with pytest.raises(jsonschema.ValidationError):
        jsonschema.validate(document | {"servises": {}}, schema)


@pytest.mark.parametrize("command", [["docker-compose"], ["docker", "compose"]], ids=["v1", "v2"])
@pytest.mark.parametrize("kind", KINDS)
def test_each_compose_that_is_installed_takes_them(command: list[str], kind: str) -> None:
    if shutil.which(command[0]) is None:
        pytest.skip(f"there is no {command[0]}")
    if subprocess.run([*command, "version"], capture_output=True, check=False).returncode:
        pytest.skip(f"there is no `{' '.join(command)}`")
    files = [part for name in KINDS[kind] for part in ("--file", str(ROOT / "docker" / name))]
    done = subprocess.run(
        [*command, *files, "--profile", "metrics", "config"], capture_output=True, text=True, check=False
    )
    assert done.returncode == 0, done.stderr
    services = yaml.safe_load(done.stdout)["services"]
    running = [service for service in services.values() if "RUMORMILL_TOKEN_FILE" in str(service)]
    assert running
    for service in running:
        assert service["read_only"]
        assert service["cap_drop"] == ["ALL"]


@pytest.mark.parametrize("path", KUBERNETES, ids=lambda path: path.name)
def test_kubernetes_takes_its_files(path: Path) -> None:
    for _, resource in kinds(path):
        kubernetes_validate.validate(resource, kubernetes_validate.latest_version(), strict=True)
        with pytest.raises(kubernetes_validate.ValidationError):
            kubernetes_validate.validate(
                resource | {"specs": {}}, kubernetes_validate.latest_version(), strict=True
            )


def test_kubernetes_has_what_a_mesh_needs() -> None:
    (kustomization,) = load(ROOT / "deploy/kubernetes/kustomization.yaml")
    assert set(kustomization["resources"]) == {path.name for path in KUBERNETES} - {"kustomization.yaml"}
    resources = [pair for path in KUBERNETES for pair in kinds(path)]
    assert {kind for kind, _ in resources} == {"Service", "StatefulSet", "PodDisruptionBudget"}
    (nodes,) = [resource for kind, resource in resources if kind == "StatefulSet"]
    names = {resource["metadata"]["name"] for kind, resource in resources if kind == "Service"}
    pod = nodes["spec"]["template"]["spec"]
    (container,) = pod["containers"]
    values = {variable["name"]: variable["value"] for variable in container["env"]}
    assert nodes["spec"]["serviceName"] in names
    assert values["RUMORMILL_PEER"].partition(":")[0] in names
    assert {volume["name"] for volume in pod["volumes"]} | {"state"} == {
        mount["name"] for mount in container["volumeMounts"]
    }
    secret = kustomization["secretGenerator"][0]["name"]
    assert secret in {volume.get("secret", {}).get("secretName") for volume in pod["volumes"]}


@pytest.mark.skipif(shutil.which("systemd-analyze") is None, reason="there is no systemd-analyze")
def test_systemd_takes_the_unit(tmp_path: Path) -> None:
    unit = tmp_path / UNIT.name
    unit.write_text(UNIT.read_text().replace("/opt/rumormill/bin/rumormill ", f"{shutil.which('true')} "))
    verified = subprocess.run(
        ["systemd-analyze", "verify", str(unit)], capture_output=True, text=True, check=False
    )
    assert (verified.returncode, verified.stderr) == (0, "")
    unit.write_text(unit.read_text().replace("ProtectHome=", "ProtectHouse="))
    refused = subprocess.run(
        ["systemd-analyze", "verify", str(unit)], capture_output=True, text=True, check=False
    )
    assert "ProtectHouse" in refused.stderr


def test_the_units_config_file_has_options_that_exist() -> None:
    make_config(read_config_file(UNIT.with_suffix(".toml")))


def test_every_variable_is_an_option() -> None:
    options = {ENVIRONMENT_PREFIX + field.upper() for field in NodeConfig.model_fields}
    files = [*COMPOSE, *KUBERNETES, UNIT, ROOT / "docker/Dockerfile"]
    for path in files:
        text = path.read_text()
        assert set(re.findall(r"\bRUMORMILL_\w+", text)) <= options, path
        assert set(re.findall(r"\bTESTBED_\w+", text)) <= MADE_BY_THE_USER, path


def test_secrets_and_mounts_are_there() -> None:
    """Those that compose mounts are those that `rumormill testbed secrets` makes; Grafana's files exist."""
    from node.testbed import secrets

    made = {value for name, value in vars(secrets).items() if name.endswith("_FILE")}
    for path in COMPOSE:
        (document,) = load(path)
        for secret in document.get("secrets", {}).values():
            assert Path(secret["file"]).name in made, path
        for service in document["services"].values():
            for volume in service.get("volumes", ()):
                assert (ROOT / "docker" / volume.split(":")[0]).is_file(), volume


def test_prometheus_asks_as_the_door_wants_it() -> None:
    (document,) = load(ROOT / "docker/prometheus.yml")
    (job,) = document["scrape_configs"]
    mounted = {f"/run/secrets/{name}" for name in load(ROOT / "docker/compose.yaml")[0]["secrets"]}
    assert job["scheme"] == "https"
    assert {job["tls_config"]["ca_file"], job["authorization"]["credentials_file"]} <= mounted
