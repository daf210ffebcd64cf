"""What nodes wrote to their logs that must not be there: mistakes that nobody expected, and damage that they found."""

from __future__ import annotations

import re

from tests.faults.cluster.cell import Node

RECORD = re.compile(r"^\d\d:\d\d:\d\d (?P<level>[A-Z]+) +(?P<text>.*)$")
EXPECTED = re.compile(r"No space left on device|disk is full|disk I/O error")
"""A disk that is full is one of the faults."""
LONGEST = 300


def unexpected(node: Node) -> list[str]:
    """Return a sentence for every error in what a node wrote since it was last asked; the same one once."""
    if not node.log.exists():
        return []
    said = node.log.read_bytes()[node.looked :]
    node.looked += len(said)
    found: dict[str, str] = {}
    for record in _records(said.decode(errors="replace").splitlines()):
        first = RECORD.match(record[0])
        is_error = first is not None and first["level"] in ("ERROR", "CRITICAL")
        traces = [place for place, line in enumerate(record) if line.startswith("Traceback (most recent")]
        if (is_error or traces) and not EXPECTED.search("\n".join(record)):
            told = first["text"] if first is not None else record[0]
            why = next((line for line in reversed(record) if line.strip()), "") if traces else ""
            found.setdefault(re.sub(r"[0-9a-f]*\d[0-9a-f]*", "…", told), f"{told[:LONGEST]} {why[:LONGEST]}".strip())
    return [f"{node.name} wrote: {told}" for told in found.values()]


def _records(lines: list[str]) -> list[list[str]]:
    """Return the lines of each entry together."""
    records: list[list[str]] = []
    for line in lines:
        if line.startswith("TASK "):
            records.append([""])  # it was asked what it waits for
        elif RECORD.match(line) or not records:
            records.append([line])
        else:
            records[-1].append(line)
    return [record for record in records if record[0]]
