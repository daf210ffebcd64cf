"""The files in `deploy` that a server on one machine is run with are valid, and name what sapwood has."""

from __future__ import annotations

import ipaddress
import json
import re
import shlex
import subprocess
from collections.abc import Iterator
from dataclasses import fields
from importlib import resources
from pathlib import Path
from typing import Any

import jsonschema
import pytest
import yaml

from sapwood.cli import backup_commands, serve_commands, upgrade_command
from sapwood.settings import Settings

ROOT = Path(__file__).parents[2]
DEPLOY = ROOT / "deploy"
RULES = [
    rule
    for group in yaml.safe_load((DEPLOY / "prometheus/sapwood.rules.yaml").read_text())["groups"]
    for rule in group["rules"]
]
UNITS = sorted((DEPLOY / "systemd").iterdir())
COMMANDS = {"serve": serve_commands.serve, "backup": backup_commands.backup, "upgrade": upgrade_command.upgrade}
CONTAINERFILE = (DEPLOY / "oci/Containerfile").read_text().replace("\\\n", " ")
COMPOSE = yaml.safe_load((DEPLOY / "compose/compose.yaml").read_text())
SERVICES: dict[str, dict[str, Any]] = COMPOSE["services"]
NODE = yaml.safe_load_all((DEPLOY / "kubernetes/sapwood.yaml").read_text())
(POD,) = (one["spec"]["template"]["spec"] for one in NODE if one["kind"] == "Deployment")
NEEDED_CADDY = (2, 11, 2)
"""Older ones answer 502 to a request with a body that waited for the server: caddyserver/caddy#7546."""


def instructions(name: str) -> list[str]:
    """Return what follows a name in the Containerfile."""
    return re.findall(rf"^{name} +(.+)$", CONTAINERFILE, flags=re.MULTILINE)


def image_variables() -> dict[str, str]:
    (text,) = instructions("ENV")
    return dict(word.split("=", 1) for word in shlex.split(text))


def exec_form(name: str) -> list[str]:
    """Return the words of a command that runs without a shell."""
    (text,) = instructions(name)
    return json.loads(text[text.index("[") :])


def panels() -> list[dict[str, Any]]:
    return json.loads((DEPLOY / "grafana/sapwood.json").read_text())["panels"]


def expressions() -> Iterator[str]:
    """Yield every query of the rules and of the dashboard."""
    yield from (rule["expr"] for rule in RULES)
    yield from (target["expr"] for panel in panels() for target in panel["targets"])


def metrics() -> set[str]:
    """Return the metrics of the reference, and what Prometheus makes of a histogram."""
    page = (ROOT / "docs/reference/metrics.md").read_text()
    rows = re.findall(r"^\| `(\w+)` \| (\w+) \|", page, flags=re.MULTILINE)
    made = {f"{name}{end}" for name, kind in rows if kind == "histogram" for end in ("_bucket", "_count", "_sum")}
    return {name for name, _ in rows} | made | {"up"}


def test_alerts_and_panels_ask_for_metrics_that_there_are() -> None:
    queries = [re.sub(r"by \([^)]*\)", "", one) for one in expressions()]  # those are labels
    named = {name for one in queries for name in re.findall(r"\b((?:sapwood|gen_ai|process)_\w+|up)\s*[{\[)=<]", one)}

    assert len(named) >= 12
    assert named <= metrics()


def test_every_alert_says_what_to_do_and_has_a_test() -> None:
    tests = yaml.safe_load((DEPLOY / "prometheus/sapwood.tests.yaml").read_text())["tests"]
    fired = {one["alertname"] for test in tests for one in test["alert_rule_test"] if one["exp_alerts"]}

    assert fired == {rule["alert"] for rule in RULES}
    assert [rule["alert"] for rule in RULES if set(rule["annotations"]) != {"summary", "action"}] == []


def test_every_panel_has_a_place_of_its_own() -> None:
    places = [(one["gridPos"]["x"], one["gridPos"]["y"]) for one in panels()]

    assert len(set(places)) == len(places) == len({one["id"] for one in panels()})


@pytest.mark.parametrize("unit", [one for one in UNITS if one.suffix == ".service"], ids=lambda one: one.name)
def test_a_unit_runs_a_command_that_sapwood_has(unit: Path) -> None:
    text = unit.read_text().replace("\\\n", " ")
    for line in re.findall(r"^Exec(?:Start|Reload)=(.+)$", text, flags=re.MULTILINE):
        program, command, *words = shlex.split(line)

        assert program.endswith("/bin/sapwood")
        options = {word.removeprefix("--").replace("-", "_") for word in words if word.startswith("--")}
        assert options <= set(COMMANDS[command].__annotations__)


@pytest.mark.parametrize("unit", UNITS, ids=lambda one: one.name)
def test_a_page_shows_the_lines_of_a_unit_in_full(unit: Path) -> None:
    assert [line for line in unit.read_text().splitlines() if len(line) > 76] == []


def test_the_image_is_pinned_and_its_server_is_not_root() -> None:
    (base,) = re.findall(r"^ARG BASE=(.+)$", CONTAINERFILE, flags=re.MULTILINE)
    images = [base, *(one["image"] for one in SERVICES.values() if "image" in one)]

    assert instructions("FROM") == ["${BASE}"]
    assert [
        one for one in images if not re.fullmatch(r"docker\.io/[\w/-]+:v?[\d.]+[\w.-]*@sha256:[0-9a-f]{64}", one)
    ] == []
    assert instructions("USER") == ["10001:10001"]
    assert all("pip install" not in run or "--require-hashes" in run for run in instructions("RUN"))
    assert not re.search(r"index-url [^-]|https?://(?!127)", CONTAINERFILE)


def test_the_image_runs_the_server_without_a_shell_and_sets_what_it_knows() -> None:
    program, command, _ = exec_form("CMD")
    known = {f"SAPWOOD_{one.name.upper()}" for one in fields(Settings)} | {"SAPWOOD_HOST", "SAPWOOD_PORT"}
    variables = image_variables()

    assert (program, command) == ("sapwood", "serve")
    assert instructions("STOPSIGNAL") == ["SIGTERM"]
    assert "/healthz" in exec_form("HEALTHCHECK")[-1]
    assert {name for name in variables if name.startswith("SAPWOOD_")} <= known
    assert (variables["SAPWOOD_DATA"], variables["SAPWOOD_DURABILITY"]) == ("/data", "disk")
    assert instructions("VOLUME") == ["/data"]
    assert instructions("EXPOSE") == [variables["SAPWOOD_PORT"]]


def test_kubernetes_runs_the_image_as_it_is_made() -> None:
    (container,) = POD["containers"]
    set_ = {one["name"]: one.get("value") for one in container["env"]}
    variables = image_variables()

    assert instructions("USER") == [f"{POD['securityContext']['runAsUser']}:{POD['securityContext']['runAsGroup']}"]
    assert [str(port["containerPort"]) for port in container["ports"]] == instructions("EXPOSE")
    assert container["command"][:3] == exec_form("CMD")
    assert (
        {set_["SAPWOOD_DATA"]} == {*instructions("VOLUME")} <= {one["mountPath"] for one in container["volumeMounts"]}
    )
    assert all(set_[name] == variables[name] for name in ("SAPWOOD_HOST", "SAPWOOD_PORT", "SAPWOOD_DATA"))
    assert "/tmp" in {one["mountPath"] for one in container["volumeMounts"]}  # its root file system is read-only


def test_compose_files_fit_the_schema_of_their_specification() -> None:
    vendor = resources.files("check_jsonschema") / "builtin_schemas/vendor/compose-spec.json"
    schema = json.loads(vendor.read_text())

    jsonschema.validate(COMPOSE, schema)
    with pytest.raises(jsonschema.ValidationError):
        jsonschema.validate({**COMPOSE, "services": {"app": {"imagge": "x"}}}, schema)


def test_compose_keeps_data_in_volumes_and_publishes_only_caddy() -> None:
    app = SERVICES["app"]
    mounted = [one.split(":") for service in SERVICES.values() for one in service["volumes"]]
    ports = {name: [str(port) for port in service["ports"]] for name, service in SERVICES.items()}

    assert {name for name, *_ in mounted if not name.startswith("./")} == {*COMPOSE["volumes"]}
    assert {where for _, where, *_ in (one.split(":") for one in app["volumes"])} == {"/data", "/backups"}
    assert all(port.startswith("127.0.0.1:") for name in ("app", "prometheus") for port in ports[name])
    assert app["read_only"]
    assert app["tmpfs"] == ["/tmp"]
    assert int(app["stop_grace_period"].removesuffix("s")) >= 10 + 20
    assert all(ipaddress.ip_network(one).is_private for one in app["environment"]["FORWARDED_ALLOW_IPS"].split(","))


def test_compose_and_its_caddyfile_agree() -> None:
    caddyfile = (DEPLOY / "caddy/Caddyfile").read_text()
    caddy = SERVICES["caddy"]
    (version,) = re.findall(r"caddy:([\d.]+)", caddy["image"])

    assert {*re.findall(r"\{\$(\w+)", caddyfile)} == {*caddy["environment"]}
    assert caddy["environment"]["APP"] == f"app:{image_variables()['SAPWOOD_PORT']}"
    assert tuple(map(int, version.split("."))) >= NEEDED_CADDY
    assert f"Needs Caddy {'.'.join(map(str, NEEDED_CADDY))} " in caddyfile


def test_prometheus_asks_the_app_of_compose_as_the_job_of_the_alerts() -> None:
    config = yaml.safe_load((DEPLOY / "prometheus/prometheus.yaml").read_text())
    (job,) = config["scrape_configs"]

    assert job["job_name"] == "sapwood"
    assert job["static_configs"] == [{"targets": [SERVICES["caddy"]["environment"]["APP"]]}]
    assert all((DEPLOY / "prometheus" / name).exists() for name in config["rule_files"])


def test_the_page_about_one_machine_points_prometheus_at_the_socket_and_at_alertmanager() -> None:
    page = (ROOT / "docs/how-to/one-machine.md").read_text()
    (script,) = re.findall(r"^sudo sed -i '(.+)' /etc/prometheus/prometheus.yml$", page, flags=re.MULTILINE)
    text = subprocess.check_output(["sed", script, DEPLOY / "prometheus/prometheus.yaml"], text=True)
    config = yaml.safe_load(text)
    (listen,) = re.findall(r"^ListenStream=(.+)$", (DEPLOY / "systemd/sapwood.socket").read_text(), re.MULTILINE)

    assert config["scrape_configs"][0]["static_configs"] == [{"targets": [listen]}]
    assert config["alerting"]["alertmanagers"] == [{"static_configs": [{"targets": ["127.0.0.1:9093"]}]}]


@pytest.mark.needs("promtool")
def test_prometheus_takes_its_configuration() -> None:
    run("promtool", "check", "config", "--syntax-only", "prometheus.yaml", within="prometheus")


@pytest.mark.needs("promtool")
def test_every_alert_fires_when_it_should_and_not_before() -> None:
    run("promtool", "test", "rules", "sapwood.tests.yaml", within="prometheus")


@pytest.mark.needs("systemd-analyze")
@pytest.mark.parametrize("unit", UNITS, ids=lambda one: one.name)
def test_systemd_takes_a_unit(unit: Path) -> None:
    said = subprocess.run(["systemd-analyze", "verify", unit], capture_output=True, text=True, check=False).stderr

    wrong = [line for line in said.splitlines() if unit.name in line and "is not executable" not in line]
    assert wrong == []


@pytest.mark.needs("caddy")
def test_caddy_takes_its_file() -> None:
    run("caddy", "validate", "--config", "Caddyfile", "--adapter", "caddyfile", within="caddy")


def run(*command: str, within: str) -> None:
    done = subprocess.run(command, cwd=DEPLOY / within, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stdout + done.stderr
