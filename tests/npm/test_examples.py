"""The pages of the examples do what they should, in a real browser, and are built from what lies beside them."""

from __future__ import annotations

import filecmp
import os
import shutil
import signal
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
from tests.npm.running import Server, drive, environment, install, workspace

ROOT = Path(__file__).parents[2]
EXAMPLES = ROOT / "examples"
PAGES = EXAMPLES / "pages"
PICTURES = ROOT / "docs/how-to/pictures"
NAMES = sorted(page.parent.name for page in PAGES.glob("*/index.html"))
IN_THE_DOCS = ("chat-wide-light", "chat-narrow-dark")


@pytest.fixture(scope="module")
def home() -> Path:
    """The folder that what the pages are made of is installed in."""
    if shutil.which("npm") is None:
        pytest.skip("needs npm")
    return install(PAGES)


@pytest.fixture(scope="module")
def sources(home: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The sources of the pages, with what they are made of."""
    folder = tmp_path_factory.mktemp("sources") / "pages"
    shutil.copytree(PAGES, folder, ignore=shutil.ignore_patterns("node_modules"))
    (folder / "node_modules").symlink_to(home / "node_modules")
    return folder


def test_the_sources_of_the_pages_have_no_type_errors(home: Path, sources: Path) -> None:
    run(home, sources, "node", "node_modules/typescript/bin/tsc", "--noEmit")


@pytest.mark.parametrize("name", NAMES)
def test_the_page_that_is_committed_is_what_its_sources_make(home: Path, sources: Path, name: str) -> None:
    run(home, sources, "node", "build.mjs", name)

    made, kept = sources.parent / name / "page", EXAMPLES / name / "page"
    names = sorted(path.name for path in made.iterdir())
    again = f"Run `npm install && npm run build` in {PAGES.relative_to(ROOT)}, and commit examples/{name}/page."
    assert names == sorted(path.name for path in kept.iterdir()), again
    assert filecmp.cmpfiles(made, kept, names, shallow=False) == (names, [], []), again


def run(home: Path, folder: Path, *command: str) -> None:
    done = subprocess.run(
        command, cwd=folder, env=environment(home), capture_output=True, text=True, timeout=200, check=False
    )
    assert done.returncode == 0, done.stdout + done.stderr


class Example(Server):
    """An example, served as its README says."""

    app = EXAMPLES / "chat/app.py"

    def command(self) -> list[str]:
        options = ["--port", str(self.port), "--data", str(self._data), "--grace", "3", "--log-level", "warning"]
        return [sys.executable, "-m", "sapwood", "serve", str(self.app), *options]


@pytest.fixture(scope="module")
def chat(home: Path, tmp_path_factory: pytest.TempPathFactory) -> dict[str, Any]:
    """What a person sees who uses the page of the chat, scenario by scenario."""
    chromium = shutil.which("chromium")
    if chromium is None:
        pytest.skip("needs Chromium")
    folder = tmp_path_factory.mktemp("example")
    pictures = folder / "pictures"
    pictures.mkdir()
    work = folder / "work"
    work.mkdir()
    workspace(home, work)
    server = Example(work, folder / "data")
    try:
        seen = drive("example-chat.mjs", server, home, work, chromium, str(folder / "profile"), str(pictures))
    finally:
        server.end(signal.SIGTERM)
    # The pictures in the docs are taken here; they differ a little on every machine, so only who asks gets new ones.
    if "SAPWOOD_PICTURES" in os.environ:
        for name in IN_THE_DOCS:
            shutil.copy(pictures / f"{name}.png", PICTURES)
        shutil.copytree(pictures, os.environ["SAPWOOD_PICTURES"], dirs_exist_ok=True)
    return seen


EXPECTED: dict[str, Any] = {
    "empty": ["What shall I remember for you?", []],
    "server_tool_and_a_turn_nobody_asked_for": ["remind", "done"],
    "client_tool": ["browserClock", 2],
    "approved": ["done", "", "Done, 1 deleted."],
    "denied": ["denied", "water the plants", "All right, I leave it as it is."],
    "stopped": [True, True],
    "reloaded": [2, True, True],
    "killed": [2, True],
    "regenerated": [2, True, 2],
    "cleared": ["Clear all?", [], []],
    "failed": [[], 0],
    "by_keyboard": ["said", "Approve forget", "Deny forget"],
    "pictured": [],
}
"""What each scenario of example-chat.mjs saw; the lists in it are flaws that axe found."""


@pytest.mark.parametrize("scenario", EXPECTED)
def test_the_page_of_the_chat(chat: dict[str, Any], scenario: str) -> None:
    assert chat[scenario] == {"saw": EXPECTED[scenario], "problems": []}


def test_every_scenario_is_expected_here(chat: dict[str, Any]) -> None:
    assert set(chat) == set(EXPECTED)
