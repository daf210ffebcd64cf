"""Calls a tool of a server once: where a crash cut it off, it continues as far as the protocol allows.

What is known of a call is stored before the next request: that it was sent, the id of its task, or what the server
wants to know. A call that was sent and not answered is repeated only if the server says that this does no harm.
"""

from __future__ import annotations

import asyncio
from asyncio import CancelledError
from collections.abc import Callable
from contextlib import suppress
from contextvars import ContextVar
from typing import Any, TypeAlias, cast

import msgspec

from sapwood.capabilities.mcp_servers import McpServers, ServerRow, StoredTool
from sapwood.capabilities.queue import Queue
from sapwood.capabilities.steps import StoredProgress
from sapwood.errors import InvalidArguments, NotFound, OverLimit, Refused, Unavailable, UsageError
from sapwood.kernel.actors.actor import Actor
from sapwood.kernel.marshal.json_schemas import check_linear, check_schema
from sapwood.mcp_client import headers
from sapwood.mcp_client.connections import McpConnections
from sapwood.mcp_client.http import Asked
from sapwood.mcp_client.outcomes import (
    InputRequired,
    NotSent,
    Outcome,
    RemoteTask,
    Result,
    RpcFailed,
    SignInNeeded,
)
from sapwood.mcp_client.text import cleaned, seconds_of
from sapwood.roles import ANY_CLIENT
from sapwood.runs.questions.asker import Asker

INTERRUPTED = (
    "The call was interrupted: the process ended before the MCP server had answered. It may or may not have had an "
    "effect. Tell the user, or check before you call it again."
)
LEAST_POLL, POLL, MOST_POLL = 0.5, 2.0, 60.0
"""Seconds between two looks at a task: at least, if the server does not say, and at most."""
PATIENCE = 3600.0
"""Seconds for which a task's server may be unavailable until the task is given up."""
MOST_ROUNDS = 100
"""How often a server may ask, or ask to be asked again, in one call."""
MOST_QUESTIONS = 20
LONGEST_PROMPT, LONGEST_SCHEMA, LONGEST_KEY = 4096, 64 * 1024, 256
"""Of a question of a server: characters of its text, bytes of the schema of its answer, and characters of its key."""
LONGEST_TASK = 1024
"""Characters of the id of a task: each look at it sends the id as a header."""
when_sent_again: ContextVar[Callable[[], None] | None] = ContextVar("sapwood_when_sent_again", default=None)
"""Called before a request is sent again whose answer a crash has cut off."""
CANCEL_TASK = "_sapwood_cancel_mcp_task"
QUEUE = "sapwood mcp"


class Sent(msgspec.Struct, frozen=True, tag="sent"):
    """A request is on its way. It may be repeated if it only asks again."""

    asks_again: bool = False
    state: str | None = None
    round: int = 0
    answers: dict[str, Any] = {}
    """What a person has answered: it is sent again too, so that the server does not ask again."""


class Done(msgspec.Struct, frozen=True, tag="done"):
    """The server has answered; a fiber that is executed again gets the same answer."""

    body: dict[str, Any]


Progress: TypeAlias = Sent | RemoteTask | InputRequired | Done
_progress = msgspec.json.Decoder(Progress)


class CancelledTask(msgspec.Struct):
    """A task that is no longer wanted."""

    server: str
    task: str


class ToolCalls:
    """The calls of one agent to the tools of its servers, and to those that agents above it share."""

    def __init__(self, actor: Actor) -> None:
        self._actor = actor

    def found(self, server: str, tool: str) -> tuple[Actor, ServerRow, StoredTool]:
        """Return a tool, with its server and the agent that holds the connection."""
        usable = self._actor.of(McpServers).usable()
        holder, row = next(((agent, row) for agent, row in usable if row.name == server), (None, None))
        if holder is None or row is None:
            names = ", ".join(repr(row.name) for _, row in usable) or "none"
            raise NotFound(f"There is no MCP server {server!r}. This agent uses {names}.")
        known = row.tool(tool)
        if known is None:
            if row.status != "ready":
                raise Unavailable(f"The MCP server {server!r} is {row.status}: {row.error or 'it has no tools yet'}")
            raise NotFound(f"The MCP server {server!r} has no tool {tool!r}.")
        return holder, row, known

    async def call(
        self, server: str, tool: str, arguments: dict[str, Any], progress: StoredProgress | None
    ) -> dict[str, Any]:
        """Return the result of a call. `progress` is where it is remembered; without one, it ends with the process."""
        holder, row, known = self.found(server, tool)
        one = OneCall(self._actor, holder, row, known, arguments, progress)
        return await one.result()

    async def cancel_task(self, cancelled: CancelledTask) -> None:
        """Tell a server that a task is no longer wanted. A server that was removed is left alone."""
        holder = next(
            (agent for agent, row in self._actor.of(McpServers).usable() if row.name == cancelled.server), None
        )
        if holder is not None:
            with suppress(Refused):
                await through(self._actor, holder, cancelled.server, "tasks/cancel", {"taskId": cancelled.task})


async def through(
    actor: Actor,
    holder: Actor,
    server: str,
    method: str,
    params: dict[str, Any],
    headers: dict[str, str] | None = None,
    asked: Asked | None = None,
) -> dict[str, Any]:
    """Send a request as the agent that holds the connection: the secrets of a server do not leave that agent."""
    connections = holder.of(McpConnections)
    if holder is actor:
        body = await connections.request(server, method, params, headers, asked)
    else:
        await actor.leave()
        call, reply = holder.handle("mcp", connections.request, server, method, params, headers)
        try:
            body = await reply
        except CancelledError:
            holder.cancel(call)
            raise
    actor.check_live()
    return body


class OneCall:
    """One call of a tool."""

    def __init__(
        self,
        actor: Actor,
        holder: Actor,
        row: ServerRow,
        tool: StoredTool,
        arguments: dict[str, Any],
        progress: StoredProgress | None,
    ) -> None:
        self._actor, self._holder, self._row, self._tool = actor, holder, row, tool
        self._arguments = arguments
        self._stored = progress
        self._answers: dict[str, Any] = {}
        """What was answered to the server's questions, by their keys."""
        self._given: dict[str, Any] = {}
        """Those answers, and the ones that were not sent yet."""
        self._rounds = 0
        """How often answers were sent to a task."""
        self._seen = 0.0
        """When the server of a task was available last."""
        self._asked = 0

    async def result(self) -> dict[str, Any]:
        """Drive the call to its end, from where it was."""
        known = self._read()
        if isinstance(known, Done):
            return known.body
        if isinstance(known, Sent):
            if not (known.asks_again or self._tool.repeats or self._tool.reads_only):
                raise Refused(INTERRUPTED)
            if (sends_again := when_sent_again.get()) is not None:
                sends_again()
        body = await self._driven(known or Sent())
        self._write(Done(body))
        return body

    async def _driven(self, outcome: Outcome | Sent) -> dict[str, Any]:
        for _ in range(MOST_ROUNDS):
            if isinstance(outcome, Result):
                return outcome.body
            if isinstance(outcome, RemoteTask):
                return await self._followed(outcome)
            if isinstance(outcome, InputRequired) and outcome.requests:
                self._write(outcome)
                answers = await self._answered(outcome.requests, f"round {outcome.round}")
                outcome = await self._sent(Sent(state=outcome.state, round=outcome.round + 1, answers=answers))
            elif isinstance(outcome, InputRequired):
                outcome = await self._sent(Sent(asks_again=True, state=outcome.state, round=outcome.round))
            else:
                outcome = await self._sent(outcome)
        raise Refused(f"The MCP server {self._row.name!r} asked more than {MOST_ROUNDS} times.")

    async def _sent(self, sent: Sent) -> Outcome:
        before = None if self._stored is None else self._stored.read()
        self._write(sent)
        params: dict[str, Any] = {"name": self._tool.name, "arguments": self._arguments}
        if sent.state is not None:
            params["requestState"] = sent.state
        if sent.answers:
            params["inputResponses"] = sent.answers
        more = headers.parameters(self._tool.headers, self._arguments)
        try:
            body = await self._request("tools/call", params, more)
        except (NotSent, SignInNeeded):
            if self._stored is not None:
                self._stored.put_back(before)  # the work that makes this call may be repeated, and then sends it
            raise
        kind = body.get("resultType")
        if kind == "task":
            return RemoteTask(self._task_of(body), _interval(body))
        if kind == "input_required":
            state = body.get("requestState")
            return InputRequired(_requests(body), state if isinstance(state, str) else None, sent.round)
        return Result(body)

    def _task_of(self, body: dict[str, Any]) -> str:
        """Return the id of a task that a call has become."""
        id = body.get("taskId")
        if not isinstance(id, str) or not 0 < len(id) <= LONGEST_TASK:
            raise Refused(
                f"The MCP server {self._row.name!r} sent a task without an id of 1 to {LONGEST_TASK} characters."
            )
        return id

    async def _request(self, method: str, params: dict[str, Any], more: dict[str, str] | None = None) -> dict[str, Any]:
        asked = self._ask_in_stream if self._can_ask and self._holder is self._actor else None
        return await through(self._actor, self._holder, self._row.name, method, params, more, asked)

    @property
    def _can_ask(self) -> bool:
        return self._stored is not None and self._stored.work.fiber is not None

    async def _followed(self, task: RemoteTask) -> dict[str, Any]:
        """Return the result of a task, once it is over."""
        self._write(task)
        try:
            return await self._polled(task)
        except CancelledError:
            if self._actor.dropped is None:
                self._actor.of(Queue).call_back(QUEUE, CANCEL_TASK, "task", CancelledTask(self._row.name, task.id))
            raise

    async def _polled(self, task: RemoteTask) -> dict[str, Any]:
        loop = asyncio.get_running_loop()
        self._seen, interval = loop.time(), task.interval
        while True:
            try:
                state = await self._request("tasks/get", {"taskId": task.id})
                self._seen, status = loop.time(), state.get("status")
                is_answered = status == "input_required" and await self._answer_task(task, _requests(state))
            except Unavailable:
                self._actor.check_live()
                if loop.time() - self._seen > PATIENCE:
                    raise
                interval = min(interval * 2, MOST_POLL)
            except RpcFailed as error:
                raise Refused(f"The MCP server {self._row.name!r} has lost the task: {error}") from None
            else:
                interval = _interval(state, task.interval)
                if status == "completed":
                    return _object(state.get("result"))
                if status in ("failed", "cancelled"):
                    why = cleaned(_object(state.get("error")).get("message") or state.get("statusMessage"), 1000)
                    raise Refused(f"The task at the MCP server {self._row.name!r} was {status}. {why}".strip())
                if is_answered:
                    continue
            await asyncio.sleep(interval)

    async def _answer_task(self, task: RemoteTask, requests: dict[str, dict[str, Any]]) -> bool:
        """Send the answers to what a task wants to know. Returns `False` if it has all of them."""
        if not (open := self._unanswered(requests)):
            return False
        if self._rounds == MOST_ROUNDS:
            raise Refused(f"The MCP server {self._row.name!r} asked more than {MOST_ROUNDS} times.")
        # A person is asked once, also if the server is not available when the answer is there.
        self._given |= await self._answered({key: one for key, one in open.items() if key not in self._given}, task.id)
        self._seen = asyncio.get_running_loop().time()
        answers = {key: self._given[key] for key in open}
        await self._request("tasks/update", {"taskId": task.id, "inputResponses": answers})
        self._answers |= answers
        self._rounds += 1
        return True

    def _unanswered(self, requests: dict[str, dict[str, Any]]) -> dict[str, dict[str, Any]]:
        """Return what a task wants to know and was not told yet: it may ask for a moment longer."""
        return {key: one for key, one in requests.items() if key not in self._answers}

    async def _answered(self, requests: dict[str, dict[str, Any]], place: str) -> dict[str, Any]:
        """Have a person answer what a server wants to know; return the answers by their keys."""
        return {
            key: await self._ask(one.get("method"), _object(one.get("params")), f"{place} {key}")
            for key, one in requests.items()
        }

    async def _ask_in_stream(self, method: str, params: dict[str, Any]) -> dict[str, Any]:
        self._asked += 1
        if self._asked > MOST_QUESTIONS:
            return {"action": "cancel"}
        return await self._ask(method, params, f"stream {self._asked}")

    async def _ask(self, method: object, params: dict[str, Any], key: str) -> dict[str, Any]:
        """Ask a person a question of the server, durably; return the answer as MCP has it."""
        if method != "elicitation/create" or params.get("mode", "form") != "form" or not self._can_ask:
            return {"action": "cancel"}
        schema = _object(params.get("requestedSchema"))
        prompt = f"{self._row.name}: {cleaned(params.get('message'), LONGEST_PROMPT) or 'Please answer.'}"
        if len(msgspec.json.encode(schema)) > LONGEST_SCHEMA:
            return {"action": "cancel"}
        try:
            check_schema(schema)
            check_linear(schema)
        except (UsageError, InvalidArguments):
            return {"action": "cancel"}
        assert self._stored is not None
        roles = self._row.roles()
        approvers = None if roles is None else roles or ANY_CLIENT
        try:
            content = await self._actor.of(Asker).ask(prompt, None, schema, f"{self._stored.name} {key}", approvers)
        except Refused:
            return {"action": "decline"}
        return {"action": "accept", "content": content}

    def _read(self) -> Progress | None:
        text = None if self._stored is None else self._stored.read()
        return None if text is None else _progress.decode(text)

    def _write(self, progress: Progress) -> None:
        if self._stored is None:
            return
        text, most = msgspec.json.encode(progress), self._actor.limits.payload_bytes
        if len(text) > most:
            raise OverLimit(
                f"The result of {self._tool.shown} has {len(text):,} bytes; at most {most:,} are taken "
                "(Limits(payload_bytes=…)).",
                limit="payload_bytes",
            )
        self._stored.write(text)


def _object(value: Any) -> dict[str, Any]:
    return cast("dict[str, Any]", value) if isinstance(value, dict) else {}


def _requests(body: dict[str, Any]) -> dict[str, dict[str, Any]]:
    """Return what a server wants to know, by the keys of the questions."""
    found = {key: _object(one) for key, one in _object(body.get("inputRequests")).items()}
    if len(found) > MOST_QUESTIONS:
        raise Refused(f"The server asks {len(found)} questions at once; at most {MOST_QUESTIONS} are answered.")
    if any(len(key) > LONGEST_KEY for key in found):
        raise Refused(f"The server asks a question with a key with more than {LONGEST_KEY} characters.")
    return found


def _interval(body: dict[str, Any], default: float = POLL) -> float:
    return seconds_of(body.get("pollIntervalMs"), LEAST_POLL, MOST_POLL, default)
