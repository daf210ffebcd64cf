"""`sapwood record` copies a turn of a running server as a test, which pytest runs as it is."""

from __future__ import annotations

import json
import shutil
import signal
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
from tests.conformance.copied_agents import CopyDesk
from tests.e2e.command import PATIENCE, said_by, sapwood, serving
from tests.e2e.provider import DIALECTS, Dialect, Reply, providing, torn
from tests.unit.admin_requests import ask

from sapwood import App
from sapwood.testing import running
from sapwood.testing import world as world_module

BAKERY = Path(__file__).parents[2] / "examples/bakery.py"
RIVERS = BAKERY.with_name("rivers.py")


def pytest_of(folder: Path) -> subprocess.CompletedProcess[str]:
    command = [sys.executable, "-m", "pytest", "-q", "-p", "no:cacheprovider", "tests"]
    return subprocess.run(command, cwd=folder, capture_output=True, text=True, timeout=PATIENCE, check=False)


@pytest.mark.realtime("the provider is a real server")
@pytest.mark.parametrize("dialect", DIALECTS, ids=lambda dialect: dialect.name)
async def test_a_turn_of_each_provider_becomes_a_test_that_passes(
    dialect: Dialect, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(world_module, "SLOW", PATIENCE)
    asks = Reply(torn(b"".join(dialect.events(["Well. "], [("look", {"about": "ü🌲"}, "c1")]))))
    answers = Reply(torn(b"".join(dialect.events(["Grüße 🌲"]))))
    async with providing(asks, answers) as provider:
        models = {CopyDesk: dialect.model(provider.port)}
        async with running(App(agents=[CopyDesk]), models=models, slow_slices="allow") as world:
            turn = await (await world.get_agent(CopyDesk, "main")).send("Hello!")
            assert turn.text == "Well. Grüße 🌲"
            found = await ask(world, "record", address="CopyDesk:main", turn=turn.id)

    names: dict[str, Any] = {}
    exec(found["text"], names)  # noqa: S102 - it is a test
    await names[found["file"].removesuffix(".py")]()
    assert 'call("look", about="ü🌲", id="c1")' in found["text"]


@pytest.mark.nightly
@pytest.mark.slow
def test_a_turn_of_a_server_becomes_a_test_that_passes(tmp_path: Path) -> None:
    shutil.copy(BAKERY, tmp_path)
    (tmp_path / "tests").mkdir()
    (tmp_path / "pytest.ini").write_text("[pytest]\nanyio_mode = auto\npythonpath = .\n")
    (tmp_path / "tests/conftest.py").write_text(f"from sapwood.testing import world\n\nworld.SLOW = {PATIENCE}\n")
    with serving(tmp_path, "serve", "bakery:app") as server:
        turn = json.loads(said_by(tmp_path, "call", "Bakery:corner", "send", '"Do you have rye bread?"'))["id"]

        written = sapwood(tmp_path, "record", "Bakery:corner", turn, "--out", "tests")
        again = sapwood(tmp_path, "record", "Bakery:corner", turn, "--out", "tests")
        unknown = sapwood(tmp_path, "record", "Bakery:corner", "other")
        server.process.send_signal(signal.SIGTERM)
        server.process.wait(PATIENCE)

    (file,) = (tmp_path / "tests").glob("test_*.py")
    assert written.stderr.startswith(f"Wrote tests/{file.name}. Run pytest in the folder of the app.")
    assert (again.returncode, again.stderr) == (
        1,
        f"error: 'tests/{file.name}' exists already. Choose another name.\n",
    )
    assert unknown.stderr == "error: Bakery:corner has no turn 'other'.\n"
    assert "from bakery import Bakery\n" in file.read_text()
    assert "There are 12 loaves of rye." in file.read_text()
    found = pytest_of(tmp_path)
    assert found.stdout.splitlines()[-1].startswith("1 passed"), found.stdout + found.stderr

    offline = said_by(tmp_path, "record", "Bakery:corner", turn)
    assert "from app import Bakery  # without the running app it is not known" in offline
    file.write_text(file.read_text().replace('bread="rye"', 'bread="wheat"', 1))
    assert pytest_of(tmp_path).stdout.splitlines()[-1].startswith("1 failed")


@pytest.mark.nightly
@pytest.mark.slow
def test_a_turn_with_a_sub_agent_becomes_a_test_that_fails_if_a_tool_returns_another_result(tmp_path: Path) -> None:
    shutil.copy(RIVERS, tmp_path)
    (tmp_path / "tests").mkdir()
    (tmp_path / "pytest.ini").write_text("[pytest]\nanyio_mode = auto\npythonpath = .\n")
    (tmp_path / "tests/conftest.py").write_text(f"from sapwood.testing import world\n\nworld.SLOW = {PATIENCE}\n")
    with serving(tmp_path, "serve", "rivers:app") as server:
        turn = json.loads(said_by(tmp_path, "call", "Desk:main", "send", '"How long is the Nile?"'))["id"]
        sapwood(tmp_path, "record", "Desk:main", turn, "--run-tools", "--out", "tests")
        server.process.send_signal(signal.SIGTERM)
        server.process.wait(PATIENCE)

    found = pytest_of(tmp_path)
    assert found.stdout.splitlines()[-1].startswith("1 passed"), found.stdout + found.stderr
    program = tmp_path / "rivers.py"
    program.write_text(program.read_text().replace("Nile 6650", "Nile 6651"))
    found = pytest_of(tmp_path)
    assert "length with the id 'c1' returned 6651; recorded is 6650." in found.stdout
    assert found.stdout.splitlines()[-1].startswith("1 failed")
