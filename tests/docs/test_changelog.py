"""The changelog: fragments that a release can be made of, and a section for the version that is in pyproject.toml."""

from __future__ import annotations

import re
import shutil
import subprocess
import sys
import tomllib
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
PROJECT = tomllib.loads((ROOT / "pyproject.toml").read_text())
TYPES = [one["directory"] for one in PROJECT["tool"]["towncrier"]["type"]]
NAME = re.compile(rf"(?:\d+|\+[a-z0-9][a-z0-9.-]*)\.(?:{'|'.join(TYPES)})\.md")
SECTION = re.compile(r"^## (\d+\.\d+\.\d+)(?: \(\d{4}-\d\d-\d\d\))?$", re.MULTILINE)


def problems(name: str, text: str) -> list[str]:
    """Return what is wrong with a fragment."""
    found: list[str] = []
    if not NAME.fullmatch(name):
        found.append(f"the name is not <issue>.<type>.md or +<word>.<type>.md, with a type of {', '.join(TYPES)}")
    if not text.strip():
        found.append("it is empty")
    elif not text.strip().endswith((".", ")")) or "\n\n" in text.strip():
        found.append("it is not one paragraph of sentences")
    if text.lstrip().startswith(("#", "-", "*")):
        found.append("it begins with a mark of a heading or a list")
    return found


def test_every_fragment_can_become_a_line_of_the_changelog() -> None:
    fragments = [path for path in (ROOT / "changes").iterdir() if path.name != "README.md"]

    assert {path.name: found for path in fragments if (found := problems(path.name, path.read_text()))} == {}


@pytest.mark.parametrize(
    ("name", "text"),
    [
        ("upload.md", "Files can be uploaded."),
        ("+upload.new.md", "Files can be uploaded."),
        ("upload.added.md", "Files can be uploaded."),
        ("+upload.added.md", "\n"),
        ("+upload.added.md", "Files can be uploaded"),
        ("+upload.added.md", "- Files can be uploaded."),
        ("+upload.added.md", "Files can be uploaded.\n\nAnd downloaded."),
    ],
)
def test_a_fragment_that_would_be_lost_or_read_badly_is_found(name: str, text: str) -> None:
    assert problems(name, text) != []


def numbers(version: str) -> list[int]:
    return [int(number) for number in version.split(".")]


def test_the_version_of_the_package_has_a_section_and_it_is_the_newest() -> None:
    newest, *_ = SECTION.findall((ROOT / "CHANGELOG.md").read_text())

    version, _, is_between_releases = PROJECT["project"]["version"].partition(".dev")
    assert numbers(version) > numbers(newest) if is_between_releases else version == newest


def test_the_next_release_is_made_of_fragments(tmp_path: Path) -> None:
    shutil.copy(ROOT / "CHANGELOG.md", tmp_path)
    shutil.copy(ROOT / "pyproject.toml", tmp_path)
    (tmp_path / "changes").mkdir()
    for type_ in TYPES:
        (tmp_path / f"changes/+word.{type_}.md").write_text(f"This is {type_}.\n")
    subprocess.run(["git", "init", "--quiet"], cwd=tmp_path, check=True)

    subprocess.run(
        [sys.executable, "-m", "towncrier", "build", "--yes", "--version", "9.8.7", "--date", "2030-01-02"],
        cwd=tmp_path,
        check=True,
        capture_output=True,
    )

    text = (tmp_path / "CHANGELOG.md").read_text()
    assert SECTION.findall(text)[:2] == ["9.8.7", SECTION.findall((ROOT / "CHANGELOG.md").read_text())[0]]
    lines = [line for line in text.splitlines() if line.startswith("- This is ")]
    assert lines == [f"- This is {type_}." for type_ in TYPES]
    assert list((tmp_path / "changes").iterdir()) == []
