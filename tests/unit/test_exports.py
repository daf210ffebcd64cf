"""`import sapwood`: few names, and a sentence for a name that is in another module."""

from __future__ import annotations

import subprocess
import sys

import pytest
from tests.machine import patience

import sapwood
from sapwood import auth, client, remote, sandbox, studio, testing, types

MODULES = (sapwood, auth, client, remote, sandbox, studio, testing, types)


def test_sapwood_exports_at_most_40_names() -> None:
    assert len(sapwood.__all__) <= 40, sorted(sapwood.__all__)
    assert [name for name in sapwood.__all__ if not hasattr(sapwood, name)] == []


def test_a_name_is_exported_by_one_module() -> None:
    names = [name for module in MODULES for name in module.__all__]

    assert sorted(names) == sorted(set(names))


@pytest.mark.parametrize(
    ("name", "module"),
    [
        ("JwtAuth", "sapwood.auth"),
        ("ANY_CLIENT", "sapwood.auth"),
        ("Fiber", "sapwood.types"),
        ("Rows", "sapwood.types"),
        ("Crashed", "sapwood.errors"),
        ("UsageError", "sapwood.errors"),
        ("A2aAgent", "sapwood.protocols"),
        ("ScriptedModel", "sapwood.testing"),
        ("StudioTab", "sapwood.studio"),
    ],
)
def test_importing_a_name_of_another_module_names_that_module(name: str, module: str) -> None:
    with pytest.raises(ImportError, match=f"{name} is in {module}. Write: from {module} import {name}"):
        exec(f"from sapwood import {name}", {})  # noqa: S102 - the statement that users write


@pytest.mark.parametrize("name", ["Path", "ClassVar", "Anything", "anything"])
def test_a_name_that_no_module_has_is_missing_as_usual(name: str) -> None:
    assert not hasattr(sapwood, name)
    with pytest.raises(ImportError, match=f"cannot import name '{name}' from 'sapwood'"):
        exec(f"from sapwood import {name}", {})  # noqa: S102 - the statement that users write


def test_importing_sapwood_loads_neither_chats_nor_authentication() -> None:
    program = "import sapwood, sys; print([name for name in ('pydantic_ai', 'sapwood.auth') if name in sys.modules])"
    done = subprocess.run(
        [sys.executable, "-c", program], capture_output=True, text=True, timeout=patience(), check=False
    )

    assert done.stdout == "[]\n", done.stderr
