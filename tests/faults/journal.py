"""What a life did, line by line, in a file that survives its death.

Every line is one small `os.write`: the operating system has it, whatever happens to the
process. Agents write a line before they touch their database, clients after a reply
has arrived; so the order of the lines is the order of the writes.

    w  written     tree, epoch, lineage, ids, state    just before the statements of one slice
    u  undone      ids                                 they were rolled back on purpose
    n  failed      ids                                 the statements raised
    x  deletion    number, tree, epoch, lineage        just before delete_sub_agent() or destroy() of a child
    d  destroyed   number, tree, epoch                 just before destroy() of a root
    a  reply       numbers                             acknowledged: ids, deletions, whatever has a number
    s  seen        numbers                             a reply showed these ids
    c  created     tree, epoch, lineage                a reply said that this agent exists
    e  error       text                                nothing that the workload expects

An epoch is the first id a root ever wrote: a tree that was destroyed and made again has
a new one. A lineage is the file stems from the root down; no stem is used twice in an epoch.
"""

from __future__ import annotations

import json
import os
from collections.abc import Callable
from pathlib import Path
from typing import Any


class Journal:
    """The journal of one life."""

    def __init__(self, path: Path, first_reply: Callable[[], None]) -> None:
        self._descriptor = os.open(path, os.O_CREAT | os.O_WRONLY | os.O_APPEND, 0o644)
        self._first_reply: Callable[[], None] | None = first_reply

    def write(self, *line: object) -> None:
        os.write(self._descriptor, json.dumps(line).encode() + b"\n")
        if line[0] == "a" and self._first_reply is not None:
            tell, self._first_reply = self._first_reply, None
            tell()


def read(path: Path) -> list[list[Any]]:
    """Return the lines of a journal; one that its writer did not finish does not count."""
    text = path.read_bytes() if path.exists() else b""
    return [json.loads(line) for line in text.split(b"\n")[:-1]]
