"""Clients that write, call, schedule, enqueue and run without pause, and record what was acknowledged.

They reconnect when the server is gone, and never stop by themselves: faults are for the program that runs them.
"""

from __future__ import annotations

import asyncio
import random
import time
import uuid
from collections.abc import Awaitable, Callable, Coroutine, Sequence
from functools import partial
from typing import Any, TypeVar

import httpx2 as httpx
from tests.blackbox.app import Node, Root
from tests.blackbox.events import wait_until
from tests.blackbox.history import History, Place, RegisterCall
from tests.machine import patience

from sapwood.client import RemoteAgent, connect
from sapwood.errors import SapwoodError, TimedOut, Unavailable

R = TypeVar("R")
Body = Callable[[Root], Awaitable[None]]

ROOTS = ("list-0", "list-1", "list-2", "list-3")
WITH_CHILDREN = ROOTS[:2]
BELOW = ("child", "grandchild", "great-grandchild")
DEPTH = 3
ACCOUNTS = tuple(f"account-{number}" for number in range(5))
DEPOSIT = 1000
RUN_ATTEMPTS = 12
RECONNECT_DELAY = 0.1


class NoAnswer(Exception):
    """The server gave no answer, or refused: the call may or may not have taken effect."""


class Workload:
    """Clients of all kinds, at one server or at all nodes of a cluster."""

    def __init__(self, urls: Sequence[str], seed: int, *, pace: float = 0.02, timeout: float | None = None) -> None:
        self.history = History()
        self._urls = urls
        self._chance = random.Random(seed)
        self._pace = pace
        self._timeout = timeout or patience(15.0)
        self._is_stopped = False
        self._tasks: list[asyncio.Task[None]] = []

    def start(self) -> None:
        """Let the clients begin, or begin again."""
        self._is_stopped = False
        self._tasks = [asyncio.create_task(client) for client in self._clients()]

    async def stop(self) -> None:
        """Return when every client has its last answer."""
        self._is_stopped, timeout = True, 4 * self._timeout
        _, late = await asyncio.wait(self._tasks, timeout=timeout)
        for task in late:
            self.history.violations.append(f"a client has no answer after {timeout} s: {task.get_coro()}")
            task.cancel()
        await asyncio.gather(*self._tasks, return_exceptions=True)
        for task in self._tasks:
            if not task.cancelled() and (error := task.exception()) is not None:
                raise error

    async def progress(self, answers: int = 40) -> None:
        """Return when this many more calls were acknowledged: the next fault then hits a server at work."""
        enough = self.history.answered.total() + answers
        await wait_until(lambda: self.history.answered.total() >= enough, f"{answers} calls are acknowledged", 60.0)

    def connect(self, place: Place) -> Any:
        """Connect to an agent, at any of the servers."""
        root, below = place
        url = self._chance.choice(self._urls)
        if not below:
            return connect(url, Root, root, timeout=self._timeout, delay=lambda _: RECONNECT_DELAY)
        sub = tuple((Node, name) for name in below)
        return connect(url, Root, root, sub=sub, timeout=self._timeout, delay=lambda _: RECONNECT_DELAY)

    @staticmethod
    def lists() -> list[Place]:
        """Return the agents whose lists are written to: roots, and children to depth 3."""
        children = ((root, BELOW[:depth]) for root in WITH_CHILDREN for depth in range(1, len(BELOW) + 1))
        return [*((root, ()) for root in ROOTS), *children]

    def _clients(self) -> list[Coroutine[Any, Any, None]]:
        return [
            *(self._append(place) for place in self.lists()),
            self._append_by_http(ROOTS[0]),
            *(self._append_deep(root) for root in ("deep-0", "deep-0", "deep-1")),
            *(self._pay(root) for root in ("bank", "bank")),
            *(self._schedule(place) for place in (("rings-0", ()), ("rings-1", ()), ("rings-1", BELOW[:2]))),
            *(self._enqueue("queues", queue) for queue in ("queue-0", "queue-1")),
            *(self._start_fibers(root) for root in ("fibers-0", "fibers-1")),
            *(self._run(root) for root in ("runs-0", "runs-1")),
            *(self._use_register(f"register-{number}") for number in (0, 0, 0, 1, 1, 1)),
        ]

    async def _ask(self, kind: str, call: Callable[[], Awaitable[R]]) -> R:
        """Return the answer to a call, or raise `NoAnswer` and count the error."""
        try:
            answer = await call()
        except (SapwoodError, OSError, httpx.HTTPError) as error:
            expected = isinstance(error, Unavailable | TimedOut | OSError | httpx.HTTPError)
            text = f"{kind}: {type(error).__name__}" if expected else f"{kind}: {type(error).__name__}: {error}"
            self.history.errors[text[:200]] += 1
            raise NoAnswer from error
        self.history.answered[kind] += 1
        return answer

    async def _repeat(self, place: Place, body: Body) -> None:
        """Call `body` with a stub of the agent until the workload stops, over connections that change."""
        while not self._is_stopped:
            try:
                async with self.connect(place) as agent:
                    await self._use(agent, body)
            except NoAnswer:
                pass
            except (SapwoodError, OSError) as error:
                self.history.errors[f"connect: {type(error).__name__}"] += 1
                await asyncio.sleep(RECONNECT_DELAY)

    async def _use(self, agent: RemoteAgent[Root], body: Body) -> None:
        for _ in range(self._chance.randint(20, 200)):
            if self._is_stopped:
                return
            try:
                await body(agent.stub)
            except NoAnswer:
                if len(self._urls) > 1:
                    raise  # another node may answer
            await asyncio.sleep(self._pace * self._chance.random())

    def _append(self, place: Place) -> Coroutine[Any, Any, None]:
        appends, members = self.history.appends[place], self.history.members[place]

        async def body(agent: Root) -> None:
            item, member = uuid.uuid4().hex, uuid.uuid4().hex
            appends.sent[item] = None
            appends.answered[item] = await self._ask("append", lambda: agent.append(item))
            members.sent[member] = None
            members.answered[member] = await self._ask("member", lambda: agent.add_member(member))

        return self._repeat(place, body)

    async def _append_by_http(self, root: str) -> None:
        appends = self.history.appends[root, ()]
        while not self._is_stopped:
            url = f"{self._chance.choice(self._urls)}/agents/root/{root}"
            async with httpx.AsyncClient(timeout=self._timeout) as client:
                for _ in range(50):
                    if self._is_stopped:
                        return
                    item = uuid.uuid4().hex
                    appends.sent[item] = None
                    try:
                        appends.answered[item] = await self._ask("HTTP", partial(_post, client, url, item))
                    except NoAnswer:
                        await asyncio.sleep(RECONNECT_DELAY)
                    await asyncio.sleep(self._pace * self._chance.random())

    def _append_deep(self, root: str) -> Coroutine[Any, Any, None]:
        calls = self.history.deep_appends[root]

        async def body(agent: Root) -> None:
            item = uuid.uuid4().hex
            calls.sent[item] = None
            calls.answered[item] = await self._ask("deep append", lambda: agent.append_deep(item, DEPTH))

        return self._repeat((root, ()), body)

    def _pay(self, root: str) -> Coroutine[Any, Any, None]:
        payments = self.history.payments[root]

        async def body(agent: Root) -> None:
            await self._ask("open accounts", lambda: agent.open_accounts(list(ACCOUNTS), DEPOSIT))
            payer, payee = self._chance.sample(ACCOUNTS, 2)
            await self._ask("transfer", lambda: agent.transfer(payer, payee, self._chance.randint(1, 50)))
            id, amount = uuid.uuid4().hex, self._chance.randint(1, 2)
            payments.sent[id] = amount
            is_paid = await self._ask("pay", lambda: agent.pay_child(payer, amount))
            payments.answered[id] = amount if is_paid else 0

        return self._repeat((root, ()), body)

    def _schedule(self, place: Place) -> Coroutine[Any, Any, None]:
        rings = self.history.rings[place]

        async def body(agent: Root) -> None:
            id, seconds, outside = uuid.uuid4().hex, 2 * self._chance.random(), self._chance.random() < 0.5
            rings.sent[id] = outside
            rings.answered[id] = await self._ask("ring", lambda: agent.ring_later(id, seconds, outside))

        return self._repeat(place, body)

    def _enqueue(self, root: str, queue: str) -> Coroutine[Any, Any, None]:
        numbers = self.history.numbers[root, queue]

        async def body(agent: Root) -> None:
            number = len(numbers.sent) + 1
            numbers.sent[number] = None
            numbers.answered[number] = await self._ask("enqueue", lambda: agent.enqueue_number(queue, number))

        return self._repeat((root, ()), body)

    def _start_fibers(self, root: str) -> Coroutine[Any, Any, None]:
        fibers = self.history.fibers[root]

        async def body(agent: Root) -> None:
            key, steps = uuid.uuid4().hex[:12], self._chance.randint(1, 5)
            fibers.sent[key] = steps
            fibers.answered[key] = await self._ask("fiber", lambda: agent.begin_fiber(key, steps))
            await asyncio.sleep(self._pace)

        return self._repeat((root, ()), body)

    def _run(self, root: str) -> Coroutine[Any, Any, None]:
        runs = self.history.runs[root]

        async def body(agent: Root) -> None:
            id, has_timed_out = f"run-{uuid.uuid4().hex[:12]}", False
            runs.sent[id] = None
            for _ in range(RUN_ATTEMPTS):  # with the same id, until it has ended
                try:
                    status, output, reason = await self._ask("run", lambda: agent.do_run(id))
                except NoAnswer as error:
                    has_timed_out |= isinstance(error.__cause__, TimedOut)
                    if self._is_stopped:
                        break
                    await asyncio.sleep(RECONNECT_DELAY)
                    continue
                if status == "completed":
                    runs.answered[id] = output
                elif status != "cancelled" or not has_timed_out:  # a caller that gives up cancels its run
                    self.history.violations.append(f"run {id} of {root} ended as {status}: {reason}")
                break
            if runs.answered and self._chance.random() < 0.3:
                await self._run_again(root, agent, self._chance.choice(list(runs.answered)))

        return self._repeat((root, ()), body)

    async def _run_again(self, root: str, agent: Root, id: str) -> None:
        status, output, _ = await self._ask("repeated run", lambda: agent.do_run(id))
        if (status, output) != ("completed", self.history.runs[root].answered[id]):
            self.history.violations.append(f"run {id} of {root} had an output, and is now {status} with another")

    def _use_register(self, root: str) -> Coroutine[Any, Any, None]:
        async def body(agent: Root) -> None:
            is_write, value, began = self._chance.random() < 0.45, uuid.uuid4().hex, time.monotonic()
            is_answered = False
            try:
                if is_write:
                    await self._ask("put", lambda: agent.put(value))
                else:
                    value = await self._ask("get", agent.get)
                is_answered = True
            finally:
                if is_write or is_answered:
                    call = RegisterCall(root, is_write, value, began, time.monotonic(), is_answered)
                    self.history.registers.append(call)

        return self._repeat((root, ()), body)


async def _post(client: httpx.AsyncClient, url: str, item: str) -> int:
    answer = await client.post(url, json={"id": item})
    if answer.status_code == 503:
        raise Unavailable(answer.text)
    if answer.status_code != 200:
        raise SapwoodError(f"HTTP {answer.status_code} {answer.text}")
    return answer.json()["n"]
