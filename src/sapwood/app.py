"""The program around the agents: which roots there are, what they are given, where they live."""

from __future__ import annotations

import asyncio
import logging
import os
from collections import Counter
from collections.abc import AsyncGenerator, Callable, Mapping, Sequence
from contextlib import AbstractAsyncContextManager, AsyncExitStack, asynccontextmanager
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any, Protocol, Self, TypeVar, cast, overload

from sapwood import tracing
from sapwood.address import Address, kebab
from sapwood.admin.destination import HttpDestinations
from sapwood.admin.erasure_hooks import ERASURE_HOOKS
from sapwood.admin.operate import Operate, OperateRule
from sapwood.admin.read_models import READ_MODELS
from sapwood.agent import Agent
from sapwood.app_trees import AppTrees
from sapwood.capabilities.connections import AppSpeeches, Connections
from sapwood.capabilities.due_work import begin_due, when_started
from sapwood.capabilities.file_check import damaged_files, named_files
from sapwood.capabilities.file_copies import TreeFileCopies
from sapwood.capabilities.redaction import Redact, Redaction
from sapwood.capabilities.stored_data_check import unfit
from sapwood.chat.models.genai_metrics import GenAiMetrics
from sapwood.chat.models.named_models import NamedModels, check_names
from sapwood.chat.models.user_ledger import UserLedger
from sapwood.chat.models.user_limits import GetLimits, UserLimits, with_id
from sapwood.errors import UsageError
from sapwood.forks.unfinished_work import ForkedWork
from sapwood.kernel.erasure.erasure import Erasures
from sapwood.kernel.marshal.agent_class import known, with_tool_classes
from sapwood.kernel.marshal.call import current
from sapwood.kernel.metric_families import MetricFamilies
from sapwood.kernel.node.driver_mark import has_noted_driver, note_driver
from sapwood.kernel.node.node import Node
from sapwood.kernel.node.server_move import resume_server_moves
from sapwood.kernel.ports.placement import NotBegun
from sapwood.mcp_client.callback import SignInCallback
from sapwood.protocols.adapter import Adapter, AdapterRequests, Adapters, Place, adapter_of, check_adapters
from sapwood.randomness import new_id
from sapwood.runs.execution.driver import OutsideDriver
from sapwood.runs.tables.decisions import broken_chain
from sapwood.runtimes.local import LocalRuntime, Predecessor, Share
from sapwood.settings import Durability, Settings
from sapwood.web.asgi import serve, serve_lifespan
from sapwood.web.asgi_types import Receive, Scope, Send
from sapwood.web.locate import Locate, Target
from sapwood.web.located_requests import serve_located
from sapwood.web.proxy import answer_carried
from sapwood.web.refusals import with_refusals
from sapwood.wire.routing import path_to, relative

if TYPE_CHECKING:
    from starlette.requests import HTTPConnection, Request
    from starlette.responses import Response

    from sapwood.web.gateway import Gateway

log = logging.getLogger(__name__)

A = TypeVar("A", bound=Agent[Any])
DATABASE_CHECKS = (broken_chain,)
"""What is checked in each database, beside its integrity."""
CONTENT_CHECKS = (*DATABASE_CHECKS, damaged_files)
"""What backups and verifications check in each database and its folder of files."""
Deps = object | Callable[[], AbstractAsyncContextManager[object]]


class Runtime(Protocol):
    """Where the agents of an app run."""

    async def start(self, deps: object) -> Node:
        """Create and start the node."""
        ...

    async def listen(self) -> None:
        """Start to answer other nodes. The node is running."""
        ...

    async def hang_up(self) -> None:
        """Stop answering other nodes. The node has shut down."""
        ...

    def release(self) -> None:
        """Release the data folder."""
        ...


class App(AppTrees):
    """Runs agents. ``async with app:`` starts the app, and shuts it down at the end of the block.

    `agents` lists the root classes. Any other agent class can be a sub-agent without being listed. `deps` is a value,
    or a function that returns an async context manager, which is entered at startup. Agents read it as `self.deps`.

    An app is also an ASGI application. `authenticate` receives every request and socket, and returns the user, or
    `None` to refuse it. `authorize` receives that user, the address of a root, and "request" or "connect". It returns
    whether the user may access that root. Both may be async.

    `redact` receives a text before it is recorded, and returns it without its secrets: a model request
    (`redact("request", text)`) or the arguments of a tool call (`redact("arguments", text)`), which are both JSON, or
    the name of a tool or fiber (`redact("name", text)`).

    `user_limits` receives the id of a user, and returns the `Limits` on the tokens and dollars of everything that is
    done for this user, in all trees, or `None` for no limit. It may be async.

    `operate` receives the name of a token, an endpoint of the admin API, and the address of an agent or `None`. It
    returns whether the request is allowed, in addition to the scopes of the token. It may be async.

    `models` gives names to Pydantic AI models, for `sapwood replay --model` and `sapwood eval --model`. The names of
    Pydantic AI, such as `openai:gpt-5`, need no entry.

    `pages` is a folder of static files, such as a page and its script. They are served at `/`, without authentication,
    under every path that is not an agent's. A relative path is relative to the current directory. For a folder beside
    your program, write `Path(__file__).with_name("page")`. If the app is mounted in another app, serve the files there.

    `protocols` lists protocols of other systems that clients may use, such as AG-UI.

    With a `driver`, such as `sapwood.drivers.temporal.TemporalDriver`, an external system decides when turns and runs
    continue. Most apps do not need one.
    """

    def __init__(
        self,
        *,
        agents: Sequence[type[Agent[Any]]],
        deps: Deps = None,
        authenticate: Callable[[HTTPConnection], Any] | None = None,
        authorize: Callable[[Any, Address, str], Any] | None = None,
        redact: Redact | None = None,
        user_limits: GetLimits | None = None,
        operate: OperateRule | None = None,
        models: Mapping[str, Any] | None = None,
        pages: str | os.PathLike[str] | None = None,
        protocols: Sequence[Adapter] = (),
        settings: Settings | None = None,
        runtime: Runtime | None = None,
        driver: OutsideDriver | None = None,
    ) -> None:
        if isinstance(agents, type):
            raise UsageError(f"App(agents=…) must be a list of agent classes. Write agents=[{agents.__name__}].")
        if settings is not None and not isinstance(cast(object, settings), Settings):
            raise UsageError(f"App(settings=…) must be Settings(…), got a {type(settings).__name__}.")
        if user_limits is not None and authenticate is None:
            raise UsageError("App(user_limits=…) needs authenticate, which returns the users.")
        if pages is not None and not Path(pages).is_dir():
            raise UsageError(f"App(pages=…) must be an existing folder, got {str(pages)!r}.")
        check_adapters(protocols)
        check_names(models or {})
        self.agents = tuple(agents)
        self.protocols = tuple(protocols)
        self.settings = settings or Settings()
        self.deps = deps
        self.authenticate = authenticate
        self.authorize = authorize
        self.redact = redact
        self.user_limits = user_limits
        self.operate = operate
        self.models = dict(models or {})
        self.pages = Path(pages).resolve() if pages is not None else None
        self.driver = driver
        self._given_runtime = runtime
        self._runtime: Runtime = runtime or _runtime(self.settings)
        self._node: Node | None = None
        self._gateway: Gateway | None = None
        self._starting: asyncio.Lock | None = None
        self._is_stopping = False
        self._stack = AsyncExitStack()
        urls: dict[str, type] = {}
        for cls in self.agents:
            type_id = known(cls).type
            other = urls.setdefault(kebab(type_id), cls)
            if other is not cls:
                raise UsageError(
                    f"{other.__name__} and {cls.__name__} have the same URL, /agents/{kebab(type_id)}. "
                    "Give one of them another type id with @agent(type=…)."
                )

    def configure(self, **settings: Any) -> None:
        """Replace individual settings before the app starts. The command line does this with its options."""
        if self._node is not None:
            raise UsageError("The app is already running: change its settings before it starts.")
        if self._given_runtime is not None:
            raise UsageError("The app was given a runtime, which has its own settings. Change them there.")
        self.settings = replace(self.settings, **settings)
        self._runtime = _runtime(self.settings)

    def share(self, share: Share | None, predecessor: Predecessor | None = None) -> None:
        """Run a share of the trees, next to other processes on the same data folder. `--workers` uses this.

        With a predecessor, the app starts once that server has released the share, or the folder. `upgrade` uses this.
        """
        if self._given_runtime is not None:
            raise UsageError("The app was given a runtime, so its trees cannot be shared between workers.")
        self._runtime = LocalRuntime(self.settings, share=share, predecessor=predecessor)

    async def __aenter__(self) -> Self:
        if self._node is not None:
            raise UsageError("The app is already running.")
        self._check_pages()
        self._check_agents()
        stack = AsyncExitStack()
        async with stack:
            deps = self.deps
            if callable(deps):
                opened = deps()
                if not isinstance(opened, AbstractAsyncContextManager):
                    raise UsageError(
                        "App(deps=…) must be a value, or a function that returns an async context manager."
                    )
                deps = await stack.enter_async_context(cast("AbstractAsyncContextManager[object]", opened))
            tracing.begin()
            node = await self._runtime.start(deps)
            node.authentication = _name_of(self.authenticate)
            node.content_checks, node.database_checks = CONTENT_CHECKS, DATABASE_CHECKS
            node.file_copies, node.past.named_files = TreeFileCopies(), named_files
            node.read_models, node.destinations = READ_MODELS, HttpDestinations()
            node.stored_data_check = partial(unfit, counts=Counter())
            node.unfinished_work = partial(ForkedWork, has_driver=self._has_driver(node))
            node.shared(GenAiMetrics).register(node.shared(MetricFamilies))
            node.shared(Redaction).function = self.redact
            node.shared(UserLimits).function = self.user_limits
            node.shared(Operate).function = self.operate
            node.shared(NamedModels).models = self.models
            node.shared(Adapters).adapters = self.protocols
            has_paths = any(one.paths for one in self.protocols)
            node.shared(AppSpeeches).speeches = (SignInCallback, *((AdapterRequests,) if has_paths else ()))
            stack.callback(self._runtime.release)
            driving = await stack.enter_async_context(AsyncExitStack())  # until after the node: its agents need it
            stack.push_async_callback(self._runtime.hang_up)
            stack.push_async_callback(node.stop)
            classes = [*self.agents, *(cls for one in self.protocols for cls in one.agents)]
            if self.user_limits is not None:
                classes.append(UserLedger)
            roots = tuple(known(cls) for cls in dict.fromkeys(classes))
            for root in roots:
                node.check_deps(root)
            if self.driver is not None:
                await self.driver.start(node)
                driving.push_async_callback(self.driver.stop)
            erasures = Erasures(node, ERASURE_HOOKS)
            stack.push_async_callback(erasures.close)
            node.begin(roots, begin_due=begin_due, when_started=when_started)
            await erasures.resume()  # nothing was called before it
            node.erasures = erasures
            if self.agents:  # not in a command that opened the folder
                resume_server_moves(node)
            self._node = node
            if node.far is not None:
                answer_carried(node.far.transport, self._opened_gateway)
            await self._runtime.listen()
            self._stack = stack.pop_all()
        return self

    def _check_agents(self) -> None:
        check_agents(self)

    def _has_driver(self, node: Node) -> bool:
        """Return whether turns and runs have a driver. A command has no agents, and asks its folder."""
        if not self.agents:
            return self.driver is not None or has_noted_driver(node.folder)
        note_driver(node.folder, node.files, has_driver=self.driver is not None)
        return self.driver is not None

    def _check_pages(self) -> None:
        if self.pages is not None and Path(self.settings.data).resolve().is_relative_to(self.pages):
            raise UsageError(
                f"The data folder {str(self.settings.data)!r} is inside App(pages={str(self.pages)!r}): every client "
                "could read it. Move the pages or the data to another folder."
            )

    async def __aexit__(self, *exc: object) -> None:
        self._node = None
        self._is_stopping = True
        try:
            # Until its trees have gone elsewhere other nodes may ask for them.
            await self._stack.aclose()
        finally:
            self._is_stopping = False
            self._gateway = None

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Serve one ASGI connection."""
        if scope["type"] == "lifespan":
            await serve_lifespan(self, receive, send)
        elif self.driver is not None and scope["type"] == "http" and _path(scope).startswith(self.driver.path):
            await self._opened_gateway()
            await self.driver.door(scope, receive, send)
        elif scope["type"] == "http" and (adapter := adapter_of(self.protocols, _path(scope))) is not None:
            await serve_located(
                await self._opened_gateway(),
                self._locating(adapter),
                scope,
                receive,
                with_refusals(send, adapter.refusal),
                is_public=_path(scope) in adapter.public,
                challenge=adapter.challenge,
            )
        else:
            await serve(await self._opened_gateway(), scope, receive, send)

    def _locating(self, adapter: Adapter) -> Locate:
        async def locate(request: Request) -> Target | Response:
            found = await adapter.locate(request, self.agents)
            if not isinstance(found, Place):
                return found
            name = new_id(self.node.random) if found.name is None else found.name
            return known(found.cls), name, found.rest

        return locate

    @asynccontextmanager
    async def lifespan(self, _app: object = None) -> AsyncGenerator[None, None]:
        """Start and shut down the app together with another app: ``FastAPI(lifespan=app.lifespan)``."""
        async with self:
            yield

    def route_to(self, cls: type[Agent[Any]], name: str, rest: str = "/") -> Response:
        """Return a response that forwards a request or a socket to this root, whatever its URL is.

        `rest` is the path that the root receives; `/sub/…` in it is routed to sub-agents. If it is the end of the
        URL's own path, it may be decoded, as frameworks do. Return the response from your route. For a socket,
        await it as an ASGI application.
        """
        from sapwood.web.handoff import Handoff

        kind = known(cls)

        async def handle(scope: Scope, receive: Receive, send: Send) -> None:
            await serve(await self._opened_gateway(), scope, receive, send, place=(kind, name, rest))

        return Handoff(handle)

    async def disconnect(self, user: object, *, code: int = 4401, reason: str = "Signed out") -> int:
        """Close all sockets of a user, of every agent, and return their number.

        Call it when a user signs out or loses access: authentication runs once, when a socket opens. Users are
        compared with `==`. After a close code of 4000 or above, clients do not reconnect automatically.
        """
        found = self.node.sockets.show_out(user, code, reason)
        return found if self.node.far is None else found + await self.node.far.show_out(user, code, reason)

    def path_to(
        self, cls: type[Agent[Any]], name: str, *, sub: Sequence[tuple[type[Agent[Any]], str]] = (), rest: str = ""
    ) -> str:
        """Return the URL path of an agent."""
        address = Address.root_of(known(cls).type, name)
        for child, child_name in sub:
            address = address.child(known(child).type, child_name)
        return path_to(address, prefix=self.settings.prefix, rest=rest)

    async def _opened_gateway(self) -> Gateway:
        if self._gateway is None:
            self._starting = self._starting or asyncio.Lock()
            async with self._starting:
                if self._is_stopping:
                    raise NotBegun("The app is shutting down.")
                if self._node is None:
                    log.warning(
                        "app started by its first request, so it will not shut down cleanly. Pass "
                        "lifespan=app.lifespan to the app in which it is mounted."
                    )
                    await self.__aenter__()
                from sapwood.web.gateway import Gateway

                self._gateway = Gateway(
                    self.node,
                    lambda actor: actor.of(Connections),
                    authenticate=self.authenticate if self.user_limits is None else with_id(self.authenticate),
                    authorize=self.authorize,
                    pages=None if self.pages is None else str(self.pages),
                    roots=[known(cls) for cls in self.agents],
                )
        return self._gateway

    @property
    def node(self) -> Node:
        """The node that runs the agents."""
        if self._node is None:
            raise UsageError("The app is not running. Start it with `async with app:`.")
        return self._node

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
        """Start a root and return a stub of it or, with `sub`, of an existing descendant of that root.

        Write a `sub` of several segments as a tuple: `sub=((Desk, "sport"), (Reporter, "ann"))`. In a list,
        type checkers cannot tell which class is the last.
        """
        path = [(known(cls), name), *((known(kind), child) for kind, child in sub)]
        return await self.node.stub(path, current.get())

    def release(self, cls: type[Agent[Any]], name: str) -> None:
        """Release a tree from quarantine, so that it runs again."""
        self.node.strikes.release(Address.root_of(known(cls).type, name))


def check_agents(app: App) -> None:
    """Refuse roots and their tool classes that cannot work here, for example because of a missing API key."""
    for kind in with_tool_classes([known(cls) for cls in app.agents]):
        cls = cast("type[Agent[Any]]", kind.cls)
        cls._check_setup(has_users=app.authenticate is not None)  # pyright: ignore[reportPrivateUsage]


def _runtime(settings: Settings) -> Runtime:
    if settings.durability != Durability.REPLICATED:
        return LocalRuntime(settings)
    from sapwood.runtimes.cluster.runtime import ClusterRuntime

    return ClusterRuntime(settings)


def _name_of(authenticate: Callable[..., Any] | None) -> str | None:
    """Return the name under which decisions keep how a user was authenticated."""
    return None if authenticate is None else getattr(authenticate, "__qualname__", type(authenticate).__name__)


def _path(scope: Scope) -> str:
    """Return the path of a request below the place where the app is mounted."""
    return relative(str(scope["path"]), str(scope.get("root_path", "")))
