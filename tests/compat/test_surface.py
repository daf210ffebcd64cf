"""What a release has made public is there, or the changelog says how to do without it."""

from __future__ import annotations

import json
import re
from copy import deepcopy
from functools import cache
from pathlib import Path

import pytest
from tests.compat import fixture_data
from tests.compat.surface import missing, surface

ROOT = Path(__file__).parents[2]
CHANGES = ROOT / "changes"


@cache
def now() -> dict[str, list[str]]:
    return surface()


def released(release: str) -> dict[str, list[str]]:
    return json.loads((fixture_data.HERE / release / "surface.json").read_text())


def told() -> str:
    """Return what the changelog and its fragments say about breaking changes."""
    text = (ROOT / "CHANGELOG.md").read_text()
    sections = re.findall(r"^### Breaking changes\n(.*?)(?=^##|\Z)", text, re.MULTILINE | re.DOTALL)
    return "\n".join([*sections, *(path.read_text() for path in sorted(CHANGES.glob("*.breaking.md")))])


@pytest.mark.parametrize("release", fixture_data.RELEASES)
def test_what_is_gone_since_a_release_is_a_breaking_change_in_the_changelog(release: str) -> None:
    assert missing(released(release), now(), told()) == []


def test_what_is_new_since_the_last_release_has_a_fragment() -> None:
    last = released(fixture_data.RELEASES[-1])
    added = [name for kind, names in now().items() for name in {*names} - {*last.get(kind, ())}]
    fragments = [path for path in CHANGES.glob("*.md") if ".fixed." not in path.name and path.name != "README.md"]

    assert not added or fragments, f"{sorted(added)[:5]} are new: write changes/+word.added.md"


def test_a_removed_name_is_noticed_unless_the_changelog_names_it() -> None:
    before = {"names": ["Agent.sub_agent", "run(timeout)"], "commands": ["serve --port"]}
    after = deepcopy(before)
    after["names"].remove("run(timeout)")
    after["commands"].clear()

    assert missing(before, after, "") == ["run(timeout)", "serve --port"]
    assert missing(before, after, "The `timeout` of run() is gone. Use `--listen` for `serve --port`.") == []
    assert missing(before, before, "") == []


def test_the_surface_has_all_kinds() -> None:
    found = now()

    assert "Agent.run_agent(timeout)" in found["names"]
    assert "serve --workers" in found["commands"]
    assert {"durability", "data"} <= {*found["settings"]}
    assert "rpc" in found["frames"]
    assert "over_limit" in found["codes"]
    assert all(len(names) > 10 for names in found.values()), {kind: len(names) for kind, names in found.items()}
