"""What commands show: agents as a tree, rows as a table, dead letters as lines."""

from __future__ import annotations

import json
import time
from collections.abc import Callable, Iterator
from datetime import UTC, datetime
from itertools import groupby
from typing import Any
from urllib.parse import unquote

from rich.console import Console
from rich.live import Live
from rich.table import Table
from rich.text import Text
from rich.tree import Tree

LONGEST_ARGUMENTS = 200
COLOURS = {
    "busy": "yellow",
    "live": "green",
    "starting": "yellow",
    "asleep": "dim",
    "aborted": "red",
    "quarantined": "bold red",
}


def picture(seen: dict[str, Any]) -> Tree:
    """Return the agents as a tree."""
    count = seen["count"]
    sockets = seen["sockets"]
    head = Text(f"{count} root{_s(count)}, {sockets} socket{_s(sockets)}")
    if not seen["ready"]:
        head.append("  not ready", "bold red")
    tree = Tree(head)
    for root in seen["roots"]:
        _add(tree, root, root["address"])
    if (more := count - len(seen["roots"])) > 0:
        tree.add(Text(f"… {more} more", "dim"))
    return tree


def _add(tree: Tree, branch: dict[str, Any], label: str) -> None:
    line = Text()
    line.append(unquote(label), "bold")
    line.append(f"  {branch['status']}", COLOURS.get(branch["status"], ""))
    facts = [f"{branch['calls']} call{_s(branch['calls'])}"] if branch["calls"] else []
    if branch["sockets"]:
        facts.append(f"{branch['sockets']} socket{_s(branch['sockets'])}")
    facts.append(size(branch["bytes"]))
    line.append(f"  {', '.join(facts)}", "cyan")
    if branch["last_error"]:
        line.append(f"  {branch['last_error'].splitlines()[0]}", "red")
    node = tree.add(line)
    for child in branch["below"]:
        _add(node, child, child["address"].rpartition("/")[2])
    if (more := branch["children"] - len(branch["below"])) > 0:
        node.add(Text(f"… {more} more", "dim"))


def watch(console: Console, look: Callable[[], dict[str, Any]], every: float) -> None:
    """Show the tree, again and again, until somebody interrupts."""
    with Live(picture(look()), console=console, auto_refresh=False, screen=False) as live:
        while True:
            time.sleep(every)
            live.update(picture(look()), refresh=True)


def rows(answer: dict[str, Any]) -> Table:
    """Return what a statement returned as a table."""
    table = Table()
    for column in answer["columns"]:
        table.add_column(Text(column))
    for row in answer["rows"]:
        table.add_row(*(Text("NULL", "dim") if value is None else Text(str(value)) for value in row))
    return table


def letters(answer: dict[str, Any], now: datetime | None = None) -> Iterator[Text]:
    """Return dead letters as lines, those of one agent together."""
    now = now or datetime.now(UTC)
    for agent, group in groupby(answer["letters"], key=lambda letter: letter["agent"]):
        yield Text(agent, "bold")
        for letter in group:
            line = Text("  ")
            line.append(letter["id"], "cyan")
            line.append(f"  {_call(letter['method'], letter['arguments'])}")
            yield line
            why = letter["error"].strip().splitlines() or [""]
            yield Text(f"    {letter['code']}: {why[0]}{' …' if len(why) > 1 else ''}", "red")
            yield Text(f"    {_history(letter, now)}", "dim")
    for one in answer["unread"]:
        yield Text(f"{one['address']} could not be read: {one['error']}", "red")


def _call(method: str, arguments: dict[str, Any]) -> str:
    given = ", ".join(f"{name}={json.dumps(value, ensure_ascii=False)}" for name, value in arguments.items())
    return f"{method}({given if len(given) <= LONGEST_ARGUMENTS else given[:LONGEST_ARGUMENTS] + '…'})"


def _history(letter: dict[str, Any], now: datetime) -> str:
    failed_at = datetime.fromisoformat(letter["failed_at"])
    when = f"{failed_at:%Y-%m-%d %H:%M:%S} UTC, {ago((now - failed_at).total_seconds())}"
    attempts, times = letter["attempts"], letter["times"]
    tried = f"after {attempts} attempt{_s(attempts)}" if attempts else "without an attempt"
    return f"given up {tried}, {f'{times} times, last ' if times > 1 else ''}{when}"


def ago(seconds: float) -> str:
    """Return how long something is past as people say it."""
    for unit, length in (("day", 86400), ("hour", 3600), ("minute", 60)):
        if seconds >= length:
            count = int(seconds // length)
            return f"{count} {unit}{_s(count)} ago"
    return "just now"


def size(count: int) -> str:
    """Return a number of bytes as people say it."""
    value, units = float(count), ["B", "KiB", "MiB", "GiB", "TiB"]
    while value >= 1024 and len(units) > 1:
        value /= 1024
        del units[0]
    return f"{value:.0f} {units[0]}" if value >= 10 or units[0] == "B" else f"{value:.1f} {units[0]}"


def _s(count: int) -> str:
    return "" if count == 1 else "s"
