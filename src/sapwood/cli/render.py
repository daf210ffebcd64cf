"""The output of commands: agents as a tree, rows as a table, dead letters as lines."""

from __future__ import annotations

import json
import time
from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from datetime import UTC, datetime
from itertools import groupby
from typing import Any
from urllib.parse import unquote

import msgspec
from rich import text as rich
from rich.console import Console, RenderableType
from rich.live import Live
from rich.table import Table
from rich.tree import Tree

from sapwood.address import Address
from sapwood.cli.deployment_check import Report
from sapwood.cli.doctor import Finding
from sapwood.cli.quantities import ago, counted, size
from sapwood.cli.terminal import Text
from sapwood.escapes import escape_controls
from sapwood.kernel.node.data_folder import OddEntry
from sapwood.kernel.node.upgrade_check import Misfit
from sapwood.runs.tables.decisions import Decision
from sapwood.runs.tables.question import Question

MOST_PLACES = 3
"""Maximum number of agents to name per problem."""
LONGEST_ARGUMENTS = 200
NEXT_LINE = rich.Text("\n     ")
MARKS = {"ok": "green", "warn": "yellow", "bad": "red"}
COLOURS = {
    "busy": "yellow",
    "live": "green",
    "starting": "yellow",
    "asleep": "dim",
    "aborted": "red",
    "quarantined": "bold red",
}

COUNTS = {"calls": "calls", "sockets": "sockets", "queued_calls": "queued calls", "runs": "runs", "fibers": "fibers"}
"""The counters of an agent and their labels."""


def picture(seen: dict[str, Any]) -> Tree:
    """Return the agents as a tree."""
    count = seen["count"]
    sockets = seen["sockets"]
    head = Text(f"{counted(count, 'roots')}, {counted(sockets, 'sockets')}")
    if seen.get("called") == "node":
        head.append("  opened by nodes; `sapwood cluster trees` lists all", "dim")
    if not seen["ready"]:
        head.append("  not ready", "bold red")
    tree = Tree(head)
    for root in seen["roots"]:
        _add(tree, root, root["address"])
    if (more := count - len(seen["roots"])) > 0:
        tree.add(Text(f"… {more} more", "dim"))
    for entry in seen.get("odd", ()):
        tree.add(Text(f"{entry['problem']} {entry['remedy']}", "bold red" if entry["has_data"] else "yellow"))
    for worker in seen.get("unanswered", ()):
        tree.add(Text(f"{seen.get('called', 'worker')} {worker} does not answer: its trees are missing", "bold red"))
    return tree


def _add(tree: Tree, branch: dict[str, Any], label: str) -> None:
    line = Text()
    line.append(unquote(label), "bold")
    line.append(f"  {branch['status']}", COLOURS.get(branch["status"], ""))
    facts = [counted(branch[name], words) for name, words in COUNTS.items() if branch[name]]
    facts.append(size(branch["bytes"]))
    if branch["next_schedule_at"] is not None:
        facts.append(f"next schedule {branch['next_schedule_at']}")
    line.append(f"  {', '.join(facts)}", "cyan")
    if branch["last_error"]:
        line.append(f"  {branch['last_error'].splitlines()[0]}", "red")
    node = tree.add(line)
    for child in branch["below"]:
        _add(node, child, child["address"].rpartition("/")[2])
    if (more := branch["children"] - len(branch["below"])) > 0:
        node.add(Text(f"… {more} more", "dim"))


def watch(console: Console, look: Callable[[], RenderableType], every: float) -> None:
    """Show something and refresh it until Ctrl-C."""
    with Live(look(), console=console, auto_refresh=False, screen=False) as live:
        while True:
            time.sleep(every)
            live.update(look(), refresh=True)


def rows(answer: dict[str, Any]) -> Table:
    """Return the rows of an SQL statement as a table."""
    table = Table()
    for column in answer["columns"]:
        table.add_column(Text(column))
    for row in answer["rows"]:
        table.add_row(*(Text("NULL", "dim") if value is None else _cell(str(value)) for value in row))
    return table


def _cell(value: str) -> rich.Text:
    """Return a value that may have several lines: a table keeps them in their cell."""
    return rich.Text(escape_controls(value, keep="\n"))


def runs(answer: dict[str, Any], now: datetime | None = None) -> Table:
    """Return runs as a table."""
    now = now or datetime.now(UTC)
    table = Table("run", "agent", "status", "over", "size", "")
    for run in answer["runs"]:
        over = "" if run["ended_at"] is None else ago((now - datetime.fromisoformat(run["ended_at"])).total_seconds())
        type_ = unquote(run["agent"].partition(":")[0])
        cells = [run["id"], type_, run["status"], over, size(run["bytes"]), "pinned" if run["pinned"] else ""]
        table.add_row(*(Text(cell) for cell in cells))
    return table


def methods(answer: dict[str, Any]) -> Iterator[Text]:
    """Yield each method as a signature, with the first line of its docstring."""
    for method in answer["methods"]:
        properties, required = method["parameters"]["properties"], method["parameters"]["required"]
        parameters = [f"{name}{'' if name in required else '?'}: {_type(one)}" for name, one in properties.items()]
        if method["variadic"]:
            name, one = list(properties.items())[-1]
            parameters[-1] = f"*{name}: {_type(one['items'])}"
        line = Text(method["name"], "bold").append(f"({', '.join(parameters)})", "not bold")
        if method["result"] is not None:
            line.append(f" -> {'stream of ' if method['streams'] else ''}{_type(method['result'])}", "not bold")
        yield line
        if method["doc"]:
            yield Text(f"    {method['doc'].splitlines()[0]}", "dim")


def _type(schema: dict[str, Any]) -> str:
    """Return the type that a JSON schema allows, in a few words."""
    if "$ref" in schema:
        return schema["$ref"].rpartition("/")[2].rpartition(".")[2]
    if "anyOf" in schema:
        return " | ".join(_type(one) for one in schema["anyOf"])
    if "enum" in schema:
        return " | ".join(json.dumps(value) for value in schema["enum"])
    if schema.get("type") == "array" and schema.get("items"):
        return f"array of {_type(schema['items'])}"
    return schema.get("title") or schema.get("type") or "any"


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


def questions(owner: Address, asked: Sequence[Question]) -> Iterator[Text]:
    """Yield the open questions of one agent, each on a line."""
    yield Text(str(owner), "bold")
    for one in asked:
        line = Text("  ").append(one.id, "cyan").append(f"  {one.kind}: ")
        if one.is_from_code:
            options = "" if one.options is None else f" ({', '.join(one.options)})"
            line.append(f"{one.prompt}{options}")
        else:
            line.append(_call(one.tool, one.arguments))
        if one.remote is not None:
            line.append(", on another server", "dim")
        yield line


def decisions(owner: str, chain: Sequence[Decision]) -> Iterator[Text]:
    """Yield the decisions about the questions of one agent, each on a line."""
    yield Text(owner, "bold")
    for one in chain:
        at = datetime.fromtimestamp(one.at, UTC).isoformat(sep=" ", timespec="seconds")
        if one.kind == "outcome":
            yield Text(f"  {at}  {one.channel}: {one.reason or ''}", "dim")
            continue
        by = f"{one.user or 'unknown user'} ({one.authentication or 'not authenticated'}, {one.channel})"
        line = Text(f"  {at}  ").append(one.kind, "green" if one.kind in ("approved", "answered") else "red")
        line.append(f" {_call(one.tool, msgspec.json.decode(one.shown))} by {by}")
        if one.arguments is not None:
            line.append(f", with {one.arguments}")
        if one.reason is not None:
            line.append(f": {one.reason}")
        yield line


def _call(method: str, arguments: dict[str, Any]) -> str:
    given = ", ".join(f"{name}={json.dumps(value, ensure_ascii=False)}" for name, value in arguments.items())
    return f"{method}({given if len(given) <= LONGEST_ARGUMENTS else given[:LONGEST_ARGUMENTS] + '…'})"


def _history(letter: dict[str, Any], now: datetime) -> str:
    failed_at = datetime.fromisoformat(letter["failed_at"])
    when = f"{failed_at:%Y-%m-%d %H:%M:%S} UTC, {ago((now - failed_at).total_seconds())}"
    if letter["code"] == "forked":
        return f"held since {when}"
    attempts, times = letter["attempts"], letter["occurrences"]
    tried = f"after {counted(attempts, 'attempts')}" if attempts else "without an attempt"
    return f"failed {tried}, {f'{times} times, last ' if times > 1 else ''}{when}"


def finding(one: Finding) -> Text:
    """Return one finding of the doctor as a line, with its remedy on the next line."""
    mark = "ok" if one.remedy is None else "bad" if one.fatal else "warn"
    return _marked(mark, f"{one.what}: {one.found}", one.remedy)


def odd_entry(entry: OddEntry) -> Text:
    """Return an entry of the data folder that is not a tree as a line, with its remedy on the next line."""
    return _marked("bad" if entry.has_data else "warn", entry.problem, entry.remedy)


def _marked(mark: str, text: str, remedy: str | None = None, where: str | None = None) -> Text:
    line = Text()
    line.append(f"{mark:5}", MARKS[mark])
    line.append(text)
    if where is not None:
        line.append_text(NEXT_LINE).append(where, "dim")
    if remedy is not None:
        line.append_text(NEXT_LINE).append(f"→ {remedy}")
    return line


@dataclass(frozen=True, slots=True)
class CheckProgress:
    """The progress of `upgrade-check`, rendered on every refresh."""

    counts: Counter[str]

    def __rich__(self) -> str:
        return f"{counted(self.counts['agents'], 'agents')} checked"


def report(found: Report, target: str) -> Iterator[Text]:
    """Return the report of `upgrade-check` on a data folder as lines. The same problem in many agents is one line."""
    groups: dict[tuple[str, ...], list[Misfit]] = {}
    for one in found.misfits:
        type_ = Address.parse(one.agent).type
        groups.setdefault((type_, one.what, one.why, one.remedy), []).append(one)
    for (type_, what, why, remedy), same in groups.items():
        yield _marked("bad", f"{type_}, {what}: {why}", remedy, _where(same))
    for entry in found.odd:
        yield odd_entry(entry)
    counts = ", ".join(counted(count, what) for what, count in found.counts.items() if count)
    if not found.fits and not found.misfits:
        yield _marked("bad", f"not all data in {found.data} was checked; the rest fits {target}: {counts}")
    elif found.misfits:
        many = len(found.misfits)
        text = f"{counted(many, 'things')} in {found.data} {'does' if many == 1 else 'do'} not fit {target}"
        yield _marked("bad", f"{text}; checked: {counts}")
    else:
        yield _marked("ok", f"all data in {found.data} fits {target}: {counts or 'the folder is empty'}")


def _where(same: list[Misfit]) -> str:
    agents = list(dict.fromkeys(one.agent for one in same))
    if len(same) <= MOST_PLACES:
        return "in " + ", ".join(f"{one.agent} ({one.id})" if one.id else one.agent for one in same)
    times = "" if len(same) == len(agents) else f"{len(same)} times "
    more = ", …" if len(agents) > MOST_PLACES else ""
    return f"{times}in {counted(len(agents), 'agents')}: {', '.join(agents[:MOST_PLACES])}{more}"
