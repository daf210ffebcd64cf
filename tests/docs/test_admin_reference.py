"""The reference of the admin API has every endpoint, its scope and its parameters, and nothing else."""

from __future__ import annotations

import re
from pathlib import Path

import msgspec
import pytest

from sapwood.admin.access import SCOPES
from sapwood.admin.endpoints import ENDPOINTS

PAGE = (Path(__file__).parents[2] / "docs/reference/admin.md").read_text()
SECTIONS = dict(re.findall(r"^## `([\w-]+)`\n(.*?)(?=^## |\Z)", PAGE, flags=re.MULTILINE | re.DOTALL))
PLANNED = {name for name, text in SECTIONS.items() if text.lstrip().startswith("*Planned.*")}


def test_every_endpoint_is_in_the_reference_and_nothing_else_is() -> None:
    assert sorted(SECTIONS.keys() - PLANNED) == sorted(ENDPOINTS)


def test_every_scope_is_in_the_reference_and_nothing_else_is() -> None:
    assert re.findall(r"^\| `(\w+)` \|", PAGE.partition("## Scopes")[2].partition("##")[0], re.MULTILINE) == [*SCOPES]


@pytest.mark.parametrize("name", ENDPOINTS)
def test_the_reference_of_an_endpoint_has_its_scope_and_its_parameters(name: str) -> None:
    endpoint = ENDPOINTS[name]
    told = re.findall(r"^params \{(.*?)\}", SECTIONS[name], flags=re.MULTILINE)[0]
    fields = msgspec.structs.fields(endpoint.params)

    assert (f"`{endpoint.scope}`" if endpoint.scope else "Any token.") in SECTIONS[name]
    assert set(re.findall(r"(\w+\??):", told)) == {one.encode_name + ("" if one.required else "?") for one in fields}
