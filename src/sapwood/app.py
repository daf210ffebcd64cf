"""The program around the agents: which roots there are, what they are given, where they live."""

from __future__ import annotations

import os
from collections.abc import Callable, Sequence
from contextlib import AbstractAsyncContextManager, AsyncExitStack
from pathlib import Path
from typing import Any, Self, TypeVar, cast, overload

from sapwood.address import Address, kebab
from sapwood.agent import Agent
from sapwood.errors import UsageError
from sapwood.kernel.backup import back_up_all, back_up_tree, restore_tree, roots
from sapwood.kernel.classes import known
from sapwood.kernel.context import current
from sapwood.kernel.node import Node
from sapwood.runtimes.local import LocalRuntime
from sapwood.settings import Settings

A = TypeVar("A", bound=Agent[Any])
Deps = object | Callable[[], AbstractAsyncContextManager[object]]


class App:
    """Runs agents: ``async with app:`` starts it, and ends it in good order.

    `agents` names the roots; any other agent class can be a sub-agent without being
    named. `deps` is a value, or a function that returns an async context manager, which
    is opened at the start; agents read it as `self.deps`.
    """

    def __init__(
        self,
        *,
        agents: Sequence[type[Agent[Any]]],
        deps: Deps = None,
        settings: Settings | None = None,
        runtime: LocalRuntime | None = None,
    ) -> None:
        if isinstance(agents, type):
            raise UsageError(f"App(agents=…) takes a list of agent classes. Write agents=[{agents.__name__}].")
        if settings is not None and not isinstance(cast(object, settings), Settings):
            raise UsageError(f"App(settings=…) takes Settings(…), and was given a {type(settings).__name__}.")
        self.agents = tuple(agents)
        self.settings = settings or Settings()
        self.deps = deps
        self._runtime = runtime or LocalRuntime(self.settings)
        self._node: Node | None = None
        self._stack = AsyncExitStack()
        urls: dict[str, type] = {}
        for cls in self.agents:
            type_id = known(cls).type
            other = urls.setdefault(kebab(type_id), cls)
            if other is not cls:
                raise UsageError(
                    f"{other.__name__} and {cls.__name__} would both be /agents/{kebab(type_id)}. "
                    "Give one of them a type of its own with @agent(type=…)."
                )

    async def __aenter__(self) -> Self:
        if self._node is not None:
            raise UsageError("The app is running already.")
        stack = AsyncExitStack()
        async with stack:
            deps = self.deps
            if callable(deps):
                opened = deps()
                if not isinstance(opened, AbstractAsyncContextManager):
                    raise UsageError("App(deps=…) takes a value, or a function that returns an async context manager.")
                deps = await stack.enter_async_context(cast("AbstractAsyncContextManager[object]", opened))
            node = await self._runtime.start(deps)
            stack.callback(self._runtime.release)
            stack.push_async_callback(node.stop)
            node.roots = tuple(known(cls) for cls in self.agents)
            for root in node.roots:
                node.check_deps(root)
            self._node = node
            self._stack = stack.pop_all()
        return self

    async def __aexit__(self, *exc: object) -> None:
        self._node = None
        await self._stack.aclose()

    @property
    def node(self) -> Node:
        """The node that runs the agents."""
        if self._node is None:
            raise UsageError("The app is not running. Write `async with app:` around what needs it.")
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
        """Return a stub of a root, started; with `sub`, of a descendant of it that exists.

        Write a `sub` of several steps as a tuple, `sub=((Desk, "sport"), (Reporter, "ann"))`: of
        a list, type checkers do not know which class is the last.
        """
        path = [(known(cls), name), *((known(kind), child) for kind, child in sub)]
        return await self.node.stub(path, current.get())

    async def back_up(self, folder: str | os.PathLike[str], cls: type[Agent[Any]] | None = None, name: str = "") -> int:
        """Copy one tree, or all of them, into a data folder of its own, while everything runs on.

        Each tree is copied as it was at one moment. The copy can be opened as it is, with
        `Settings(data=…)`, or put back with `restore`. Returns the number of trees.
        """
        if cls is None:
            return await back_up_all(self.node, Path(folder))
        await back_up_tree(self.node, Address.root_of(known(cls).type, name), Path(folder))
        return 1

    async def restore(self, folder: str | os.PathLike[str], cls: type[Agent[Any]] | None = None, name: str = "") -> int:
        """Put back one tree, or all of them, as they are in a backup, in place of what they are now.

        Calls to a tree wait while it is put back; what ran in it is cancelled. Trees that the
        backup does not have stay as they are. Returns the number of trees.
        """
        wanted = [Address.root_of(known(cls).type, name)] if cls is not None else list(roots(Path(folder)))
        for root in wanted:
            await restore_tree(self.node, root, Path(folder))
        return len(wanted)

    def release(self, cls: type[Agent[Any]], name: str) -> None:
        """Let a tree run again that was put in quarantine."""
        self.node.strikes.release(Address.root_of(known(cls).type, name))
