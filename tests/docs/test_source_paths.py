"""The pages for contributors name files and folders that exist."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
PATH = re.compile(r"`([a-z_]+(?:/[a-z_]+)*(?:\.py|/))`")


@pytest.mark.parametrize("page", ["ARCHITECTURE.md", "CONTRIBUTING.md"])
def test_paths_of_source_files_exist(page: str) -> None:
    named = set(PATH.findall((ROOT / page).read_text()))
    roots = (ROOT, ROOT / "src/sapwood", ROOT / "src/sapwood/kernel")
    assert named
    assert [path for path in sorted(named) if not any((root / path).exists() for root in roots)] == []
