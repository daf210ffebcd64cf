"""The connection from a command to the agents: the server of a data folder over HTTP, or the folder if none runs."""

from __future__ import annotations

import asyncio
import dataclasses
import functools
import http.client
import json
from collections.abc import Callable, Coroutine, Iterator
from pathlib import Path
from typing import Any, TypeVar
from urllib.parse import urlsplit

from sapwood.admin.access import FULL
from sapwood.admin.admin import Admin
from sapwood.admin.door import PREFIX
from sapwood.admin.endpoint import MAX_LIMIT, AdminCall
from sapwood.admin.endpoints import ENDPOINTS
from sapwood.app import App
from sapwood.cli.operator_file import FILE
from sapwood.errors import FolderInUse, ForbiddenSql, Refused, SapwoodError, Unavailable, UsageError
from sapwood.kernel.history.segments import HISTORY
from sapwood.settings import Limits, Settings

T = TypeVar("T")

TIMEOUT = 600.0
SOON = 5.0
LONG = ("backup", "restore", "verify", "diff", "fork", "rewind", "move", "export", "import", "erase")
"""Requests without a timeout: they take as long as there is data."""
CREATING = ("import",)
"""Requests that make trees, also in a folder that no server has used."""
OF_THE_PAST = ("moments", "diff", "fork", "rewind", "export")
"""Requests that may read the history of a tree."""
FOR_GOOD = Settings(history=1e10, limits=Limits(history_bytes=1 << 60))
"""A command does not know for how long the app keeps the history. It continues the history, and removes nothing."""


def ask(data: str, what: str, **asked: Any) -> dict[str, Any]:
    """Send a request to the server of a data folder. Raises `Unavailable` if no server runs."""
    return json.loads(_request(data, what, asked, None if what in LONG else TIMEOUT).read())


def ask_soon(data: str, what: str, **asked: Any) -> dict[str, Any]:
    """Like `ask`, with a short timeout, for requests that every server answers at once."""
    try:
        return json.loads(_request(data, what, asked, SOON).read())
    except TimeoutError:
        raise _silent(data, SOON) from None


def ask_lines(data: str, what: str, **asked: Any) -> Iterator[Any]:
    """Send a request and yield the items of its response."""
    lines = _request(data, what, asked)
    while line := _line(lines):
        answer = json.loads(line)
        if "error" in answer:
            raise Refused(answer["error"])
        if "done" in answer:
            return
        yield answer["result"]
    raise _lost()


def _line(answer: http.client.HTTPResponse) -> bytes:
    try:
        return answer.readline()
    except (OSError, http.client.HTTPException):
        return b""  # it broke off


def ask_or_open(
    data: str,
    what: str,
    here: Callable[[Admin], Coroutine[Any, Any, dict[str, Any]]],
    erasure_key: str = "",
    /,
    **asked: Any,
) -> dict[str, Any]:
    """Send a request to the server of a data folder, or open the folder, with this key, if no server runs."""
    try:
        return ask(data, what, **asked)
    except Unavailable:
        if what not in CREATING and not (Path(data) / "trees").is_dir():
            raise
    return _alone(data, here, erasure_key, has_past=what in OF_THE_PAST and (Path(data) / HISTORY).is_dir())


def answer_of(data: str, what: str, **asked: Any) -> dict[str, Any]:
    """Return what an endpoint answers: of the server of a data folder, or on the folder if no server runs."""
    return ask_or_open(data, what, functools.partial(answer_here, what, asked), **asked)


def rows(data: str, what: str, most: int, **asked: Any) -> list[dict[str, Any]]:
    """Return the rows of all pages of an endpoint, and at most a few more than so many."""
    found: list[dict[str, Any]] = []
    after: str | None = None
    while not found or (after is not None and len(found) <= most):
        params = asked | {"after": after, "limit": MAX_LIMIT}
        page = answer_of(data, what, **params)
        found += page["rows"]
        if (after := page["next"]) is None:
            break
    return found


async def answer_here(what: str, params: dict[str, Any], operator: Admin) -> dict[str, Any]:
    """Return what an endpoint answers in a folder that was opened."""
    endpoint = ENDPOINTS[what]
    assert endpoint.answer is not None
    return await endpoint.answer(AdminCall(operator.node, operator, FULL), endpoint.read(params, FULL))


def _alone(data: str, here: Callable[[Admin], Coroutine[Any, Any, T]], erasure_key: str = "", *, has_past: bool) -> T:
    settings = dataclasses.replace(FOR_GOOD if has_past else Settings(), data=data, erasure_key=erasure_key)

    async def work() -> T:
        async with App(agents=[], settings=settings) as app:
            app.node.alarms.stop()  # without the classes no agent can be woken
            return await here(Admin(app.node))

    try:
        return asyncio.run(work())
    except FolderInUse as error:
        raise UsageError(
            f"{error} The process was not started with `sapwood serve` or `sapwood dev`, so commands cannot reach it."
        ) from None


def _request(data: str, what: str, asked: dict[str, Any], patience: float | None = TIMEOUT) -> http.client.HTTPResponse:
    file = Path(data) / FILE
    try:
        found = json.loads(file.read_text())
        url, token, pid = urlsplit(str(found["url"])), found["token"], found.get("pid")
    except FileNotFoundError:
        problem = "No server runs on the data folder {!r}." if Path(data).is_dir() else "There is no data folder {!r}."
        raise Unavailable(
            f"{problem.format(data)} Start a server with `sapwood serve`, or pass another folder with --data."
        ) from None
    except PermissionError:
        raise UsageError(
            f"{str(file)!r} is readable only by the user that runs the server. Run this command as that user."
        ) from None
    except (ValueError, KeyError):
        raise UsageError(f"{str(file)!r} is damaged. Restart the server to write it again.") from None
    connection = http.client.HTTPConnection(url.hostname or "", url.port, timeout=patience)
    try:
        # Closed with its answer: who asks once in a while keeps nothing open.
        headers = {"Authorization": f"Bearer {token}", "Content-Type": "application/json", "Connection": "close"}
        connection.request("POST", PREFIX + what, json.dumps(asked), headers)
        answer = connection.getresponse()
    except TimeoutError:
        raise _silent(data, patience or TIMEOUT) from None
    except ConnectionResetError:
        raise _lost() from None
    except OSError:
        raise Unavailable(
            f"The server of {data!r} does not answer at {found['url']}. Process {pid} was killed, or cannot be "
            "reached from here."
        ) from None
    if answer.status != http.client.OK:
        raise _refusal(answer)
    return answer


def _lost() -> Unavailable:
    return Unavailable(
        "The connection was lost before the response: the agent's process or the server exited. The outcome of "
        "the request is unknown."
    )


def _silent(data: str, patience: float) -> Unavailable:
    return Unavailable(
        f"The server of {data!r} did not answer within {patience:.0f} seconds. An agent may be blocking its event "
        "loop; the log names it."
    )


def _refusal(answer: http.client.HTTPResponse) -> SapwoodError:
    body = answer.read()
    if answer.status == http.client.SERVICE_UNAVAILABLE and not body.startswith(b"{"):
        return Refused(body.decode())  # of the process that holds the connection, about the agent's
    try:
        said = json.loads(body)
        kind = ForbiddenSql if said.get("code") == ForbiddenSql.code else Refused
        return kind(str(said["error"]))
    except (ValueError, KeyError):
        return Refused(f"The server answered {answer.status} {answer.reason}.")
