"""The pages of the examples are built from what lies beside them. What they do is in `tests/browser`."""

from __future__ import annotations

import filecmp
import shutil
import subprocess
from pathlib import Path

import pytest
from tests.machine import patience
from tests.packages import environment, install

from sapwood.chat.store.chunks import STOPPED

ROOT = Path(__file__).parents[2]
EXAMPLES = ROOT / "examples"
PAGES = EXAMPLES / "pages"
STUDIO = ROOT / "src/sapwood/studio"
NAMES = sorted(page.parent.name for page in PAGES.glob("*/index.html"))


@pytest.fixture(scope="module")
def home() -> Path:
    """The folder that what the pages are made of is installed in."""
    return install(PAGES)


@pytest.fixture(scope="module")
def sources(home: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The sources of the pages, with what they are made of."""
    folder = tmp_path_factory.mktemp("sources") / "pages"
    shutil.copytree(PAGES, folder, ignore=shutil.ignore_patterns("node_modules"))
    (folder / "node_modules").symlink_to(home / "node_modules")
    return folder


@pytest.mark.nightly
def test_the_sources_of_the_pages_have_no_type_errors(home: Path, sources: Path) -> None:
    run(home, sources, "node", "node_modules/typescript/bin/tsc", "--noEmit")


def test_the_pages_know_the_error_of_a_call_whose_turn_was_cancelled() -> None:
    assert f'const STOPPED = "{STOPPED}";' in (PAGES / "design/ToolCard.tsx").read_text()


@pytest.mark.parametrize("name", NAMES)
def test_the_page_that_is_committed_is_what_its_sources_make(home: Path, sources: Path, name: str) -> None:
    run(home, sources, "node", "build.mjs", name, OUT=str(sources.parent))

    made, kept = sources.parent / name / "page", (STUDIO if name == "studio" else EXAMPLES / name) / "page"
    names = sorted(path.name for path in made.iterdir())
    again = f"Run `npm install && npm run build` in {PAGES.relative_to(ROOT)}, and commit {kept.relative_to(ROOT)}."
    assert names == sorted(path.name for path in kept.iterdir()), again
    assert filecmp.cmpfiles(made, kept, names, shallow=False) == (names, [], []), again


def run(home: Path, folder: Path, *command: str, **variables: str) -> None:
    done = subprocess.run(
        command,
        cwd=folder,
        env=environment(home) | variables,
        capture_output=True,
        text=True,
        timeout=patience(200),
        check=False,
    )
    assert done.returncode == 0, done.stdout + done.stderr
