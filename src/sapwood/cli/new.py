"""`new`: a project that runs at once, from the templates beside this module."""

from __future__ import annotations

import re
from importlib import resources
from importlib.resources.abc import Traversable
from pathlib import Path

from sapwood.errors import UsageError

NAME = re.compile(r"[A-Za-z]([A-Za-z0-9._-]*[A-Za-z0-9])?")
HOLE = "{{name}}"
ENDING = ".template"
"""So that no tool takes a template for a program of ours."""


def make(folder: Path) -> list[str]:
    """Write the project; return the names of its files."""
    name = folder.resolve().name
    if not NAME.fullmatch(name):
        raise UsageError(
            f"{name!r} cannot be the name of a project. Begin with a letter; then letters, digits, - and _."
        )
    if folder.exists() and (not folder.is_dir() or any(folder.iterdir())):
        raise UsageError(f"{str(folder)!r} exists already, and is not empty. Choose another name.")
    folder.mkdir(parents=True, exist_ok=True)
    written: list[str] = []
    for template in _templates():
        target = template.name.removesuffix(ENDING).replace("dot-", ".", 1)
        (folder / target).write_text(template.read_text(encoding="utf-8").replace(HOLE, name), encoding="utf-8")
        written.append(target)
    return sorted(written)


def _templates() -> list[Traversable]:
    folder = resources.files("sapwood.cli") / "templates"
    return [entry for entry in folder.iterdir() if entry.name.endswith(ENDING)]
