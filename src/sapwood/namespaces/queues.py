"""`self.queues`: the calls that an agent has queued."""

from __future__ import annotations

from collections.abc import Callable
from typing import ParamSpec

from sapwood.capabilities.queue import Queue, QueuedCall
from sapwood.errors import UsageError
from sapwood.kernel.actors.actor import Actor
from sapwood.when import DEFAULT_RETRY, Retry, is_a

P = ParamSpec("P")


class AgentQueues:
    """The queues of this agent, by name. A queue needs no setup: adding a call to it is enough.

    The calls of a queue run one after the other. Queues do not wait for each other.
    """

    def __init__(self, actor: Actor) -> None:
        self._queue = actor.of(Queue)

    def __getitem__(self, name: str) -> AgentQueue:
        """Return the queue of this name."""
        if not is_a(name, str):
            raise UsageError(f"The name of a queue must be a string, got {name!r}.")
        return AgentQueue(self._queue, name)

    @property
    def default(self) -> AgentQueue:
        """The queue that `self.enqueue(…)` adds to."""
        return AgentQueue(self._queue, "")

    def remove(self, id: str) -> bool:
        """Remove a queued call from its queue. Returns `False` if it is not queued."""
        return self._queue.remove(id)

    def list(self, *, limit: int = 1000) -> list[QueuedCall]:
        """Return the queued calls of all queues, in the order in which they were added."""
        return self._queue.list(None, limit)


class AgentQueue:
    """One queue of an agent: its calls run one after the other."""

    def __init__(self, queue: Queue, name: str, retry: Retry = DEFAULT_RETRY) -> None:
        self._queue = queue
        self._retry = retry
        self.name = name
        """The name of the queue; empty for the default queue."""

    def with_retry(self, retry: Retry) -> AgentQueue:
        """Return the same queue. Calls that are added through it are retried as `retry` says if they fail."""
        if not is_a(retry, Retry):
            raise UsageError(f"with_retry() takes a Retry, got {retry!r}.")
        return AgentQueue(self._queue, self.name, retry)

    def add(self, method: Callable[P, object], /, *args: P.args, **kwargs: P.kwargs) -> QueuedCall:
        """Add a call of a method of this agent. It runs once the calls before it in this queue are done.

        The call is stored with everything else that is written before the next await.
        """
        return self._queue.add(self.name, self._retry, method, args, kwargs)

    def remove(self, id: str) -> bool:
        """Remove a queued call. Returns `False` if it is not in this queue."""
        return self._queue.remove(id, self.name)

    def list(self, *, limit: int = 1000) -> list[QueuedCall]:
        """Return the queued calls in the order in which they were added."""
        return self._queue.list(self.name, limit)
