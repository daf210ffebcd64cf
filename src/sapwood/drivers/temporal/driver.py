"""Lets Temporal decide when turns and runs continue: each is a workflow, which asks for its steps.

The agent does the steps, and keeps all that comes of them. This side begins the workflows,
tells those that wait when they need not any more, and answers when a step is asked for.
"""

from __future__ import annotations

import asyncio
import functools
import hashlib
import logging
import random
from asyncio import Future, Task
from collections.abc import Awaitable, Callable, Generator, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import replace
from datetime import datetime, timedelta
from typing import TYPE_CHECKING, Any

from sapwood.address import Address
from sapwood.drivers.temporal.messages import GIVE, NAME, OVER, READY, Driven, refuse_closed
from sapwood.drivers.temporal.step_runner import TemporalPace
from sapwood.drivers.temporal.worker_http import WorkerHttp
from sapwood.errors import Unavailable, UsageError
from sapwood.kernel.node.node import Node
from sapwood.runs.execution.driver import DrivenWork, NodeDriver
from sapwood.web.asgi_types import ASGI

if TYPE_CHECKING:
    from temporalio.client import Client
    from temporalio.runtime import Runtime


log = logging.getLogger(__name__)

DOOR = "/_driver/"
MOST_ID = 900
"""Bytes of the id of a workflow; Temporal allows 1000."""
SHORTEST_WAIT, LONGEST_WAIT = 0.1, 5.0
"""Seconds until Temporal is asked again if it does not answer."""


class TemporalDriver:
    """Has Temporal drive the turns and runs of an app: ``App(driver=TemporalDriver(token=…))``.

    Each turn or run is a workflow that asks for its steps; the agents do them, and keep what comes
    of them. Start workers with `sapwood temporal worker`. `token` is what they come in with: a secret
    that the app and its workers share. `options` are handed to `temporalio.client.Client.connect`: TLS, an
    API key, a data converter that encrypts.
    """

    path = DOOR

    def __init__(
        self,
        target: str = "127.0.0.1:7233",
        *,
        token: str,
        namespace: str = "default",
        queue: str = "sapwood",
        patience: float = 10.0,
        look: float = 900.0,
        options: Mapping[str, Any] | None = None,
    ) -> None:
        try:
            import temporalio.client as _  # noqa: F401 - say now what would fail later
        except ImportError as error:
            raise UsageError(
                "TemporalDriver needs the Temporal client. Install it with: pip install 'sapwood[temporal]'."
            ) from error
        if not token:
            raise UsageError(
                "TemporalDriver(token=…) must not be empty: it is the secret that the app and its workers share. "
                "Pass one."
            )
        self.target = target
        self.namespace = namespace
        self.queue = queue
        self.token = token
        self.patience = patience
        self._look = look
        self._options = dict(options or {})
        self._node: Node | None = None
        self._client: Client | None = None
        self._is_prepared = False
        self._searchable = True
        self._is_silent = False
        """Whether Temporal did not answer when last asked."""
        self.paces: dict[tuple[str, str], TemporalPace] = {}
        """What is done now in this process, by address and id."""
        self._telling: set[Task[bool]] = set()
        """What Temporal has not been told yet."""
        self.changed: set[Future[None]] = set()
        """Those who wait for one of them to begin."""

    async def connect(self, *, lazy: bool = False) -> Client:
        """Return a client of the Temporal server."""
        from temporalio.client import Client

        options: dict[str, Any] = {"runtime": _quiet(), **self._options}
        return await Client.connect(self.target, namespace=self.namespace, lazy=lazy, **options)

    async def start(self, node: Node) -> None:
        """Begin to drive what the agents of this node do."""
        if self._node is not None:
            raise UsageError("This TemporalDriver is already used by another running app. Create one per app.")
        self._client = await self.connect(lazy=True)
        self._node = node
        node.shared(NodeDriver).driver = self
        if node.far is not None:
            WorkerHttp(self).answer_others(node.far.transport)

    async def stop(self) -> None:
        """Stop; the workflows continue when the app is started again."""
        for pace in list(self.paces.values()):
            pace.leave()
        self.paces.clear()
        for telling in self._telling:
            telling.cancel()
        self._node = self._client = None

    @property
    def node(self) -> Node:
        """The node whose agents it drives."""
        if self._node is None:
            raise Unavailable("The app is not running.")
        return self._node

    @property
    def door(self) -> ASGI:
        """What answers workers."""
        return WorkerHttp(self)

    @contextmanager
    def pacing(self, part: DrivenWork) -> Generator[TemporalPace, None, None]:
        """Pace a part in this block."""
        pace = TemporalPace(self, part)
        self.paces[pace.key] = pace
        for waiting in self.changed:
            if not waiting.done():
                waiting.set_result(None)
        self.changed.clear()
        try:
            yield pace
        finally:
            if self.paces.get(pace.key) is pace:
                del self.paces[pace.key]
            pace.leave()

    def driven(self, part: DrivenWork) -> Driven:
        """Return the input of a part's workflow: its identity, and no content of the conversation."""
        return Driven(
            workflow=workflow_id(part.address, part.id),
            address=str(part.address),
            id=part.id,
            patience=self.patience,
            look=self._look,
            seconds=part.seconds,
            searchable=self._searchable,
        )

    async def ready(self, part: DrivenWork) -> None:
        """Have the workflow of a part ask for its next step; begin it if there is none; raise if it was ended."""
        await self._prepare()
        driven = self.driven(part)
        if not part.is_new:
            if await self._signal(driven.workflow, READY):
                return
            if (state := await self.state(part)) != "FAILED":  # of an end that the agent has lost with the power
                refuse_closed(state)
        if part.above is not None and await self._signal(workflow_id(*part.above), GIVE, driven):
            return
        await self._begin(driven)

    async def _begin(self, driven: Driven) -> None:
        from temporalio.common import WorkflowIDConflictPolicy

        from sapwood.drivers.temporal.workflow import search_attributes

        async def start(client: Client) -> None:
            await self._prepare()  # again if it failed: Temporal may have been restarted, and know nothing
            told = replace(driven, searchable=self._searchable)
            await client.start_workflow(
                NAME,
                told,
                id=told.workflow,
                task_queue=self.queue,
                id_conflict_policy=WorkflowIDConflictPolicy.USE_EXISTING,
                start_signal=READY,  # one that waits since an earlier life may have the same id
                execution_timeout=told.timeout,
                task_timeout=timedelta(seconds=self.patience),
                search_attributes=search_attributes(told),
                static_summary=told.address,
            )

        await self._answered(start)

    async def over(self, part: DrivenWork, status: str, reason: str | None = None) -> None:
        """End the workflow of a part that finished without a request for a step.

        If Temporal does not answer for a while it is told later, in the background.
        """
        telling = self.node.loop.create_task(self._signal(workflow_id(part.address, part.id), OVER, status, reason))
        self._telling.add(telling)
        telling.add_done_callback(self._telling.discard)
        await asyncio.wait({telling}, timeout=self.patience)

    async def _signal(self, workflow: str, name: str, *arguments: Any) -> bool:
        """Tell a workflow something; return whether there is one that has not ended."""
        told = await self._answered(
            lambda client: client.get_workflow_handle(workflow).signal(name, args=list(arguments)), or_none=True
        )
        return told is not NOTHING

    async def stop_work(self, part: DrivenWork, state: str) -> None:
        """Have a part be stopped whose workflow was ended in Temporal."""
        await WorkerHttp(self).stop(part.address, part.id, f"workflow-{state.lower()}")

    async def state(self, part: DrivenWork, since: datetime | None = None) -> str | None:
        """Return how the workflow of a part stands, in Temporal's words; None if none was open since then."""
        found: Any = await self._answered(
            lambda client: client.get_workflow_handle(workflow_id(part.address, part.id)).describe(), or_none=True
        )
        if found is NOTHING or (since is not None and found.close_time is not None and found.close_time < since):
            return None
        return found.status.name

    async def _answered(self, ask: Callable[[Client], Awaitable[Any]], *, or_none: bool = False) -> Any:
        """Return what Temporal answers, once it does; `NOTHING` if there is no such workflow."""
        from temporalio.service import RPCError, RPCStatusCode

        for wait in waits():
            if self._client is None:
                raise Unavailable("The app is not running.")
            try:
                answer = await ask(self._client)
            except Exception as error:  # noqa: BLE001 - also a codec of the user's, whose keys may be away
                if isinstance(error, RPCError) and error.status == RPCStatusCode.NOT_FOUND and or_none:
                    return NOTHING
                if not self._is_silent:
                    why = str(error).rstrip(".")
                    log.warning("request to Temporal at %s failed: %s. Turns wait and retry.", self.target, why)
                self._is_silent, self._is_prepared = True, False
            else:
                if self._is_silent:
                    log.warning("Temporal at %s answers again", self.target)
                self._is_silent = False
                return answer
            await asyncio.sleep(wait)
        raise AssertionError

    async def _prepare(self) -> None:
        """Have the namespace know what workflows can be searched by, once."""
        from temporalio.api.enums.v1 import IndexedValueType
        from temporalio.api.operatorservice.v1 import AddSearchAttributesRequest, ListSearchAttributesRequest
        from temporalio.service import RPCError, RPCStatusCode

        from sapwood.drivers.temporal.workflow import PATH, ROOT, TYPE

        if self._is_prepared:
            return
        refused = (RPCStatusCode.PERMISSION_DENIED, RPCStatusCode.UNIMPLEMENTED, RPCStatusCode.INVALID_ARGUMENT)
        keyword = IndexedValueType.INDEXED_VALUE_TYPE_KEYWORD
        wanted = {key.name: keyword for key in (TYPE, PATH, ROOT)}
        request = AddSearchAttributesRequest(search_attributes=wanted, namespace=self.namespace)

        async def are_known(client: Client) -> bool:
            try:
                asked = ListSearchAttributesRequest(namespace=self.namespace)
                found = await client.operator_service.list_search_attributes(asked)
            except RPCError as error:
                if error.status not in refused:
                    raise
                return False
            return all(found.custom_attributes.get(name) == keyword for name in wanted)

        async def add(client: Client) -> None:
            try:
                await client.operator_service.add_search_attributes(request)
            except RPCError as error:
                if error.status in refused:
                    self._searchable = await are_known(client)  # perhaps another process or an operator has added them
                    if not self._searchable:
                        log.warning(
                            "search attributes %s could not be added to the namespace %r (%s): workflows run "
                            "without them. Add them and restart the app.",
                            ", ".join(wanted),
                            self.namespace,
                            error,
                        )
                elif error.status != RPCStatusCode.ALREADY_EXISTS:
                    raise

        await self._answered(add)
        self._is_prepared = True


def waits() -> Iterator[float]:
    """Yield the backoff in seconds between retries of a request to Temporal, without an end."""
    longest = SHORTEST_WAIT
    while True:
        yield random.uniform(longest / 2, longest)
        longest = min(longest * 2, LONGEST_WAIT)


NOTHING: Any = object()
"""What Temporal answers about a workflow that does not exist, or has ended."""


@functools.cache
def _quiet() -> Runtime:
    """Return what Temporal's client runs on; it does not tell of every attempt to reach a server that is away."""
    from temporalio.runtime import LoggingConfig, Runtime, TelemetryConfig, TelemetryFilter

    errors = TelemetryFilter(core_level="ERROR", other_level="ERROR")
    return Runtime(telemetry=TelemetryConfig(logging=LoggingConfig(filter=errors)))


def workflow_id(address: Address, id: str) -> str:
    """Return the id of the workflow of a turn or run, whose own id is unique only in its agent."""
    whole = f"{address} {id}"
    if len(whole.encode()) <= MOST_ID:
        return whole
    return f"{address.root} {hashlib.sha256(whole.encode()).hexdigest()}"[-MOST_ID:]
