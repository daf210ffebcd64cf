"""The tasks that one user has given by A2A: each is a run of this agent."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncGenerator, AsyncIterator, Sequence
from contextlib import aclosing
from datetime import UTC, datetime, timedelta
from typing import TYPE_CHECKING, Any, ClassVar, Protocol, cast

import msgspec

from sapwood.agent import Agent
from sapwood.decorators import agent
from sapwood.errors import InvalidArguments, SapwoodError
from sapwood.kernel.marshal.agent_class import known
from sapwood.protocols import a2a_wire as wire
from sapwood.protocols.a2a_answers import ANSWERS, MessageAnswers, StoredAnswer
from sapwood.protocols.a2a_push import CONFIG_METHODS, PUSH_CONFIGS, PushConfigs, check_config, deliver
from sapwood.protocols.a2a_shown import SHOWN_QUESTIONS, ShownQuestions
from sapwood.protocols.a2a_stream import KEEP_ALIVE, bell_of, line, lost, or_silence, update
from sapwood.protocols.a2a_tasks import (
    ARTIFACT,
    artifacts_of,
    fits,
    input_of,
    message_of,
    questions_of,
    state_of,
    status_of,
)
from sapwood.protocols.a2a_wire import A2aError
from sapwood.protocols.adapter import Adapters
from sapwood.protocols.exchange import Exchange
from sapwood.randomness import new_id
from sapwood.retention import Retention
from sapwood.runs.default_hooks import DefaultHooks
from sapwood.runs.dispatch.lifecycle import Runs
from sapwood.runs.dispatch.run_request import Detached, RunRequest
from sapwood.runs.events.events import ENDS
from sapwood.runs.execution.run_hooks import class_hooks
from sapwood.runs.http.events_http import OpenStreams
from sapwood.runs.tables.question import Question
from sapwood.runs.tables.runs_table import Run

if TYPE_CHECKING:
    from starlette.requests import Request
    from starlette.responses import Response

EVERYONE = "everyone"
"""The desk of all clients of an app without authentication."""
USER = "user:"
"""The beginning of the name of the desk of a user; the id follows."""
KEPT = timedelta(days=30)
"""How long a task is kept after its end."""
PAGE, LARGEST_PAGE = 50, 100
"""Tasks in one answer of `ListTasks`."""
MOST_MESSAGES = 2**31
"""What a client may ask for at most: SQLite knows no larger numbers than of 64 bits."""
OF_TASK = (
    ("tasks", "id"),
    ("messages", "task"),
    ("answers", "task"),
    ("shown_questions", "task"),
    ("push_configs", "task"),
)
"""The tables of a desk, and the column of each that has the id of a task."""


class Publisher(Protocol):
    """The adapter that publishes agents."""

    published: dict[str, type[Agent[Any]]]
    push_hosts: frozenset[str]
    joins_repeated: bool


class DeskHooks(DefaultHooks):
    """The hooks of a desk: all that it does is done for its user, whose limits hold."""

    def owner(self) -> str | None:
        name = self._actor.address.name
        return name.removeprefix(USER) if name.startswith(USER) else None


class DeskBase(Agent, hooks=frozenset()):
    """An agent with the hooks of a desk."""

    _hooks_class = DeskHooks


@agent(type="SapwoodA2aDesk")
class A2aDesk(DeskBase):
    """Keeps the tasks of one user, or of all clients of an app without authentication."""

    run_retention: ClassVar = Retention(age=KEPT)
    max_concurrent_runs = 1000
    send_identity = False
    migrations: ClassVar = (
        """CREATE TABLE tasks (
            number     INTEGER PRIMARY KEY AUTOINCREMENT,
            id         TEXT NOT NULL UNIQUE,     -- the id of the run
            path       TEXT NOT NULL,            -- of the published class
            context    TEXT NOT NULL,
            message_id TEXT NOT NULL,            -- of the message that began it
            created_at REAL NOT NULL
        ) STRICT""",
        "CREATE INDEX tasks_by_message ON tasks (message_id)",
        """CREATE TABLE messages (
            number INTEGER PRIMARY KEY AUTOINCREMENT,
            task   TEXT NOT NULL,
            id     TEXT NOT NULL,
            body   TEXT NOT NULL,                -- JSON
            UNIQUE (task, id)
        ) STRICT""",
        PUSH_CONFIGS,
        ANSWERS,
        SHOWN_QUESTIONS,
    )

    async def on_request(self, request: Request) -> Response:
        """Answer a JSON-RPC request."""
        from starlette.responses import Response

        body, call = await request.body(), None
        try:
            wire.check_type(request.headers.get("content-type", "application/json"))
            call = wire.read_call(body)
            wire.check_version(request.headers.get(wire.VERSION_HEADER) or request.query_params.get("A2A-Version"))
            told = await self._answer(call, request)
            if isinstance(told, AsyncGenerator):
                return await self._stream(call, cast("AsyncGenerator[dict[str, Any], None]", told))
            content = wire.response(call.id, told)
        except A2aError as error:
            content = wire.failure(wire.id_in(body) if call is None else call.id, error)
        except SapwoodError as error:
            content = wire.failure(None if call is None else call.id, wire.error_of(error))
        return Response(msgspec.json.encode(content), media_type="application/json")

    async def _answer(self, call: wire.Call, request: Request) -> Any:
        """Return the result of a request, or the events of a stream."""
        path, name = request.scope["path"], call.method
        if name in ("SendMessage", "SendStreamingMessage"):
            asked: wire.SendMessage = wire.params_of(call, wire.SendMessage)
            task = await self._receive(path, asked, request)
            if name == "SendStreamingMessage":
                return self._follow(path, task, asked.configuration.history_length)
            if not asked.configuration.return_immediately:
                await self._until_resting(path, task, request)
                if (message := message_of(self._run(path, task), self._context(path, task))) is not None:
                    return {"message": message}
            return {"task": await self._task(path, task, asked.configuration.history_length)}
        if name in ("GetTask", "CancelTask", "SubscribeToTask"):
            return await self._of_task(path, call, wire.params_of(call, wire.OfTask))
        if name == "ListTasks":
            return await self._list(path, wire.params_of(call, wire.ListTasks))
        if name == "CreateTaskPushNotificationConfig":
            config: wire.PushConfig = wire.params_of(call, wire.PushConfig)
            self._run(path, config.task_id)
            await check_config(config, self._publisher.push_hosts)
            return self._add_config(path, config)
        if name in CONFIG_METHODS:
            of_config: wire.OfPushConfig = wire.params_of(call, wire.OfPushConfig)
            self._run(path, of_config.task_id)
            return PushConfigs(self, of_config.task_id).answer(name, of_config.id)
        if name == "GetExtendedAgentCard":
            raise A2aError(wire.NO_EXTENDED_CARD, "This agent has no extended card.")
        raise A2aError(
            wire.NO_METHOD,
            f"There is no method {name[:80]!r} in A2A {wire.VERSION}. Its methods have names such as SendMessage.",
        )

    async def _of_task(self, path: str, call: wire.Call, asked: wire.OfTask) -> Any:
        run = self._run(path, asked.id)
        if call.method == "SubscribeToTask":
            if run.is_over:
                raise A2aError(wire.UNSUPPORTED, "The task is over: get it instead.")
            return self._follow(path, asked.id, None, ends=wire.OVER)
        if call.method == "CancelTask":
            if run.is_over:
                raise A2aError(wire.NOT_CANCELABLE, "The task is over.")
            self.runs.cancel(asked.id)
            await run.result()
        return await self._task(path, asked.id, asked.history_length)

    # Messages

    async def _receive(self, path: str, asked: wire.SendMessage, request: Request) -> str:
        """Take a message of a client: it begins a task, or answers what one asks. Return the id of the task."""
        message, config = asked.message, asked.configuration.task_push_notification_config
        wire.check_message(message)
        wire.check_modes(asked.configuration.accepted_output_modes)
        if config is not None:
            await check_config(config, self._publisher.push_hosts)  # before anything begins
        if message.task_id:
            await self._reply(path, message, request)
            task = message.task_id
        else:
            task = await self._begin(path, message)
        if config is not None:
            config.task_id = task
            self._add_config(path, config)
        return task

    async def _begin(self, path: str, message: wire.A2aMessage) -> str:
        """Begin a task, or find the one that the same message has begun."""
        known_as = self._texts(
            "SELECT id FROM tasks WHERE path = ? AND message_id = ? ORDER BY number DESC LIMIT 1",
            path,
            message.message_id,
        )
        if known_as and (run := self.runs.get(known_as[0])) is not None:
            if run.status not in ("queued", "interrupted"):
                if self._publisher.joins_repeated or not run.is_over:
                    return run.id
            elif self._publisher.joins_repeated or run.status == "queued":
                # Before a crash, the sub-agent may not have taken its input.
                (body,) = self._texts("SELECT body FROM messages WHERE task = ? ORDER BY number LIMIT 1", run.id)
                await self._give(path, run.id, msgspec.json.decode(body, type=wire.A2aMessage))
                return run.id
        id = f"task-{self._new_id()}"
        message.task_id, message.context_id = id, message.context_id or f"context-{self._new_id()}"
        try:
            await self._give(path, id, message)
        except InvalidArguments as error:
            raise A2aError(wire.INVALID_PARAMS, str(error)) from None
        return id

    async def _give(self, path: str, id: str, message: wire.A2aMessage) -> None:
        """Have an agent begin a task. If it has begun it, nothing changes."""
        cls = self._publisher.published[path]
        # A conversation continues in its context. Other classes have a sub-agent for each task.
        child = message.context_id if class_hooks(known(cls)).has_conversation else None
        wish = RunRequest(id, detached=Detached(self.on_task_end, False, None, None), child=child)
        runs, given = self._actor.of(Runs), input_of(message, cls)
        runs.give(cls, given, wish)
        if not self._texts("SELECT id FROM tasks WHERE id = ?", id):  # in the commit of the run
            self.sql(
                "INSERT INTO tasks (id, path, context, message_id, created_at) VALUES (?, ?, ?, ?, ?)",
                id,
                path,
                message.context_id,
                message.message_id,
                self._actor.host.clock.now(),
            )
            self._keep(id, message)
        await runs.begun(id)

    async def _reply(self, path: str, message: wire.A2aMessage, request: Request) -> None:
        """Answer what a task asks."""
        run, context = self._run(path, message.task_id), self._context(path, message.task_id)
        if message.context_id and message.context_id != context:
            raise A2aError(wire.INVALID_PARAMS, "The task belongs to another context.")
        if self._is_kept(run.id, message.message_id):
            return  # the same message again
        answers = MessageAnswers(self, message)
        is_repeated = (given := answers.stored()) is not None
        given = await self._new_answers(run, answers) if given is None else given
        if not given:  # to questions that its client was not shown: the response shows those that are open
            return
        is_taken = await answers.give(given, Exchange(self._actor, request))
        if not (is_taken or is_repeated):  # before a crash, the questions may have taken them
            await answers.refuse(given)
            return
        answers.forget()
        message.context_id = context
        self._keep(run.id, message)

    async def _new_answers(self, run: Run[Any], answers: MessageAnswers) -> list[StoredAnswer]:
        """Return the answers in a message that was not received before; none to questions that were not shown."""
        if run.is_over:
            raise A2aError(wire.UNSUPPORTED, "The task is over. Send the message without taskId to begin another one.")
        questions = await self._questions(run)
        if not questions:
            raise A2aError(wire.UNSUPPORTED, "The task asks nothing now. Send the message again when it does.")
        given = answers.read(questions, ShownQuestions(self, run.id).digests())
        await answers.store(given)
        return given

    def _keep(self, task: str, message: wire.A2aMessage) -> None:
        body = msgspec.json.encode(message).decode()
        self.sql("INSERT OR IGNORE INTO messages (task, id, body) VALUES (?, ?, ?)", task, message.message_id, body)

    def _is_kept(self, task: str, id: str) -> bool:
        return bool(self.sql("SELECT 1 FROM messages WHERE task = ? AND id = ?", task, id))

    # Tasks

    def _run(self, path: str, id: str) -> Run[Any]:
        """Return the run of a task of one class; raise `A2aError` if there is none."""
        self._context(path, id)
        if (run := self.runs.get(id)) is None:
            raise A2aError(wire.NO_TASK, f"There is no task {id[:80]!r}.")
        return run

    def _context(self, path: str, id: str) -> str:
        found = self._texts("SELECT context FROM tasks WHERE path = ? AND id = ?", path, id)
        if not found:
            raise A2aError(wire.NO_TASK, f"There is no task {id[:80]!r}.")
        return found[0]

    async def _questions(self, run: Run[Any]) -> list[Question]:
        """Return what a task asks now."""
        if run.is_over:
            return []
        return questions_of(run, await self.questions.list())

    async def _task(self, path: str, id: str, history: int | None, *, with_artifacts: bool = True) -> dict[str, Any]:
        run, context = self._run(path, id), self._context(path, id)
        task: dict[str, Any] = {"id": id, "contextId": context, "status": await self._status(run, context)}
        if with_artifacts and (artifacts := artifacts_of(run)):
            task["artifacts"] = artifacts
        if history != 0:
            most = -1 if history is None or history < 0 else min(history, MOST_MESSAGES)
            bodies = self._texts("SELECT body FROM messages WHERE task = ? ORDER BY number DESC LIMIT ?", id, most)
            task["history"] = [msgspec.json.decode(body) for body in reversed(bodies)]
        return task

    async def _status(self, run: Run[Any], context: str) -> dict[str, Any]:
        """Return the status of a task, and store which questions it shows."""
        at = run.ended_at or run.started_at or datetime.now(UTC)
        questions = await self._questions(run)
        if questions:
            ShownQuestions(self, run.id).replace(questions)
        return status_of(run, context, questions, at)

    async def _list(self, path: str, asked: wire.ListTasks) -> dict[str, Any]:
        size = PAGE if asked.page_size is None else asked.page_size
        if not 1 <= size <= LARGEST_PAGE:
            raise A2aError(wire.INVALID_PARAMS, f"pageSize must be from 1 to {LARGEST_PAGE}, got {size}.")
        if asked.history_length is not None and asked.history_length < 0:
            raise A2aError(wire.INVALID_PARAMS, "historyLength must not be negative.")
        if asked.status and asked.status not in wire.STATES:
            raise A2aError(wire.INVALID_PARAMS, f"There is no state {asked.status[:80]!r}.")
        try:
            before = int(asked.page_token) if asked.page_token else None
        except ValueError:
            raise A2aError(wire.INVALID_PARAMS, "pageToken must be a nextPageToken of an earlier answer.") from None
        where, values = "path = ?", [path]
        if asked.context_id:
            where, values = "path = ? AND context = ?", [path, asked.context_id]
        fitting: list[int] = []
        questions = await self.questions.list()
        numbers = self._numbers(f"SELECT number FROM tasks WHERE {where} ORDER BY number DESC", *values)  # noqa: S608 - ours
        for at, number in enumerate(numbers):
            if at % 50 == 49:
                await asyncio.sleep(0)  # they may be many, and other agents wait
            (id,) = self._texts("SELECT id FROM tasks WHERE number = ?", number) or ("",)
            if (run := self.runs.get(id)) is not None and fits(run, questions, asked):
                fitting.append(number)
        left = [number for number in fitting if before is None or number < before]
        page, more = left[:size], left[size:]
        tasks: list[dict[str, Any]] = []
        for number in page:
            for id in self._texts("SELECT id FROM tasks WHERE number = ?", number):
                one = await self._task(path, id, asked.history_length or 0, with_artifacts=asked.include_artifacts)
                tasks.append(one)
        return {
            "tasks": tasks,
            "nextPageToken": str(page[-1]) if more else "",
            "pageSize": size,
            "totalSize": len(fitting),
        }

    # What happens

    async def _until_resting(self, path: str, id: str, request: Request) -> None:
        """Return when a task has ended or asks something, or when its client has gone or the server stops."""
        gone = asyncio.ensure_future(lost(request))
        try:
            with bell_of(self._actor, id) as bell:
                gone.add_done_callback(lambda _: bell.end())
                while not bell.is_over:
                    bell.reset()
                    run = self._run(path, id)
                    if state_of(run, await self._questions(run)) in wire.RESTING:
                        return
                    await bell.news()
        finally:
            gone.cancel()
            await asyncio.wait({gone})

    async def _follow(
        self, path: str, id: str, history: int | None, *, ends: Sequence[str] = wire.RESTING
    ) -> AsyncGenerator[dict[str, Any], None]:
        """Yield a task, and then what happens in it, until it has one of these states."""
        task = await self._task(path, id, history)
        yield {"task": task}
        context, state = task["contextId"], task["status"]["state"]
        if state in ends:
            return
        run = self._run(path, id)
        child = await self.sub_agent(self._publisher.published[path], run.agent.name)
        streams = self._actor.host.shared(OpenStreams)
        async with aclosing(or_silence(streams, child.subscribe("tree"), KEEP_ALIVE)) as events:
            async for event in events:
                if event is not None and event.run_id != id and event.kind not in ("waiting", "resumed"):
                    continue  # earlier tasks of the conversation, and what happens below
                if event is not None and event.kind == "chunk":
                    if event.body["type"] == "text-delta":
                        artifact = {"artifactId": ARTIFACT, "parts": [{"text": event.body["delta"]}]}
                        yield update("artifactUpdate", id, context, artifact=artifact, append=True)
                    continue
                if event is not None and event.kind in ENDS:
                    await self._run(path, id).result()
                run = self._run(path, id)
                status = await self._status(run, context)
                await self.flush()  # the questions that it shows
                if status["state"] in ends:
                    for artifact in artifacts_of(run):  # whole: words that a crash had repeated are replaced
                        yield update("artifactUpdate", id, context, artifact=artifact, append=False, lastChunk=True)
                    yield update("statusUpdate", id, context, status=status)
                    return
                if event is None:
                    yield {}
                elif status["state"] != state or event.kind == "progress":
                    state = status["state"]
                    yield update("statusUpdate", id, context, status=status)

    async def _stream(self, call: wire.Call, events: AsyncGenerator[dict[str, Any], None]) -> Response:
        """Answer with server-sent events. What cannot be begun is answered with an error instead."""
        from starlette.responses import StreamingResponse

        first = await anext(events)

        async def lines() -> AsyncIterator[bytes]:
            async with aclosing(events):
                yield line(call, first)
                async for one in events:
                    yield line(call, one)

        headers = {"cache-control": "no-cache", "x-accel-buffering": "no"}
        return StreamingResponse(lines(), media_type="text/event-stream", headers=headers)

    # Push notifications

    def _add_config(self, path: str, config: wire.PushConfig) -> dict[str, Any]:
        is_over, configs = self._run(path, config.task_id).is_over, PushConfigs(self, config.task_id)
        if (known := configs.same_as(config)) is not None:  # of the same request that came before
            config.id = known
            return msgspec.to_builtins(config)
        config.id = config.id or f"push-{self._new_id()}"
        configs.add(config)
        if is_over:
            self.enqueue(self.push, config.task_id, config.id)
        return msgspec.to_builtins(config)

    async def on_task_end(self, run: Run[Any]) -> None:
        """Have those notified who asked for it. It is called once for each end, also after a crash."""
        self._forget_old()
        for config in PushConfigs(self, run.id).ids():
            self.enqueue(self.push, run.id, config)

    async def push(self, task: str, config: str) -> None:
        """Send a task to where a client wants it. If that fails, it is tried again."""
        where = PushConfigs(self, task).get(config)
        paths = self._texts("SELECT path FROM tasks WHERE id = ?", task)
        if where is not None and paths:
            await deliver(where, {"task": await self._task(paths[0], task, 0)}, self._publisher.push_hosts)

    def _forget_old(self) -> None:
        """Forget what belongs to tasks whose runs are not kept any more."""
        before = self._actor.host.clock.now() - KEPT.total_seconds()
        for id in self._texts("SELECT id FROM tasks WHERE created_at < ? ORDER BY number LIMIT 100", before):
            if self.runs.get(id) is None:
                for table, column in OF_TASK:
                    self.sql(f"DELETE FROM {table} WHERE {column} = ?", id)  # noqa: S608 - ours

    # What it stands on

    @property
    def _publisher(self) -> Publisher:
        adapters = self._actor.host.shared(Adapters).adapters
        return cast("Publisher", next(one for one in adapters if A2aDesk in one.agents))

    def _new_id(self) -> str:
        return new_id(self._actor.host.random)

    def _texts(self, query: str, *values: str | float) -> list[str]:
        """Return the texts of the one column of a query."""
        return [str(next(iter(row.values()))) for row in self.sql(query, *values)]

    def _numbers(self, query: str, *values: str) -> list[int]:
        return [int(text) for text in self._texts(query, *values)]
