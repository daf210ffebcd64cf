"""The class users extend. Everything here is a signature, a docstring, and one line that hands on."""

from __future__ import annotations

import inspect
import logging
import sys
import warnings
from collections.abc import AsyncIterable, Callable, Coroutine, Iterable, Sequence
from contextlib import AbstractContextManager
from pathlib import Path
from typing import TYPE_CHECKING, Any, ClassVar, Generic, ParamSpec, cast, overload
from typing import TypeVar as PlainTypeVar

from typing_extensions import TypeVar

from sapwood.address import Address, Step
from sapwood.capabilities.children import Children, SubAgentStatus, Subtree
from sapwood.capabilities.connections import Connection, Connections
from sapwood.capabilities.exposed import MARK
from sapwood.capabilities.family import Family
from sapwood.capabilities.state import State
from sapwood.errors import NotFound, UsageError
from sapwood.kernel.actor import Actor
from sapwood.kernel.classes import AgentClass, check_type_id, known, learn
from sapwood.kernel.context import current
from sapwood.kernel.registry import SubAgent
from sapwood.settings import Limits
from sapwood.storage.rows import Rows

if TYPE_CHECKING:
    from starlette.requests import HTTPConnection, Request
    from starlette.responses import Response

log = logging.getLogger(__name__)

S = TypeVar("S", default=None)
A = PlainTypeVar("A", bound="Agent[Any]")
P = ParamSpec("P")
R = PlainTypeVar("R")
M = PlainTypeVar("M", bound=Callable[..., Coroutine[Any, Any, Any] | AsyncIterable[Any]])

HOOKS = frozenset(
    {"on_start", "upgrade_state", "validate_state", "on_state_changed"}
    | {"on_request", "on_connect", "on_message", "on_close", "on_error"}
    | {"on_before_request", "on_before_connect", "on_before_sub_agent"}
    | {"connection_tags", "is_readonly", "wants_protocol"}
)
"""What a subclass may override of what `Agent` defines."""
SETTINGS = frozenset({"initial_state", "state_version", "migrations", "limits", "deps", "made_by_url", "send_identity"})
"""What a subclass may set."""


class Agent(Generic[S]):
    """A durable agent: subclass it, and give it async methods.

    Every named instance is one addressable actor with a SQLite database of its own. It
    is started when first needed, sleeps when idle, and survives crashes. Everything it
    writes between two awaits lands together, and nothing leaves it before that is kept.

    Write `Agent[State]` to give it a state; set `initial_state`, `state_version`,
    `migrations` and `limits` as class attributes. Do not write an `__init__`: prepare
    what lives in memory in `on_start`.
    """

    initial_state: S = cast(Any, None)
    """The state of an agent that has not set one yet."""
    state_version: ClassVar[int] = 1
    """Raise it when the shape of the state changes, and write `upgrade_state`."""
    migrations: ClassVar[Sequence[str] | Path] = ()
    """SQL scripts, or the `Path` of a folder of them. Each runs once, in order; never edit one that ran."""
    limits: ClassVar[Limits | None] = None
    """What agents of this class may do at most; limits from above hold as well."""
    made_by_url: ClassVar[bool] = False
    """Whether a URL may make a sub-agent of this class that its parent has not made. Roots always may be."""
    send_identity: ClassVar[bool] = True
    """Whether a client is told, when it connects, whom it is connected to."""

    deps: Any
    """What `App(deps=…)` was given. Annotate it in your class to narrow it; it is checked at the start."""

    def __init__(self, actor: Actor | None = None) -> None:
        if actor is None:
            name = type(self).__name__
            raise UsageError(
                f"An agent is not made by calling its class. Ask for it by name: await app.get_agent({name}, …), or "
                f"await self.sub_agent({name}, …) inside another agent."
            )
        self._actor = actor
        self.deps = actor.host.deps

    def __init_subclass__(cls, **kwargs: Any) -> None:
        super().__init_subclass__(**kwargs)
        _check_class(cls)
        names: dict[str, Any] = {}
        if "<locals>" in cls.__qualname__:
            # Annotations of a class defined in a function may name its neighbours there.
            names = sys._getframe(1).f_locals.copy()  # pyright: ignore[reportPrivateUsage]
        learn(cls, AgentClass(cls, base=Agent, shown=frozenset(), names=names))

    async def on_start(self) -> None:
        """Called once in every life of the agent, before anything else is delivered to it. Override it."""

    def upgrade_state(self, old: Any, version: int) -> S:
        """Return the state to use for one that an older `state_version` wrote. Override it."""
        raise UsageError(
            f"The state of {self._actor.address} was written by version {version}, and the class is at version "
            f"{self.state_version}. Write upgrade_state(old, version)."
        )

    def validate_state(self, state: S, source: Connection | None) -> None:
        """Raise to refuse a new state. `source` is the client that wants it, None for the agent itself. Override it."""

    async def on_state_changed(self, state: S, source: Connection | None) -> None:
        """Called after the state was replaced; what it raises undoes nothing. Override it."""

    async def on_request(self, request: Request) -> Response:
        """Answer an HTTP request to this agent. Override it; until then every request is not found."""
        raise NotFound("Not Found", path=self._actor.address.steps)

    async def on_connect(self, connection: Connection) -> None:
        """Called when a client has connected, before its first message. Raise to close. Override it."""

    async def on_message(self, connection: Connection, message: str | bytes) -> None:
        """Called with every message of a client's that is not the framework's. Override it."""

    async def on_close(self, connection: Connection, code: int, reason: str) -> None:
        """Called when a client's socket has closed. Override it."""

    async def on_error(self, error: BaseException, connection: Connection) -> None:
        """Called with what `on_message` raised; until overridden it is logged."""
        log.error("on_message of %s failed", self._actor.address, exc_info=error)

    async def on_before_request(self, request: Request) -> Request | Response | None:
        """Called before `on_request`: let it through (None), answer it, or put another in its place. Override it."""

    async def on_before_connect(self, request: HTTPConnection) -> HTTPConnection | Response | None:
        """Called before a client connects: let it in (None), or refuse it with a response. Override it."""

    async def on_before_sub_agent(self, request: HTTPConnection, child: Step) -> HTTPConnection | Response | None:
        """Called before a client's request or socket goes on to a sub-agent, which is not awake yet.

        Let it through (None), answer it, or put another request in its place. Code that calls
        `sub_agent` does not come by here. Override it.
        """

    def connection_tags(self, connection: Connection) -> Sequence[str]:
        """Return the tags a new connection can be found by, with `connections(tag=…)`. Override it."""
        return ()

    def is_readonly(self, connection: Connection) -> bool:
        """Return whether a new connection may only read the state. Override it."""
        return False

    def wants_protocol(self, connection: Connection) -> bool:
        """Return whether a new connection is told identity and state. Override it for clients that are not ours."""
        return True

    @property
    def name(self) -> str:
        """This agent's own name."""
        return self._actor.address.name

    @property
    def address(self) -> Address:
        """Who this agent is: all steps from its root."""
        return self._actor.address

    @property
    def self_path(self) -> tuple[Step, ...]:
        """The steps from the root to this agent."""
        return self._actor.address.steps

    @property
    def parent_path(self) -> tuple[Step, ...]:
        """The steps from the root to this agent's parent; the parent is the last. Empty for a root."""
        return self._actor.address.steps[:-1]

    def sql(self, query: str, *arguments: Any, **named: Any) -> Rows:
        """Run one statement on this agent's own database, now. The rows come back already read."""
        return self._actor.user_database().run(query, named or arguments)

    def transaction(self) -> AbstractContextManager[None]:
        """Undo what the ``with`` block wrote if it raises. There must be no await in it."""
        return self._actor.user_database().block()

    async def long_sql(self, query: str, *arguments: Any, **named: Any) -> Rows:
        """Run a statement that may take long, off the loop. Calls to this agent wait meanwhile; no other agent does."""
        self._actor.user_database()
        return await self._actor.host.offload.long_sql(self._actor, query, named or arguments)

    @property
    def state(self) -> S:
        """The agent's state, as `set_state` left it. Never change it in place."""
        return self._actor.of(State).get()

    def set_state(self, state: S) -> None:
        """Replace the state: it is stored with what else is written before the next await."""
        self._actor.of(State).set(state)

    def broadcast(self, message: object, *, exclude: Iterable[Connection] = ()) -> None:
        """Send a message to every client of this agent: text and bytes as they are, anything else as JSON."""
        self._actor.of(Connections).broadcast(message, exclude)

    def connections(self, tag: str | None = None) -> list[Connection]:
        """Return this agent's open connections, oldest first; with `tag`, those that have it."""
        return self._actor.of(Connections).all(tag)

    async def durable(self) -> None:
        """Return when everything written so far is kept. For I/O that sapwood cannot see."""
        self._actor.check_use()
        await self._actor.leave()

    async def sub_agent(self, cls: type[A], name: str) -> A:
        """Return the sub-agent of this class and name, started. It is made the first time it is asked for."""
        return cast(A, self._actor.host.stub_of(await self._actor.of(Children).get(cls, name)))

    def abort_sub_agent(self, cls: type[Agent[Any]], name: str, reason: object = None) -> None:
        """Stop a sub-agent and all below it, at once. Its data stays; `sub_agent` starts it again.

        Callers that wait for it, and later ones, get `Aborted(reason)` until then.
        """
        self._actor.of(Children).abort(cls, name, reason)

    async def delete_sub_agent(self, cls: type[Agent[Any]], name: str) -> None:
        """Delete a sub-agent, all below it and all their data, for good. Deleting what is not there does nothing."""
        await self._actor.of(Children).delete(cls, name)

    def has_sub_agent(self, cls: type[Agent[Any]] | str, name: str) -> bool:
        """Return whether this sub-agent was made and not deleted. A text is taken as a type id."""
        return self._actor.of(Children).has(cls, name)

    def list_sub_agents(
        self, cls: type[Agent[Any]] | str | None = None, *, after: int = 0, limit: int = 1000
    ) -> list[SubAgent]:
        """Return sub-agents in the order they were made; pass the last one's `generation` as `after` for more."""
        return self._actor.of(Children).list(cls, after=after, limit=limit)

    def sub_agent_status(self, cls: type[Agent[Any]], name: str) -> SubAgentStatus:
        """Return how a sub-agent is doing, without waking it."""
        return self._actor.of(Children).status(cls, name)

    async def subtree(self) -> Subtree:
        """Add up this agent and everything below it."""
        return await self._actor.of(Children).subtree()

    async def parent_agent(self, cls: type[A]) -> A:
        """Return a stub of this agent's parent, which has to be of this class."""
        return cast(A, await self._actor.of(Family).parent(cls))

    async def ancestor(self, cls: type[A]) -> A:
        """Return a stub of the nearest ancestor of this class."""
        return cast(A, await self._actor.of(Family).ancestor(cls))

    async def root_agent(self, cls: type[A]) -> A:
        """Return a stub of the root of this agent's tree, which has to be of this class."""
        return cast(A, await self._actor.of(Family).root(cls))

    @overload
    async def get_agent(self, cls: type[A], name: str) -> A: ...
    @overload
    async def get_agent(
        self,
        cls: type[Agent[Any]],
        name: str,
        *,
        sub: tuple[*tuple[tuple[type[Agent[Any]], str], ...], tuple[type[A], str]],
    ) -> A: ...
    @overload
    async def get_agent(self, cls: type[Agent[Any]], name: str, *, sub: Sequence[tuple[type[A], str]]) -> A: ...
    async def get_agent(
        self, cls: type[Agent[Any]], name: str, *, sub: Sequence[tuple[type[Agent[Any]], str]] = ()
    ) -> Any:
        """Return a stub of any root, or of a descendant of it that exists.

        Write a `sub` of several steps as a tuple, `sub=((Desk, "sport"), (Reporter, "ann"))`: of
        a list, type checkers do not know which class is the last.
        """
        return await self._actor.of(Family).find(cls, name, sub)

    async def destroy(self) -> None:
        """Delete this agent, all below it and all their data. It is gone once this returns; the call may still end."""
        await self._actor.of(Family).destroy()

    async def in_thread(self, function: Callable[P, R], /, *args: P.args, **kwargs: P.kwargs) -> R:
        """Run blocking I/O in a thread. What goes in and comes out is copied; the agent itself stays out of it."""
        return cast(R, await self._actor.host.offload.in_thread(function, args, kwargs))

    async def in_process(self, function: Callable[P, R], /, *args: P.args, **kwargs: P.kwargs) -> R:
        """Run heavy computing in another process. Cancelling kills it. The function has to be importable."""
        return cast(R, await self._actor.host.offload.in_process(function, args, kwargs))


def _check_class(cls: type) -> None:
    check_type_id(cls.__name__)
    for owner in cls.__mro__[: cls.__mro__.index(Agent)]:
        for name, value in owner.__dict__.items():
            if name == "__init__":
                raise UsageError(
                    f"{cls.__name__} defines __init__. An agent is made by the framework: prepare it in on_start()."
                )
            if name in ("_actor", "name") or (
                hasattr(Agent, name) and not name.startswith("__") and name not in HOOKS | SETTINGS
            ):
                raise UsageError(
                    f"{cls.__name__}.{name} would hide what Agent itself has under that name. Choose another name; "
                    f"only {', '.join(sorted(HOOKS))} are meant to be overridden."
                )
            if inspect.isfunction(value) and not name.startswith("__"):
                _check_method(cls, name, value)
    if isinstance(getattr(cls, "migrations", ()), str):
        raise UsageError(
            f"{cls.__name__}.migrations is a text. Write a tuple of scripts, with a comma after each, or the Path of a "
            "folder of .sql files."
        )
    limits = getattr(cls, "limits", None)
    if limits is not None and not isinstance(limits, Limits):
        raise UsageError(f"{cls.__name__}.limits is a {type(limits).__name__}. Write limits = Limits(…).")


def _check_method(cls: type, name: str, function: Any) -> None:
    if not inspect.signature(function).parameters:
        raise UsageError(f"{cls.__name__}.{name} has no parameters; a method's first one is self.")
    plain = not (inspect.iscoroutinefunction(function) or inspect.isasyncgenfunction(function))
    if name == "on_start" and not inspect.iscoroutinefunction(function):
        raise UsageError(f"{cls.__name__}.on_start has to be `async def`.")
    if plain and name not in HOOKS and not name.startswith("_"):
        warnings.warn(
            f"{cls.__name__}.{name} is a plain method. It has to be awaited through a stub, which type checkers "
            f"cannot see: write `async def`, or call it _{name} if it is only for the agent itself.",
            stacklevel=4,
        )


def agent(*, type: str, aliases: Sequence[str] = ()) -> Callable[[type[A]], type[A]]:
    """Give a class a type id of its own, so that it can be renamed; `aliases` are ids it had before."""
    check_type_id(type)

    def decorate(cls: Any) -> Any:
        kind = known(cls)
        kind.type = type
        kind.aliases = tuple(aliases)
        return cls

    return decorate


def expose(method: M) -> M:
    """Let remote clients call this method; without it only other agents and the app can."""
    setattr(method, MARK, True)
    return method


def current_agent() -> Agent[Any] | None:
    """Return the agent whose code is running now; None outside of any."""
    call = current.get()
    return None if call is None else cast("Agent[Any]", call.actor.agent)


def current_connection() -> Connection | None:
    """Return the connection whose call or message is being handled now; None if no client asked for it."""
    call = current.get()
    return None if call is None else cast("Connection | None", call.client)
