"""What is compared of the states and files of two agents."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any, cast

import msgspec

from sapwood.capabilities.file_rows import FILES
from sapwood.capabilities.state import STATE
from sapwood.kernel.ports.compared_parts import ComparedEntry, ComparedPart
from sapwood.storage.file_reader import FileReader


def _state(file: FileReader) -> Iterator[ComparedEntry]:
    if not file.has(STATE):
        return
    for (value,) in file.rows("SELECT value FROM sapwood_state"):
        leaves = sorted(_leaves(msgspec.json.decode(value)))
        yield from (ComparedEntry(pointer, 0, leaf) for pointer, leaf in leaves)


def _leaves(document: Any) -> Iterator[tuple[str, str]]:
    """Yield the JSON pointers of what has no fields or items, with the values as JSON, where 1 is not 1.0 or true."""
    to_visit: list[tuple[str, Any]] = [("", document)]
    while to_visit:
        pointer, value = to_visit.pop()
        if isinstance(value, dict) and value:
            fields = cast("dict[str, Any]", value)
            names = ((name.replace("~", "~0").replace("/", "~1"), one) for name, one in fields.items())
            to_visit += [(f"{pointer}/{name}", one) for name, one in names]
        elif isinstance(value, list) and value:
            to_visit += [(f"{pointer}/{at}", one) for at, one in enumerate(cast("list[Any]", value))]
        else:
            yield pointer, msgspec.json.encode(value).decode()


def _files(file: FileReader) -> Iterator[ComparedEntry]:
    if not file.has(FILES):
        return
    rows = file.rows("SELECT digest, number, name, media_type, size FROM sapwood_files ORDER BY digest")
    for digest, number, *facts in rows:
        yield ComparedEntry(digest, number, tuple(facts))


def _shown_file(facts: tuple[str | None, str, int]) -> dict[str, Any]:
    return dict(zip(("name", "media_type", "size"), facts, strict=True))


COMPARED_STATE = ComparedPart("state", _state, msgspec.json.decode)
COMPARED_FILES = ComparedPart("files", _files, _shown_file)
