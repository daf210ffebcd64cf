"""The example that Temporal drives, started as its README says."""

from __future__ import annotations

import json
import shutil
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

import pytest
from cryptography.fernet import Fernet
from tests.e2e.command import going_on, said_by, serving
from tests.machine import patience
from tests.temporal.cluster import Temporal

EXAMPLE = Path(__file__).parents[2] / "examples/temporal"


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    return shutil.copytree(EXAMPLE, tmp_path / "example")


def workflows(temporal: Temporal, query: str) -> list[dict[str, Any]]:
    """Ask Temporal's own command line for workflows."""
    program = str(Path(sys.executable).with_name("temporal"))
    command = [program, "workflow", "list", "--address", temporal.host, "--query", query, "--output", "json"]
    return json.loads(subprocess.run(command, capture_output=True, check=True, timeout=patience()).stdout)


def until_closed(temporal: Temporal, query: str, count: int) -> list[str]:
    """Return how so many workflows ended, once all of them have."""
    end = time.monotonic() + patience()
    while time.monotonic() < end:
        found = [one["status"] for one in workflows(temporal, query)]
        if len(found) == count and "WORKFLOW_EXECUTION_STATUS_RUNNING" not in found:
            return found
        time.sleep(0.1)
    raise AssertionError(workflows(temporal, query))


@pytest.mark.nightly
@pytest.mark.parametrize("is_sealed", [False, True], ids=["open", "sealed"])
def test_the_example_runs_as_its_readme_says(folder: Path, temporal: Temporal, *, is_sealed: bool) -> None:
    name = f"Editor:{'sealed' if is_sealed else 'open'}"
    told = {"TEMPORAL": temporal.host, "DRIVER_TOKEN": "between-us", "PAUSE": "0"}
    told |= {"ENCRYPTION_KEYS": Fernet.generate_key().decode()} if is_sealed else {}
    with (
        serving(folder, "serve", "app:app", **told) as server,
        going_on(folder, "temporal", "worker", "app:app", "--url", f"http://127.0.0.1:{server.port}", **told),
    ):
        turn = json.loads(said_by(folder, "call", name, "send", "A bulletin, please."))
        (question,) = json.loads(said_by(folder, "questions", name, "--json"))["questions"]
        assert (turn["status"], question["tool"]) == ("waiting", "print_it")
        (waiting,) = workflows(temporal, f"SapwoodRoot='{name}' AND ExecutionStatus='Running'")
        assert waiting["execution"]["workflowId"] == f"{name} {turn['id']}"

        said_by(folder, "call", name, "questions.approve", question["id"])

        assert json.loads(said_by(folder, "call", name, "turns.wait", turn["id"]))["text"] == "The bulletin is out."
        assert until_closed(temporal, f"SapwoodRoot='{name}'", 3) == ["WORKFLOW_EXECUTION_STATUS_COMPLETED"] * 3
        assert len(workflows(temporal, f"SapwoodRoot='{name}' AND SapwoodType='Reporter'")) == 2
