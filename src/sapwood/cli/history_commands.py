"""The commands that show the history of a tree, and take it back to a moment."""

from __future__ import annotations

import json
import re
import shlex
import sys
import time
from datetime import UTC, datetime
from typing import Annotated

from cyclopts import Parameter
from rich.console import Console
from rich.table import Table

from sapwood.cli import remote
from sapwood.cli.parameters import Agent, AsJson, Data
from sapwood.cli.quantities import counted
from sapwood.cli.terminal import Text, say
from sapwood.cli.zoned_time import with_zone
from sapwood.errors import UsageError
from sapwood.escapes import escape_controls
from sapwood.kernel.actors.fork_origin import WorkRule

DATE = re.compile(r"\d{4}-\d{2}-\d{2}T")
HELD = {"calls": "stored calls", "fibers": "fibers", "turns": "turns", "runs": "runs", "questions": "open questions"}
DATA = "sapwood-data"
UNCUT = 10_000
"""Columns of a table whose cells are never cut or folded, because they are copied into commands."""


AtOption = Annotated[
    str | None,
    Parameter(
        help="A moment of the history: a time with a time zone, the name of a mark, `turn:ID` for the last moment "
        "before a turn, such as `turn:turn-9659fef2d257`, or `place:PLACE` of a moment. Default: now."
    ),
]


def moments(
    address: Agent,
    /,
    *,
    since: Annotated[str | None, Parameter(help="Only moments since this time, with a time zone.")] = None,
    limit: Annotated[int, Parameter(help="Maximum number of moments to show: the last ones.")] = 100,
    as_json: AsJson = False,
    data: Data = DATA,
) -> None:
    """Show the moments in the history of a tree, or of one agent in it and those under it. Wakes no agent."""
    begins_at = None if since is None else time_of(since)
    answer = remote.answer_of(data, "moments", address=address, since=begins_at, limit=limit)
    if as_json:
        say(json.dumps([{**one, "at": _iso(one["at"])} for one in answer["moments"]], indent=2, ensure_ascii=False))
        return
    if not answer["moments"]:
        say(f"The history of {address} has no named moments.")
        return
    rows = [(_iso(one["at"]), one["kind"], one["label"], one["address"], one["place"]) for one in answer["moments"]]
    widths = [max(map(len, column)) for column in zip(*rows, strict=True)]
    is_wide = sys.stdout.isatty() and sum(widths) + 2 * len(widths) > Console().width
    if is_wide:  # the agent and the place have lines of their own, whole, so that they can be copied
        for at, kind, label, agent, place in rows:
            say(f"{at}  {kind}  {escape_controls(label)}\n    {agent}\n    {place}")
        return
    table = Table(box=None, pad_edge=False)
    for title in ("at", "kind", "name", "agent", "place"):
        table.add_column(title, no_wrap=True)
    for row in rows:
        table.add_row(*map(Text, row))
    Console(width=UNCUT).print(table)


def _iso(at: float) -> str:
    """Return a time with all its digits, so that it can be passed to `--at`."""
    return datetime.fromtimestamp(at, UTC).isoformat(timespec="microseconds").replace("+00:00", "Z")


def rewind(
    address: Agent,
    /,
    *,
    at: Annotated[
        str,
        Parameter(
            help="The moment: a time with a time zone, the name of a mark, `turn:ID` for the last moment before a "
            "turn, such as `turn:turn-9659fef2d257`, or `place:PLACE` of a moment."
        ),
    ],
    keep_as: Annotated[str | None, Parameter(help="Keep the tree as it is now, under this name.")] = None,
    work: Annotated[
        WorkRule, Parameter(help="What happens to work that was unfinished then: hold it, drop it, or run it.")
    ] = "hold",
    data: Data = DATA,
) -> None:
    """Take a tree back to a moment of its history. Calls wait, running calls are cancelled, clients connect again."""
    asked = {"address": address, "at": moment(at), "keep_as": keep_as, "work": work}
    found = remote.answer_of(data, "rewind", **asked)
    say(f"{found['address']} is as it was at {found['at']}, with {counted(found['agents'], 'agents')}.")
    tell_held(found["held"], work)
    if keep_as is not None:
        say(f"As it was before the command, it is kept under the name {keep_as}.")
    folder = "" if data == DATA else f" --data {shlex.quote(data)}"
    undo_at = found["undo_at"].replace("+00:00", "Z")
    say(f"To undo this: sapwood rewind {shlex.quote(found['address'])} --at {undo_at}{folder}")


def tell_held(held: dict[str, int], work: WorkRule) -> None:
    """Print how much unfinished work does not continue in a copy, or in a tree that was rewound."""
    counts = [counted(count, HELD[what]) for what, count in held.items() if count]
    if counts:
        say(f"{'Dropped' if work == 'drop' else 'Held'}: {', '.join(counts)}.")


def moment(text: str | None) -> float | str | dict[str, str] | None:
    """Parse a moment as the admin API has it."""
    if text is None:
        return None
    kind, _, value = text.partition(":")
    if kind in ("turn", "place") and value:
        return {kind: value}
    return time_of(text) if DATE.match(text) else text


def time_of(text: str) -> float:
    """Parse a time with a time zone that is not in the future."""
    at = with_zone(text)
    if at.timestamp() > time.time():
        raise UsageError(f"The time must not be in the future, got {text!r}.")
    return at.timestamp()
