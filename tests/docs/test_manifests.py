"""The Kubernetes manifests are valid, fit each other, and set what sapwood and NATS know."""

from __future__ import annotations

import re
from collections.abc import Iterator
from dataclasses import fields
from pathlib import Path
from typing import Any

import kubernetes_validate
import pytest
import yaml

from sapwood.cli.serve_commands import serve
from sapwood.settings import Settings

DEPLOY = Path(__file__).parents[2] / "deploy"
FILES = sorted((DEPLOY / "kubernetes").rglob("*.yaml"))
MANIFESTS: dict[str, dict[str, Any]] = {
    f"{one['kind']}/{one['metadata']['name']}": one for file in FILES for one in yaml.safe_load_all(file.read_text())
}
CONTROLLERS = {name: one for name, one in MANIFESTS.items() if one["kind"] in ("StatefulSet", "Deployment")}
VERSIONS = ("1.31", kubernetes_validate.latest_version())
NATS = re.findall(r"\$(NATS_\w+)", (DEPLOY / "nats/server.conf").read_text())


def pod(name: str) -> dict[str, Any]:
    return CONTROLLERS[name]["spec"]["template"]


def container(name: str) -> dict[str, Any]:
    (only,) = pod(name)["spec"]["containers"]
    return only


def every(key: str, within: Any) -> Iterator[Any]:
    """Return whatever stands under a key, at any depth."""
    if isinstance(within, dict):
        if key in within:
            yield within[key]
        for value in within.values():
            yield from every(key, value)
    elif isinstance(within, list):
        for value in within:
            yield from every(key, value)


@pytest.mark.slow
@pytest.mark.parametrize("version", VERSIONS)
@pytest.mark.parametrize("name", MANIFESTS)
def test_kubernetes_takes_every_manifest(name: str, version: str) -> None:
    kubernetes_validate.validate(MANIFESTS[name], version, strict=True)


def test_a_misspelt_field_would_be_noticed() -> None:
    wrong = {**MANIFESTS["Service/sapwood"], "spec": {"selektor": {}}}

    with pytest.raises(kubernetes_validate.ValidationError):
        kubernetes_validate.validate(wrong, VERSIONS[0], strict=True)


def test_nats_is_configured_as_the_tested_file_says() -> None:
    assert MANIFESTS["ConfigMap/nats"]["data"]["server.conf"] == (DEPLOY / "nats/server.conf").read_text()


def test_every_variable_of_the_configuration_is_set_and_no_other() -> None:
    assert sorted(one["name"] for one in container("StatefulSet/nats")["env"]) == sorted(set(NATS))


def test_every_variable_of_a_node_is_a_setting() -> None:
    known = {f"SAPWOOD_{one.name.upper()}" for one in fields(Settings)} | {"SAPWOOD_HOST", "SAPWOOD_PORT"}

    named = [one["name"] for one in container("Deployment/sapwood")["env"] if one["name"].startswith("SAPWOOD_")]

    assert [one for one in named if one not in known] == []
    assert {"SAPWOOD_NATS", "SAPWOOD_ARCHIVE", "SAPWOOD_DURABILITY"} <= set(named)


def test_the_command_of_a_node_is_one_that_sapwood_has() -> None:
    program, command, _, *options = container("Deployment/sapwood")["command"]

    assert (program, command) == ("sapwood", serve.__name__)
    assert {one.removeprefix("--") for one in options if one.startswith("--")} <= set(serve.__annotations__)


@pytest.mark.parametrize("name", CONTROLLERS)
def test_what_a_variable_is_made_of_is_set_before_it(name: str) -> None:
    set_: set[str] = set()
    for variable in container(name)["env"]:
        assert set(re.findall(r"\$\((\w+)\)", variable.get("value", ""))) <= set_
        set_.add(variable["name"])


@pytest.mark.parametrize("name", CONTROLLERS)
def test_secrets_and_files_that_are_referred_to_are_there(name: str) -> None:
    for wanted in every("secretKeyRef", pod(name)):
        assert wanted["key"] in MANIFESTS[f"Secret/{wanted['name']}"]["stringData"]
    for wanted in every("secretRef", pod(name)):
        assert f"Secret/{wanted['name']}" in MANIFESTS
    for wanted in every("configMap", pod(name)):
        assert f"ConfigMap/{wanted['name']}" in MANIFESTS
    volumes = {one["name"] for one in pod(name)["spec"]["volumes"]}
    claims = {one["metadata"]["name"] for one in CONTROLLERS[name]["spec"].get("volumeClaimTemplates", ())}
    assert {one["name"] for one in container(name)["volumeMounts"]} == volumes | claims


@pytest.mark.parametrize("name", CONTROLLERS)
def test_whatever_selects_pods_selects_these(name: str) -> None:
    labels, kind = pod(name)["metadata"]["labels"], CONTROLLERS[name]["metadata"]["name"]
    selecting = [
        CONTROLLERS[name]["spec"]["selector"]["matchLabels"],
        MANIFESTS[f"Service/{kind}"]["spec"]["selector"],
        MANIFESTS[f"PodDisruptionBudget/{kind}"]["spec"]["selector"]["matchLabels"],
        MANIFESTS[f"NetworkPolicy/{kind}"]["spec"]["podSelector"]["matchLabels"],
        *(one["matchLabels"] for one in every("labelSelector", pod(name))),
    ]

    assert all(one.items() <= labels.items() for one in selecting)


@pytest.mark.parametrize("name", CONTROLLERS)
def test_ports_that_are_named_are_there(name: str) -> None:
    kind = CONTROLLERS[name]["metadata"]["name"]
    there = {one["name"]: one["containerPort"] for one in container(name)["ports"]}
    probes = [
        container(name)[probe]["httpGet"]["port"] for probe in ("startupProbe", "readinessProbe", "livenessProbe")
    ]
    served = [one["targetPort"] for one in MANIFESTS[f"Service/{kind}"]["spec"]["ports"]]
    let_in = [port["port"] for rule in MANIFESTS[f"NetworkPolicy/{kind}"]["spec"]["ingress"] for port in rule["ports"]]

    assert {*probes, *served, *let_in} <= there.keys()
    texts = [one.get("value", "") for one in container(name)["env"]]
    listened = [int(text.rpartition(":")[2]) for text in texts if text.startswith("0.0.0.0:")]
    assert sorted(listened) == sorted(there.values()) or "8000" in texts


def test_all_servers_of_the_cell_are_named_where_they_are_looked_for() -> None:
    nats = CONTROLLERS["StatefulSet/nats"]["spec"]
    names = {f"nats-{n}.{nats['serviceName']}" for n in range(nats["replicas"])}

    for who, port in (("StatefulSet/nats", 6222), ("Deployment/sapwood", 4222)):
        (found,) = (one["value"] for one in container(who)["env"] if one["name"] in ("NATS_ROUTES", "SAPWOOD_NATS"))
        assert set(re.findall(rf"@([\w.-]+):{port}", found)) == names


def test_a_stop_has_the_time_that_it_takes() -> None:
    (lame,) = re.findall(r"lame_duck_duration: (\d+)s", (DEPLOY / "nats/server.conf").read_text())
    node, command = pod("Deployment/sapwood")["spec"], container("Deployment/sapwood")["command"]
    before, grace = container("Deployment/sapwood")["lifecycle"]["preStop"]["sleep"]["seconds"], float(command[4])

    assert pod("StatefulSet/nats")["spec"]["terminationGracePeriodSeconds"] >= int(lame) + 15
    assert node["terminationGracePeriodSeconds"] >= before + grace + 20


def test_a_volume_has_more_room_than_nats_takes() -> None:
    (claim,) = CONTROLLERS["StatefulSet/nats"]["spec"]["volumeClaimTemplates"]
    (size,) = (one["value"] for one in container("StatefulSet/nats")["env"] if one["name"] == "NATS_STORE_SIZE")

    assert int(claim["spec"]["resources"]["requests"]["storage"].removesuffix("Gi")) > int(size.removesuffix("GB"))
