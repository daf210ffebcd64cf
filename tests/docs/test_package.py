"""What a release publishes: its metadata is true, and the check of a package finds what is wrong with it."""

from __future__ import annotations

import re
import tomllib
from pathlib import Path

from scripts import badges, check_package

from sapwood.cli.doctor import EXTRAS

ROOT = Path(__file__).parents[2]
PROJECT = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]
WHEEL = [*check_package.NEEDED, "sapwood/app.py"]


def test_the_license_is_the_one_that_the_metadata_names() -> None:
    assert PROJECT["license"] == "Apache-2.0"
    assert PROJECT["license-files"] == ["LICENSE"]
    assert "Apache License" in (ROOT / "LICENSE").read_text()[:200]
    assert (ROOT / "src/sapwood/py.typed").exists()


def test_what_the_metadata_says_of_pythons_is_what_is_tested() -> None:
    named = re.findall(r"Python :: (3\.\d+)", " ".join(PROJECT["classifiers"]))
    oldest = PROJECT["requires-python"].removeprefix(">=")
    matrix = (ROOT / ".github/workflows/check.yml").read_text()

    assert named[0] == oldest
    assert all(f'"{version}"' in matrix for version in named)


def test_the_doctor_knows_every_extra() -> None:
    assert {*EXTRAS} == {*PROJECT["optional-dependencies"]}


def test_what_the_workflows_run_exists() -> None:
    recipes = re.findall(r"^([\w-]+)[^\n:]*:", (ROOT / "justfile").read_text(), re.MULTILINE)
    text = "\n".join(path.read_text() for path in (ROOT / ".github/workflows").glob("*.yml"))
    run = re.findall(r"\bjust ([\w-]+)", text)
    files = re.findall(r"\b(?:python|bash) ([\w./-]+\.py|\.ci/\w+)", text)

    assert {"setup", "test", "nightly"} <= {*run} <= {*recipes}
    assert {"scripts/check_package.py", "scripts/publish_site.py", "scripts/try_wheel.py", ".ci/run"} <= {*files}
    assert [name for name in files if not (ROOT / name).exists()] == []


def test_the_actions_of_the_workflows_are_pinned_to_commits() -> None:
    text = "\n".join(path.read_text() for path in (ROOT / ".github/workflows").glob("*.yml"))
    used = re.findall(r"uses: (\S+)@(\S+)", text)

    assert len(used) > 8
    assert [name for name, at in used if not re.fullmatch(r"[0-9a-f]{40}", at)] == []


def test_the_badges_of_the_readme_are_what_the_metadata_says() -> None:
    readme = (ROOT / "README.md").read_text()

    for name, (label, value) in badges.facts().items():
        assert (badges.FOLDER / f"badge-{name}.svg").read_text() == badges.badge(label, value), "Run scripts/badges.py."
        assert f'docs/pictures/badge-{name}.svg" alt="{label}: {value}"' in readme


def test_the_files_that_the_readme_links_to_exist() -> None:
    readme = (ROOT / "README.md").read_text()
    links = re.findall(r'\]\(([^)#:]+)(?:#[^)]*)?\)|(?:src|href)="([^"#:]+)', readme)

    assert len(links) > 40
    assert [link or source for link, source in links if not (ROOT / (link or source)).exists()] == []


def test_the_version_of_the_citation_is_that_of_the_package() -> None:
    assert f"version: {PROJECT['version']}\n" in (ROOT / "CITATION.cff").read_text()


def test_a_good_wheel_has_no_problem_and_a_bad_one_has() -> None:
    assert list(check_package.problems(WHEEL)) == []
    assert list(check_package.problems(WHEEL[1:])) == ["sapwood/py.typed is missing"]
    assert list(check_package.problems([*WHEEL, "sapwood/tests/test_x.py"])) != []
    assert list(check_package.problems([*WHEEL, "deploy/nats.conf"])) != []


def test_a_path_of_the_machine_is_found() -> None:
    place = str(ROOT).encode()

    assert list(check_package.traces([("a.py", b"x = 1")])) == []
    assert list(check_package.traces([("a.py", b"# see " + place)])) == [f"a.py names the path {ROOT}"]
