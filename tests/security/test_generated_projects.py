"""What `sapwood new` writes turns no guard off, wherever the image goes."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

from sapwood.cli.new import TEMPLATES, Template, make

IMAGE = re.compile(r"(?:ARG BASE=|FROM |image: )(\S+)")
PINNED = re.compile(r"[a-z./]+:v?\d+\.\d+\.\d+\S*@sha256:[0-9a-f]{64}|\$\{BASE\}")


@pytest.mark.parametrize("template", TEMPLATES)
def test_no_generated_file_says_insecure(tmp_path: Path, template: Template) -> None:
    make(tmp_path / "project", template)

    found = [
        path for path in (tmp_path / "project").rglob("*") if path.is_file() and b"--insecure" in path.read_bytes()
    ]

    assert found == []


@pytest.mark.parametrize("template", TEMPLATES)
def test_every_image_of_a_project_has_a_digest_and_the_port_is_published_locally(
    tmp_path: Path, template: Template
) -> None:
    make(tmp_path / "project", template)

    containerfile = (tmp_path / "project/Containerfile").read_text()
    compose = (tmp_path / "project/compose.yaml").read_text()
    images = IMAGE.findall(containerfile) + IMAGE.findall(compose)

    assert len(images) == 4
    assert [one for one in images if not PINNED.fullmatch(one)] == []
    assert '"127.0.0.1:8000:8000"' in compose
    assert ("authenticate" in (tmp_path / "project/README.md").read_text()) or TEMPLATES[template].asks_who


@pytest.mark.parametrize("template", TEMPLATES)
def test_the_secrets_of_a_project_get_neither_into_git_nor_into_its_image(tmp_path: Path, template: Template) -> None:
    make(tmp_path / "project", template)

    assert ".env" in (tmp_path / "project/.gitignore").read_text().splitlines()
    assert ".env" in (tmp_path / "project/.dockerignore").read_text().splitlines()
