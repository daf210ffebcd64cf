"""What a release publishes: its metadata is true, and the check of a package finds what is wrong with it."""

from __future__ import annotations

import re
import tomllib
from pathlib import Path

from scripts import check_package

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


def test_a_good_wheel_has_no_problem_and_a_bad_one_has() -> None:
    assert list(check_package.problems(WHEEL)) == []
    assert list(check_package.problems(WHEEL[1:])) == ["sapwood/py.typed is missing"]
    assert list(check_package.problems([*WHEEL, "sapwood/tests/test_x.py"])) != []
    assert list(check_package.problems([*WHEEL, "deploy/nats.conf"])) != []


def test_a_path_of_the_machine_is_found() -> None:
    place = str(ROOT).encode()

    assert list(check_package.traces([("a.py", b"x = 1")])) == []
    assert list(check_package.traces([("a.py", b"# see " + place)])) == [f"a.py names the path {ROOT}"]
