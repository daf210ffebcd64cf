"""Where two transcripts differ, and whether docs/reference/wire.md says so."""

from __future__ import annotations

import difflib
import fnmatch
import itertools
import json
import re
from pathlib import Path
from typing import Any, NamedTuple

PAGE = Path(__file__).parents[2] / "docs/reference/wire.md"
HEADING = "## Differences from the original"
ABSENT = "—"
MISSING = object()


class Row(NamedTuple):
    """One line of the table."""

    where: str
    original: str
    sapwood: str
    why: str


def differences(original: dict[str, Any], sapwood: dict[str, Any]) -> dict[str, tuple[str, str]]:
    """Return what the two servers did differently: by its place, the original's value and ours."""
    found: dict[str, tuple[str, str]] = {}
    for name in original | sapwood:
        theirs, ours = original[name], sapwood[name]
        # What failed follows from what was seen, and says it in more words.
        for what in theirs["seen"] | ours["seen"]:
            pair = _text(theirs["seen"].get(what, MISSING)), _text(ours["seen"].get(what, MISSING))
            _note(found, f"{name}/seen/{what}", pair)
        for client in theirs["clients"] | ours["clients"]:
            sockets = theirs["clients"].get(client, []), ours["clients"].get(client, [])
            for number, pair in enumerate(itertools.zip_longest(*sockets, fillvalue={})):
                _compare(found, f"{name}/{client}/{number}", *pair)
    return found


def _compare(found: dict[str, tuple[str, str]], place: str, theirs: dict[str, Any], ours: dict[str, Any]) -> None:
    """Note how two records of one socket differ."""
    for what in ("path", "handshake", "closed", "hangs"):
        _note(found, f"{place}/{what}", (_text(theirs.get(what, MISSING)), _text(ours.get(what, MISSING))))
    for way in ("sent", "received"):
        left, right = ([_text(frame) for frame in side.get(way, ())] for side in (theirs, ours))
        for tag, a, b, c, d in difflib.SequenceMatcher(None, left, right, autojunk=False).get_opcodes():
            if tag != "equal":
                for at, pair in enumerate(itertools.zip_longest(left[a:b], right[c:d], fillvalue=ABSENT)):
                    _note(found, f"{place}/{way}/{a + at}", pair)


def _note(found: dict[str, tuple[str, str]], place: str, pair: tuple[str, str]) -> None:
    if pair[0] != pair[1]:
        found[place] = pair


def _text(value: Any) -> str:
    """Return a value as the page shows it. Half a pair of surrogates has no UTF-8: it is shown escaped."""
    if value is MISSING:
        return ABSENT
    text = json.dumps(value, ensure_ascii=False, sort_keys=True, separators=(",", ":"))
    return text.encode("utf-8", "backslashreplace").decode()


def table() -> list[Row]:
    """Return the rows of the page's table."""
    text = PAGE.read_text().partition(HEADING)[2].partition("\n## ")[0]
    rows: list[Row] = []
    for line in text.splitlines():
        cells = [cell.strip() for cell in re.split(r"(?<!\\)\|", line)[1:-1]]
        if len(cells) == 4 and cells[0].startswith("`"):
            rows.append(Row(*(cell.strip("`").replace("\\|", "|") for cell in cells)))
    return rows


def fits(row: Row, place: str, pair: tuple[str, str]) -> bool:
    """Return whether a row is about this difference; `*` in it stands for anything."""
    return all(fnmatch.fnmatchcase(value, _pattern(given)) for value, given in zip((place, *pair), row, strict=False))


def _pattern(text: str) -> str:
    return re.sub(r"[\[?]", lambda mark: f"[{mark[0]}]", text)
