"""The commands that show agents and act on them, through the running server or on its data folder."""

from __future__ import annotations

import json
import sys
import threading
import time
from collections.abc import Sequence
from itertools import groupby
from operator import attrgetter, itemgetter
from typing import Annotated, Any

import msgspec
from cyclopts import Parameter
from rich.console import Console, RenderableType

from sapwood.address import Address
from sapwood.admin.admin import Admin
from sapwood.admin.agent_lookup import MOST_ROWS, iso_time
from sapwood.cli import remote, render
from sapwood.cli.parameters import Agent, AsJson, Data
from sapwood.cli.quantities import counted
from sapwood.cli.terminal import Text, say
from sapwood.cli.top import Top
from sapwood.errors import ForbiddenSql, Refused, Unavailable, UsageError
from sapwood.runs.tables.decisions import Decision, broken_at
from sapwood.runs.tables.question import Question
from sapwood.wire import runs as wire

HINT_AFTER = 10.0
"""Seconds after which a call that has no result yet prints what it may wait for."""
BETWEEN_LOOKS = 0.5


def tree(
    address: Annotated[str | None, Parameter(help="Show only this agent and the agents under it.")] = None,
    /,
    *,
    once: Annotated[bool, Parameter(negative="", help="Show it once and exit.")] = False,
    every: Annotated[float, Parameter(help="Seconds between two updates.")] = 1.0,
    agents: Annotated[int, Parameter(help="Maximum number of agents to show.")] = 500,
    children: Annotated[int, Parameter(help="Maximum number of children to show per agent.")] = 50,
    as_json: AsJson = False,
    data: Data = "sapwood-data",
) -> None:
    """Show the agents: which are awake, what they do, and how large they are. Wakes no agent."""

    async def here(operator: Admin) -> dict[str, Any]:
        return await operator.tree(address, agents=agents, children=children)

    def look() -> dict[str, Any]:
        return remote.ask_or_open(data, "tree", here, address=address, agents=agents, children=children)

    console = Console()
    if as_json:
        say(json.dumps(look(), indent=2))
    elif once or not console.is_terminal:
        console.print(render.picture(look()))
    else:
        render.watch(console, lambda: render.picture(look()), max(every, 0.1))


def top(
    *,
    once: Annotated[bool, Parameter(negative="", help="Show it once and exit.")] = False,
    every: Annotated[float, Parameter(help="Seconds between two updates.")] = 1.0,
    trees: Annotated[int, Parameter(help="Maximum number of trees to show.")] = 20,
    as_json: AsJson = False,
    data: Data = "sapwood-data",
) -> None:
    """Show the load of a running server: processes, queues, the busiest trees, and agents that block the event loop."""

    def look() -> dict[str, Any]:
        return remote.ask_soon(data, "top", trees=trees)

    def look_again() -> RenderableType:
        try:
            return show(look())
        except (Refused, Unavailable) as error:  # it may come back, as after a restart
            return Text(f"{error} Retrying.", "bold red")

    console = Console()
    show = Top(trees, console.width)
    seen = look()
    if as_json:
        say(json.dumps(seen, indent=2))
        return
    show(seen)
    time.sleep(BETWEEN_LOOKS)  # how busy it is takes two looks to see
    if once or not console.is_terminal:
        console.print(show(look()))
    else:
        render.watch(console, look_again, max(every, 0.1))


def state(address: Agent, /, *, data: Data = "sapwood-data") -> None:
    """Print the state of an agent as JSON. Wakes no agent."""

    async def here(operator: Admin) -> dict[str, Any]:
        return {"state": await operator.state(address)}

    answer = remote.ask_or_open(data, "state", here, address=address)
    say(json.dumps(answer["state"], indent=2, ensure_ascii=False))


def methods(address: Agent, /, *, as_json: AsJson = False, data: Data = "sapwood-data") -> None:
    """Show the methods that an agent exposes to clients: parameters, results and docstrings. Wakes no agent."""
    answer = remote.ask(data, "methods", address=address)
    if as_json:
        say(json.dumps(answer, indent=2, ensure_ascii=False))
        return
    console = Console(soft_wrap=True, highlight=False)
    for line in render.methods(answer):
        console.print(line)
    if not answer["methods"]:
        say(f"{address} exposes no methods.")


def sql(
    address: Agent,
    statement: Annotated[str, Parameter(help="One SQL statement.")],
    /,
    *arguments: Annotated[str, Parameter(allow_leading_hyphen=True, help="Values for the `?` placeholders, as JSON.")],
    write: Annotated[bool, Parameter(negative="", help="Allow writes. Wakes the agent.")] = False,
    as_json: AsJson = False,
    data: Data = "sapwood-data",
) -> None:
    """Run SQL on the database of an agent. Read-only unless --write is given."""
    given = [_value(text) for text in arguments]

    async def here(operator: Admin) -> dict[str, Any]:
        return await operator.sql(address, statement, given)

    asked = {"address": address, "sql": statement, "arguments": given, "write": write}
    try:
        answer = remote.ask(data, "sql", **asked) if write else remote.ask_or_open(data, "sql", here, **asked)
    except ForbiddenSql as error:
        if write:
            raise
        raise Refused(f"{str(error).rstrip(' ;')}. To change data, add --write.") from None
    if as_json:
        say(json.dumps([dict(zip(answer["columns"], row, strict=True)) for row in answer["rows"]], ensure_ascii=False))
    elif answer["columns"]:
        Console().print(render.rows(answer))
    if answer["more"]:
        say(f"Only the first {len(answer['rows'])} rows are shown.", file=sys.stderr)


def call(
    address: Agent,
    method: Annotated[str, Parameter(help="A public method of the agent.")],
    /,
    *arguments: Annotated[
        str,
        Parameter(
            allow_leading_hyphen=True, help="Arguments as JSON; anything that is not valid JSON is passed as a string."
        ),
    ],
    data: Data = "sapwood-data",
) -> None:
    """Call a method of an agent and print the result as JSON. A stream prints one item per line."""
    hint = f"Still waiting. If the agent waits for a person, this shows the question: sapwood questions {address}"
    timer = threading.Timer(HINT_AFTER, say, (hint,), {"file": sys.stderr})
    timer.daemon = True
    timer.start()
    try:
        for result in remote.ask_lines(
            data, "call", address=address, method=method, arguments=[_value(text) for text in arguments]
        ):
            timer.cancel()
            say(json.dumps(result, ensure_ascii=False), flush=True)
    finally:
        timer.cancel()


def dead_letters(
    address: Annotated[str | None, Parameter(help="Show only the dead letters of this agent.")] = None,
    /,
    *,
    under: Annotated[bool, Parameter(negative="", help="Include the agents under it.")] = False,
    replay: Annotated[str | None, Parameter(help="Call a dead letter again, by its id, or `all`.")] = None,
    delete: Annotated[str | None, Parameter(help="Delete a dead letter, by its id, or `all`.")] = None,
    as_json: AsJson = False,
    data: Data = "sapwood-data",
) -> None:
    """Show dead letters: scheduled and queued calls whose retries failed. Wakes no agent unless you change them."""
    if address is None and (under or replay is not None or delete is not None):
        raise UsageError(
            "--under, --replay and --delete need the address of an agent: sapwood dead-letters Type:name …"
        )
    if replay is not None and delete is not None:
        raise UsageError(
            "--replay and --delete exclude each other: a replayed dead letter is deleted. Pass one of them."
        )
    if replay is not None or delete is not None:
        asked = {"address": address, "below": under, "replay": replay, "delete": delete}
        answer = remote.ask(data, "dead-letters", **asked)
        done, later = answer["done"], answer.get("later", [])
        say(json.dumps(answer) if as_json else acted(done, later, replayed=replay is not None))
        return

    async def here(operator: Admin) -> dict[str, Any]:
        return await operator.dead_letters.list(address, below=under)

    answer = remote.ask_or_open(data, "dead-letters", here, address=address, below=under)
    if as_json:
        say(json.dumps(answer, indent=2, ensure_ascii=False))
        return
    console = Console(soft_wrap=True, highlight=False)
    for line in render.letters(answer):
        console.print(line)
    if answer["more"]:
        say(f"Only the first {len(answer['letters'])} are shown.", file=sys.stderr)
    for worker in answer.get("unanswered", ()):
        called = str(answer.get("called", "worker")).capitalize()
        say(f"{called} {worker} does not answer: the dead letters of its trees are missing.", file=sys.stderr)
    if not answer["letters"]:
        say("There are no dead letters" + ("." if address is None else f" of {address}{_or_below(under)}."))
    elif console.is_terminal:
        console.print("\nReplay one with: sapwood dead-letters AGENT --replay ID", style="dim")


def questions(address: Agent, /, *, as_json: AsJson = False, data: Data = "sapwood-data") -> None:
    """Show the open questions of an agent and of all agents under it: what waits for a person, and who asks.

    Wakes no agent. To answer a question, call the agent that asks.
    """

    found = remote.rows(data, "questions", MOST_ROWS, address=address)
    asked = [
        (Address.parse(owner), sorted(map(_question, rows), key=attrgetter("is_from_code")))
        for owner, rows in groupby(found, key=itemgetter("address"))
    ]
    if as_json:
        depth = len(Address.parse(address).segments)
        told = [
            {"address": str(owner), **wire.question(one, owner.segments[depth:])}
            for owner, found in asked
            for one in found
        ]
        say(json.dumps({"questions": told}, indent=2, ensure_ascii=False))
        return
    console = Console(soft_wrap=True, highlight=False)
    for owner, found in asked:
        for line in render.questions(owner, found):
            console.print(line)
    if not asked:
        say(f"{address} and the agents under it have no open questions.")
    elif console.is_terminal:
        how = "questions.approve ID, questions.deny ID REASON or questions.answer ID VALUE"
        console.print(f"\nAnswer with: sapwood call AGENT {how}", style="dim")


def decisions(address: Agent, /, *, as_json: AsJson = False, data: Data = "sapwood-data") -> None:
    """Print the approvals and denials of tool calls of an agent and all agents under it, and verify the audit log.

    Exits with 1 if an entry does not follow from the one before it. Wakes no agent.
    """

    async def here(operator: Admin) -> dict[str, Any]:
        return await operator.decisions(address)

    answer = remote.ask_or_open(data, "decisions", here, address=address)
    chains = [(one["address"], [Decision(**row) for row in one["decisions"]]) for one in answer["agents"]]
    broken = {owner: number for owner, rows in chains if (number := broken_at(rows)) is not None}
    if as_json:
        told = [{"address": owner, "decisions": [row.told() for row in rows]} for owner, rows in chains]
        say(json.dumps({"agents": told, "broken": broken}, indent=2, ensure_ascii=False))
    else:
        console = Console(soft_wrap=True, highlight=False)
        for owner, rows in chains:
            for line in render.decisions(owner, rows):
                console.print(line)
        if not any(rows for _, rows in chains):
            say(f"{address} and the agents under it have no decisions.")
        elif not broken:
            count = sum(len(rows) for _, rows in chains)
            say(f"Verified {counted(count, 'entries')} of {counted(len(chains), 'agents')}: none was changed.")
    if answer["more"]:
        say("Not all decisions are shown. Pass the address of an agent further down.", file=sys.stderr)
    for owner, number in broken.items():
        say(f"Decision {number} of {owner} was changed, or one before it was removed.", file=sys.stderr)
    if broken:
        sys.exit(1)


def runs(
    address: Agent,
    /,
    *,
    status: Annotated[str | None, Parameter(help="Show only the runs with this status.")] = None,
    as_json: AsJson = False,
    data: Data = "sapwood-data",
) -> None:
    """Show the stored runs that an agent has started: status, size, and whether each is pinned."""

    found = remote.rows(data, "runs", MOST_ROWS, address=address, status=status)
    oldest_first = [run | {name: iso_time(run[name]) for name in ("started_at", "ended_at")} for run in found[::-1]]
    answer: dict[str, Any] = {"runs": oldest_first[-MOST_ROWS:], "more": len(found) > MOST_ROWS}
    if as_json:
        say(json.dumps(answer, indent=2, ensure_ascii=False))
        return
    if answer["runs"]:
        Console().print(render.runs(answer))
    held = sum(run["bytes"] for run in answer["runs"])
    say(f"{counted(len(answer['runs']), 'runs')}, {render.size(held)}")
    if answer["more"]:
        say(f"Only the first {len(answer['runs'])} are shown.", file=sys.stderr)


def release(address: Agent, /, *, data: Data = "sapwood-data") -> None:
    """Release a tree from quarantine, where it is after it blocked its process too often. Resets its strikes."""

    async def here(operator: Admin) -> dict[str, Any]:
        operator.release(address)
        return {}

    remote.ask_or_open(data, "release", here, address=address)
    say(f"Released {Address.parse(address).root}: it starts at its next call.")


def acted(done: int, later: Sequence[str], *, replayed: bool) -> str:
    """Return what became of dead letters. `later`: when those calls are due that were held."""
    letters = counted(done, "dead letters")
    if not replayed:
        return f"Deleted {letters}."
    if not later:
        when = f"{'it is' if done == 1 else 'they are'} called now"
    elif done == 1:
        when = f"it was held, and is called at {later[0]}"
    elif done == len(later):
        when = f"they were held, and are called at their times, the first at {later[0]}"
    else:
        held = "was held at its time, " if len(later) == 1 else "were held at their times, the first at "
        when = f"{counted(done - len(later), 'calls')} now, and {len(later)} that {held}{later[0]}"
    return f"Replayed {letters}: {when}. A call that fails again becomes a dead letter again."


def _or_below(below: bool) -> str:
    return " and the agents under it" if below else ""


def _question(row: dict[str, Any]) -> Question:
    """Return a question of the admin API."""
    return msgspec.convert({name: value for name, value in row.items() if value is not None}, Question)


def _value(text: str) -> Any:
    """Return an argument: JSON, or the text itself."""
    try:
        return json.loads(text)
    except ValueError:
        return text
