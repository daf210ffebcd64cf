"""Every template of `sapwood new` is a project that runs, also from a wheel, and whose page can be changed."""

from __future__ import annotations

import filecmp
import os
import re
import shutil
import subprocess
import sys
import zipfile
from pathlib import Path

import pytest
from tests.e2e.command import said_by, sapwood, serving
from tests.machine import patience
from tests.packages import environment, install

from sapwood.cli.new import TEMPLATES, Template

ROOT = Path(__file__).parents[2]
EXAMPLES = [name for name in TEMPLATES if name != "lobby"]
PAGE = {"lobby": "/agents/lobby/main"}
ALWAYS = {
    ".dockerignore", ".gitignore", "Caddyfile", "Containerfile", "README.md", "app.py", "compose.yaml", "pyproject.toml"
}  # fmt: skip


@pytest.fixture(scope="module", params=TEMPLATES)
def template(request: pytest.FixtureRequest) -> Template:
    return request.param


@pytest.fixture(scope="module")
def project(template: Template, tmp_path_factory: pytest.TempPathFactory) -> Path:
    return made(template, tmp_path_factory.mktemp(template))


def made(template: Template, folder: Path) -> Path:
    """Return the project that the template makes."""
    said = said_by(folder, "new", "demo", "--template", template)
    assert "cd demo && sapwood dev" in said
    assert TEMPLATES[template].first in said
    return folder / "demo"


def files(folder: Path) -> dict[str, bytes]:
    return {str(path.relative_to(folder)): path.read_bytes() for path in folder.rglob("*") if path.is_file()}


def run(folder: Path, *command: str, env: dict[str, str] | None = None) -> None:
    done = subprocess.run(
        command, cwd=folder, env=env, capture_output=True, text=True, timeout=patience(200), check=False
    )
    assert done.returncode == 0, done.stdout + done.stderr


@pytest.mark.nightly
def test_a_project_passes_its_own_tests(project: Path) -> None:
    run(project, sys.executable, "-m", "pytest", "-q")


def test_a_project_is_tidy(project: Path) -> None:
    run(project, "ruff", "format", "--check", ".")
    run(project, "ruff", "check", ".")


def test_a_project_is_whole_and_says_nothing_of_where_it_comes_from(template: Template, tmp_path: Path) -> None:
    written = files(made(template, tmp_path))

    texts = {name: content.decode() for name, content in written.items() if not name.startswith("page/")}
    assert texts.keys() >= ALWAYS
    assert f"sapwood[{TEMPLATES[template].extras}]" in texts["pyproject.toml"]
    assert texts["README.md"].startswith("# demo\n")
    assert "sapwood dev" in texts["README.md"]
    address = TEMPLATES[template].address
    assert f"sapwood sql {address} " in texts["README.md"]
    assert any(f"class {address.partition(':')[0]}(" in text for path, text in texts.items() if path.endswith(".py"))
    for name, text in texts.items():
        for mark in ("{{name}}", "{{extras}}", "--8<--", "<!-- ", "../pages", "../..", "examples/", "checkout"):
            assert mark not in text, f"{mark} in {name}"


def test_what_the_readme_names_is_there(project: Path) -> None:
    readme = (project / "README.md").read_text()
    named = set(re.findall(r"`([\w./-]+(?:\.py|\.tsx?|\.html|/))`", readme))

    assert [name for name in named if not (project / name).exists()] == []


def test_a_project_is_served_with_its_page(template: Template, project: Path, tmp_path: Path) -> None:
    with serving(project, "serve", "app:app", "--data", str(tmp_path / "data")) as server:
        status, page = server.get(PAGE.get(template, "/"))

        assert (status, "<title>" in page) == (200, True)
        for file in re.findall(r'(?:src|href)="\./([^"]+)"', page):
            assert server.get(f"/{file}")[0] == 200


@pytest.mark.nightly
@pytest.mark.needs("npm")
@pytest.mark.parametrize("name", EXAMPLES)
def test_the_page_of_a_project_is_what_its_sources_make(name: Template, tmp_path: Path) -> None:
    project = made(name, tmp_path)
    sources, page = project / "page-source", project / "page"
    home = install(sources)
    (sources / "node_modules").symlink_to(home / "node_modules")
    shipped = shutil.copytree(page, tmp_path / "shipped")

    if name == EXAMPLES[-1]:  # one is enough: types of the same files are checked where they come from
        run(sources, "npm", "run", "check", env=environment(home))
    run(sources, "npm", "run", "build", env=environment(home))

    names = sorted(path.name for path in page.iterdir())
    assert names == sorted(path.name for path in shipped.iterdir())
    assert filecmp.cmpfiles(page, shipped, names, shallow=False) == (names, [], [])


@pytest.mark.nightly
def test_a_wheel_has_every_template_and_nothing_that_was_left_there(tmp_path: Path) -> None:
    run(ROOT, sys.executable, "-m", "build", "--no-isolation", "--outdir", str(tmp_path), ".")  # from the sdist

    (wheel,) = tmp_path.glob("*.whl")
    with zipfile.ZipFile(wheel) as packed:
        packed.extractall(tmp_path / "installed")
    for template in TEMPLATES:
        (tmp_path / template).mkdir()
        of_checkout = made(template, tmp_path / template)
        there = tmp_path / "installed" / template
        there.mkdir()
        command = [sys.executable, "-m", "sapwood", "new", "demo", "--template", template]
        run(there, *command, env={**os.environ, "PYTHONPATH": str(tmp_path / "installed")})
        assert files(there / "demo") == files(of_checkout)


def test_a_wrong_name_says_which_there_are(tmp_path: Path) -> None:
    done = sapwood(tmp_path, "new", "demo", "--template", "nonsense")

    assert done.returncode != 0
    assert all(f'"{name}"' in done.stdout + done.stderr for name in TEMPLATES)
    assert not (tmp_path / "demo").exists()


def test_the_help_lists_the_templates(tmp_path: Path) -> None:
    said = " ".join(said_by(tmp_path, "new", "--help").split())

    for name, about in TEMPLATES.items():
        assert f"{name}: {about.what}" in said
