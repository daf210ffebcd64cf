"""A JSON patch makes one value of another, and says nothing if they are the same."""

from __future__ import annotations

import copy
import json
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from sapwood.protocols.json_patch import patch_of

NAMES = st.text(alphabet="ab/~0", max_size=3)
LEAVES = st.none() | st.booleans() | st.integers(0, 2) | st.sampled_from(["", "x"])
VALUES = st.recursive(LEAVES, lambda inner: st.lists(inner, max_size=3) | st.dictionaries(NAMES, inner, max_size=3))


def applied(value: Any, patch: list[dict[str, Any]]) -> Any:
    """Apply a patch as RFC 6902 says, as far as it is used here."""
    whole = {"": copy.deepcopy(value)}
    for operation in patch:
        tokens = [one.replace("~1", "/").replace("~0", "~") for one in operation["path"].split("/")]
        at: Any = whole
        for token in tokens[:-1]:
            at = at[int(token)] if isinstance(at, list) else at[token]
        last = tokens[-1]
        if isinstance(at, list):
            if operation["op"] == "add":
                assert last == "-"
                at.append(operation["value"])
            elif operation["op"] == "remove":
                del at[int(last)]
            else:
                at[int(last)] = operation["value"]
        elif operation["op"] == "remove":
            del at[last]
        else:
            assert (last in at) is (operation["op"] == "replace")
            at[last] = operation["value"]
    return whole[""]


def is_same(one: Any, other: Any) -> bool:
    """Compare as JSON does: `true` is not 1."""
    return json.dumps(one, sort_keys=True) == json.dumps(other, sort_keys=True)


@pytest.mark.slow
@given(VALUES, VALUES)
def test_a_patch_makes_the_one_of_the_other(before: Any, after: Any) -> None:
    assert is_same(applied(before, patch_of(before, after)), after)


@given(VALUES)
def test_nothing_is_said_of_what_is_the_same(value: Any) -> None:
    assert patch_of(value, copy.deepcopy(value)) == []


def test_only_what_changed_is_said() -> None:
    before = {"a": [1, 2, {"b": 1}], "c": {"d/e": 1}}
    after = {"a": [1, 2, {"b": 2}, 4], "c": {}}
    assert patch_of(before, after) == [
        {"op": "replace", "path": "/a/2/b", "value": 2},
        {"op": "add", "path": "/a/-", "value": 4},
        {"op": "remove", "path": "/c/d~1e"},
    ]
