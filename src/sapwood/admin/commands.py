"""The endpoints that commands use: each is a method of `Admin`."""

from __future__ import annotations

import json
from collections.abc import AsyncIterator, Sequence
from typing import Any

import msgspec
from starlette.responses import Response, StreamingResponse

from sapwood.admin.admin import MOST_AGENTS
from sapwood.admin.agent_lookup import iso_time
from sapwood.admin.endpoint import LONG_PATIENCE, AdminCall, Answer, Endpoint, MaybeAgent, OneAgent, Params
from sapwood.admin.merged import by_address, joined
from sapwood.admin.spending import DEFAULT_LIMIT, most_expensive
from sapwood.admin.spending_hours import Hours, added_up, spending_by_hour
from sapwood.errors import Crashed, Refused, SapwoodError
from sapwood.kernel.trees.hourly_usage import Dimension

SHORT_PATIENCE = 1.0
"""Seconds that another process is given if it is asked again and again."""


class Tree(MaybeAgent):
    agents: int = MOST_AGENTS
    children: int = 50


class Top(Params):
    trees: int = 20


class Sql(OneAgent):
    sql: str
    arguments: list[Any] | None = None
    write: bool = False


class Called(OneAgent):
    method: str
    arguments: list[Any] | None = None


class Letters(MaybeAgent):
    below: bool = False
    replay: str | None = None
    delete: str | None = None


class Spending(MaybeAgent):
    by_class: bool = False
    spenders: int = msgspec.field(default=DEFAULT_LIMIT, name="limit")
    begins_at: float | None = msgspec.field(default=None, name="from")
    ends_at: float | None = msgspec.field(default=None, name="to")
    by: list[Dimension] | None = None

    @property
    def is_by_hour(self) -> bool:
        """Whether the hours are added up, and not what was used in all."""
        return (self.begins_at, self.ends_at, self.by) != (None, None, None)


class Explained(OneAgent):
    turn: str | None = None
    step: int | None = None


class Backup(MaybeAgent, kw_only=True):
    folder: str


class Restore(Backup):
    damaged: str = "refuse"


async def _tree(call: AdminCall, params: Tree) -> Answer:
    found = await call.admin.tree(params.address, agents=params.agents, children=params.children)
    for branch in found["roots"]:
        _show_errors(call, branch)
    return found


def _show_errors(call: AdminCall, branch: dict[str, Any]) -> None:
    branch["last_error"] = call.content.text("error", branch["last_error"])
    for below in branch["below"]:
        _show_errors(call, below)


def _merged_tree(params: Tree, answers: Sequence[Answer]) -> Answer:
    found = joined(params, answers)
    found["roots"] = sorted(found["roots"], key=by_address)[: params.agents]
    found["odd"] = answers[0]["odd"]  # of one folder; each worker has seen all of it
    return found


async def _top(call: AdminCall, params: Top) -> Answer:
    return call.admin.top(trees=params.trees)


async def _state(call: AdminCall, params: OneAgent) -> Answer:
    return {"state": call.content.value("state", await call.admin.state(params.address))}


async def _methods(call: AdminCall, params: OneAgent) -> Response:
    return Response(await call.admin.methods(params.address), media_type="application/json")


async def _sql(call: AdminCall, params: Sql) -> Answer:
    return await call.admin.sql(params.address, params.sql, params.arguments or [], write=params.write)


async def _call(call: AdminCall, params: Called) -> Response:
    answer = call.admin.call(params.address, params.method, params.arguments or [])
    return StreamingResponse(_lines(answer), media_type="application/x-ndjson")


async def _letters(call: AdminCall, params: Letters) -> Answer:
    letters, address = call.admin.dead_letters, str(params.address)
    if params.replay is not None:
        done, later = await letters.replay_due(address, params.replay, below=params.below)
        return {"done": done, "later": [iso_time(at) for at in later]}
    if params.delete is not None:
        return {"done": await letters.delete(address, params.delete, below=params.below)}
    return await letters.list(params.address, below=params.below)


async def _spending(call: AdminCall, params: Spending) -> Answer:
    if params.is_by_hour:
        hours = Hours(params.begins_at, params.ends_at, params.by or ())
        return await spending_by_hour(call.node, call.content, params.address, hours, params.spenders)
    found = await call.admin.spending.list(params.address, by_class=params.by_class, limit=params.spenders)
    unread = [one | {"error": call.content.text("error", one["error"])} for one in found["unread"]]
    return found | {"unread": unread}


def _merged_spending(params: Spending, answers: Sequence[Answer]) -> Answer:
    found = joined(params, answers)
    found["trees"] = most_expensive(found["trees"], params.spenders)
    if params.is_by_hour:
        found["rows"] = added_up(found["rows"])
    return found


async def _decisions(call: AdminCall, params: OneAgent) -> Answer:
    return await call.admin.decisions(params.address)


async def _explain(call: AdminCall, params: Explained) -> Answer:
    return await call.admin.explain(params.address, params.turn, params.step)


async def _release(call: AdminCall, params: OneAgent) -> Answer:
    if (below := call.access.below) is not None and below.parent is not None:
        raise Refused(f"A quarantine is of a whole tree, and the token is limited to {below}.")
    call.admin.release(params.address)
    return {}


async def _backup(call: AdminCall, params: Backup) -> Answer:
    return await call.admin.backup(params.folder, params.address)


async def _verify(call: AdminCall, params: MaybeAgent) -> Answer:
    return await call.admin.verify(params.address)


async def _restore(call: AdminCall, params: Restore) -> Answer:
    return await call.admin.restore(params.folder, params.address, params.damaged)


async def _lines(answer: AsyncIterator[bytes]) -> AsyncIterator[bytes]:
    """Yield results as lines of JSON; the last one says that it is done, or what went wrong.

    The status has been sent by then, and a connection that broke looks like one that ended.
    """
    try:
        async for item in answer:
            yield b'{"result":' + item + b"}\n"
        yield b'{"done":true}\n'
    except SapwoodError as error:
        # What the user's own code raised keeps its name; ours are sentences.
        text = f"{type(error).__name__}: {error}" if isinstance(error, Crashed) else str(error)
        yield json.dumps({"error": text, "code": error.code}).encode() + b"\n"
    except Exception as error:  # noqa: BLE001 - whatever the user's method raised; the operator may know it
        yield json.dumps({"error": f"{type(error).__name__}: {error}"}).encode() + b"\n"


COMMANDS: tuple[Endpoint[Any], ...] = (
    Endpoint("tree", "look", Tree, _tree, merge=_merged_tree),
    Endpoint("top", "look", Top, _top, merge=joined, patience=SHORT_PATIENCE),
    Endpoint("state", "look", OneAgent, _state),
    Endpoint("methods", "look", OneAgent, _methods),
    Endpoint("sql", "sql", Sql, _sql, more=lambda params: "write" if params.write else None),
    Endpoint("call", "call", Called, _call),
    Endpoint(
        "dead-letters",
        "content",
        Letters,
        _letters,
        merge=joined,
        more=lambda params: "act" if params.replay is not None or params.delete is not None else None,
    ),
    Endpoint("spending", "look", Spending, _spending, merge=_merged_spending, patience=LONG_PATIENCE),
    Endpoint("decisions", "content", OneAgent, _decisions),
    Endpoint("explain", "content", Explained, _explain),
    Endpoint("release", "act", OneAgent, _release, is_of_any_node=True),
    Endpoint("backup", "admin", Backup, _backup, is_of_any_node=True),
    Endpoint("verify", "admin", MaybeAgent, _verify, is_of_any_node=True),
    Endpoint("restore", "admin", Restore, _restore, is_of_any_node=True),
)
