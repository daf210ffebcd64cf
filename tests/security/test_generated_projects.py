"""What `sapwood new` writes turns no guard off, wherever the image goes."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

from sapwood.cli.new import TEMPLATES, Template, make

PINNED = re.compile(r"FROM [a-z]+:\d+\.\d+\.\d+-\S+")


@pytest.mark.parametrize("template", TEMPLATES)
def test_no_generated_file_says_insecure(tmp_path: Path, template: Template) -> None:
    make(tmp_path / "project", template)

    found = [
        path for path in (tmp_path / "project").rglob("*") if path.is_file() and b"--insecure" in path.read_bytes()
    ]

    assert found == []


@pytest.mark.parametrize("template", TEMPLATES)
def test_a_generated_image_has_an_exact_base_and_is_published_locally(tmp_path: Path, template: Template) -> None:
    make(tmp_path / "project", template)

    dockerfile = (tmp_path / "project/Dockerfile").read_text()
    images = [line for line in dockerfile.splitlines() if line.startswith("FROM")]

    assert images
    assert all(PINNED.fullmatch(line) for line in images)
    assert '"127.0.0.1:8000:8000"' in (tmp_path / "project/compose.yaml").read_text()
    assert ("authenticate" in (tmp_path / "project/README.md").read_text()) or TEMPLATES[template].asks_who
