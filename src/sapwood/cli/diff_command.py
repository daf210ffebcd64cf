"""The command that shows what differs between two agents."""

from __future__ import annotations

import json
from collections.abc import Iterator
from typing import Annotated, Any

from cyclopts import Parameter
from rich.console import Console

from sapwood.cli import remote
from sapwood.cli.history_commands import AtOption, moment
from sapwood.cli.parameters import Agent, AsJson, Data
from sapwood.cli.quantities import counted
from sapwood.cli.terminal import Text, say
from sapwood.kernel.comparison.comparison import DEFAULT_LIMIT

LONGEST = 300
"""Characters of a value that are shown."""
STYLES = {"only_a": ("-", "red"), "only_b": ("+", "green"), "changed": ("~", "yellow")}


def diff(
    address: Agent,
    other: Annotated[str, Parameter(help="Another agent, or the same one below another root.")],
    /,
    *,
    at: AtOption = None,
    other_at: AtOption = None,
    limit: Annotated[int, Parameter(help="Maximum number of agents, and of changes in each part.")] = DEFAULT_LIMIT,
    as_json: AsJson = False,
    data: Data = "sapwood-data",
) -> None:
    """Show what differs between two agents and the agents under them: state, conversation, tables, files, spending.

    Agents under them are matched by their paths. Wakes no agent.
    """
    found = remote.answer_of(
        data, "diff", address=address, other=other, at=moment(at), other_at=moment(other_at), limit=limit
    )
    if as_json:
        say(json.dumps(found, indent=2, ensure_ascii=False))
        return
    console = Console(soft_wrap=True, highlight=False)
    for line in lines(found, at, other_at):
        console.print(line)


def lines(found: dict[str, Any], at: str | None = None, other_at: str | None = None) -> Iterator[Text]:
    """Yield what differs, as lines: `-` is only in the first agent, `+` only in the second, `~` differs.

    `at`, `other_at`: the moments of the two, as they were passed.
    """
    now = "" if at is None and other_at is None else " now"
    yield Text(f"- {found['a']}{now if at is None else f' at {at}'}", "red")
    yield Text(f"+ {found['b']}{now if other_at is None else f' at {other_at}'}", "green")
    if not (found["changed"] or found["only_a"] or found["only_b"]):
        yield Text(f"No differences in {counted(found['both'], 'agents')}.")
        return
    agents = counted(found["both"], "agents")
    differ = "differs" if found["changed"] == 1 else "differ"
    yield Text(f"{found['changed']} of {agents} {differ}. {found['only_a']} only in -, {found['only_b']} only in +.")
    for kind, names, count in (
        ("only_a", found["agents_only_a"], found["only_a"]),
        ("only_b", found["agents_only_b"], found["only_b"]),
    ):
        mark, style = STYLES[kind]
        for name in names:
            yield Text(f"{mark} {name}", style)
        yield from _more(count - len(names), "agents", "")
    for agent in found["agents_changed"]:
        yield Text("")
        yield Text(agent["path"] or found["a"].rpartition("/")[2], "bold")
        for part in agent["parts"]:
            yield from _part(part)
    yield from _more(found["changed"] - len(found["agents_changed"]), "agents that differ", "")


def _part(part: dict[str, Any]) -> Iterator[Text]:
    name = f"{part['kind']} {part['name']}" if part["name"] else part["kind"]
    if part["problem"] is not None:
        yield Text(f"  {name}: {part['problem']}", "yellow")
        return
    counts = [f"{STYLES[kind][0]}{part[kind]}" for kind in STYLES if part[kind]]
    yield Text(f"  {name}: {' '.join(counts)}")
    for change in part["changes"]:
        mark, style = STYLES[change["kind"]]
        a, b = (_value(part["kind"], change[side]) for side in "ab")
        value = b if change["kind"] == "only_b" else a if change["kind"] == "only_a" else f"{a} → {b}"
        is_id = part["kind"] in ("messages", "files")  # longer than what it stands for
        key = "" if is_id or not change["key"] else f"{change['key']}: "
        yield Text(f"    {mark} {key}{value}", style)
    yield from _more(sum(part[kind] for kind in STYLES) - len(part["changes"]), "changes", "    ")


def _more(count: int, of: str, indent: str) -> Iterator[Text]:
    if count > 0:
        yield Text(f"{indent}… and {count} more {of}", "dim")


def _value(kind: str, value: Any) -> str:
    match kind, value:
        case "messages", {"role": role, "parts": [*parts]}:
            text = f"{role}: {' '.join(map(_said, parts)).strip()}"
        case "schema", str():
            text = " ".join(value.split())
        case _:
            text = json.dumps(value, ensure_ascii=False)
    return text if len(text) <= LONGEST else f"{text[:LONGEST]}…"


def _said(part: Any) -> str:
    match part:
        case {"type": "text" | "reasoning", "text": str(text)}:
            return text
        case {"type": "step-start"}:
            return ""
        case {"type": kind, **rest}:
            shown = {name: rest[name] for name in ("input", "output", "errorText", "data") if name in rest}
            return f"[{kind} {json.dumps(shown, ensure_ascii=False)}]" if shown else f"[{kind}]"
        case _:
            return ""
