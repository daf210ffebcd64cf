"""The files in `deploy` that a server on one machine is run with are valid, and name what sapwood has."""

from __future__ import annotations

import json
import re
import shlex
import subprocess
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import yaml

from sapwood.cli import backup_commands, serve_commands, upgrade_command

ROOT = Path(__file__).parents[2]
DEPLOY = ROOT / "deploy"
RULES = [
    rule
    for group in yaml.safe_load((DEPLOY / "prometheus/sapwood.rules.yaml").read_text())["groups"]
    for rule in group["rules"]
]
UNITS = sorted((DEPLOY / "systemd").iterdir())
COMMANDS = {"serve": serve_commands.serve, "backup": backup_commands.backup, "upgrade": upgrade_command.upgrade}


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
    for line in re.findall(r"^Exec(?:Start|Reload)=(.+)$", unit.read_text(), flags=re.MULTILINE):
        program, command, *words = shlex.split(line)

        assert program.endswith("/bin/sapwood")
        options = {word.removeprefix("--").replace("-", "_") for word in words if word.startswith("--")}
        assert options <= set(COMMANDS[command].__annotations__)


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
