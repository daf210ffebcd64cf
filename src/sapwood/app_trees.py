"""What a program does with whole trees: backups, forks, exports, comparisons and erasures."""

from __future__ import annotations

import os
from collections.abc import Sequence
from datetime import datetime
from pathlib import Path
from typing import Any

from sapwood.address import Address
from sapwood.agent import Agent
from sapwood.errors import StoredDataError, UsageError
from sapwood.kernel.actors.fork_origin import WorkRule
from sapwood.kernel.comparison.comparison import DEFAULT_LIMIT, compare
from sapwood.kernel.comparison.tree_diff import TreeDiff
from sapwood.kernel.erasure.receipt import ErasureReceipt
from sapwood.kernel.history.moments import At, Moment
from sapwood.kernel.marshal.agent_class import known
from sapwood.kernel.node.backup import OnDamage, backup, restore
from sapwood.kernel.node.fork import Fork, fork, rewind
from sapwood.kernel.node.move import move
from sapwood.kernel.node.node import Node
from sapwood.kernel.node.past import moments
from sapwood.kernel.node.tree_transfer import export_tree, import_tree

AnyAgent = Address | str | tuple[type[Agent[Any]], str]
"""An agent: its address, or the class and the name of a root."""


class AppTrees:
    """The methods of an app that copy, restore, fork, compare and erase trees."""

    @property
    def node(self) -> Node:
        """The node that runs the agents."""
        raise NotImplementedError

    async def backup(self, folder: str | os.PathLike[str], cls: type[Agent[Any]] | None = None, name: str = "") -> int:
        """Back up one tree, or all trees, into a new data folder. The app keeps running.

        The copy of each tree is a consistent snapshot. Open the backup with `Settings(data=…)`, or restore it
        with `restore`. Returns the number of trees.

        Each copy is checked. If trees are damaged, the others are copied, and then `StoredDataError` names the
        damaged ones.
        """
        report = await backup(self.node, Path(folder), _root(cls, name))
        if not report.is_whole:
            copied = f"{report.trees} trees were copied to {str(folder)!r}; damaged ones were not."
            raise StoredDataError(f"{copied} {report.summary()}")
        return report.trees

    async def restore(
        self,
        folder: str | os.PathLike[str],
        cls: type[Agent[Any]] | None = None,
        name: str = "",
        *,
        damaged: OnDamage = "refuse",
    ) -> int:
        """Restore one tree, or all trees, from a backup. Their current data is replaced.

        Calls to a tree wait while it is restored; running calls are cancelled. Trees that are not in the
        backup do not change. Returns the number of restored trees.

        The backup is checked first. If trees in it are damaged, nothing is restored, and `StoredDataError` names
        them. `damaged="skip"` restores the other trees, and `damaged="restore"` restores all.
        """
        return (await restore(self.node, Path(folder), _root(cls, name), damaged)).trees

    async def fork(
        self,
        cls: type[Agent[Any]],
        name: str,
        *,
        to: str,
        sub: Sequence[tuple[type[Agent[Any]], str]] = (),
        at: At | None = None,
        work: WorkRule = "hold",
    ) -> Fork:
        """Copy a root with all agents below it to a new root named `to`, as they are now. The agents keep running.

        With `at`, copy them as they were at a moment of the history: a `Moment` of `moments`, `BeforeTurn(id)`, an
        aware `datetime`, or the name of a mark. With `sub`, copy a descendant of the root instead: it becomes a root
        of its own class.

        A fork is a copy of knowledge, and not of obligations: nothing happens twice. Scheduled and queued calls are
        dead letters in the fork, fibers are interrupted, and turns and runs are cancelled. Open questions stay open,
        and an answer in the fork counts only there. `work="drop"` deletes unfinished work, and `work="run"` continues
        it, so that what it does happens in both.
        """
        source = _address(cls, name, sub)
        return await fork(self.node, source, Address.root_of(source.type, to), work, at)

    async def rewind(
        self,
        cls: type[Agent[Any]],
        name: str,
        *,
        at: At,
        keep_as: str | None = None,
        work: WorkRule = "hold",
    ) -> Fork:
        """Take a root with all agents below it back to a moment of its history. `at` is as for `fork`.

        With `keep_as`, a fork of that name shows it as it is now. Calls to the tree wait while it is replaced, running
        calls are cancelled, and sockets are closed with 1012. `work` says what happens to the work that was unfinished
        at the moment, as for `fork`. The time before the rewind stays in the history: a rewind to `undo_at`
        of the result undoes this one.
        """
        return await rewind(self.node, Address.root_of(known(cls).type, name), at, keep_as, work)

    async def moments(
        self, cls: type[Agent[Any]], name: str, *, since: datetime | None = None, limit: int = 100
    ) -> list[Moment]:
        """Return the last moments in the history of a tree, oldest first. `Settings(history=…)` says how long it is."""
        return await moments(self.node, Address.root_of(known(cls).type, name), since, limit)

    async def export(
        self,
        cls: type[Agent[Any]],
        name: str,
        file: str | os.PathLike[str],
        *,
        sub: Sequence[tuple[type[Agent[Any]], str]] = (),
        at: At | None = None,
    ) -> int:
        """Write a root with all agents below it, as they are now, to a new file. The agents keep running.

        With `sub`, export a descendant of the root instead. `at` is as for `fork`. Returns the number of agents. The
        file has all that the agents have stored, and is not encrypted. `import_` makes a tree of it, in this app or
        another.
        """
        return await export_tree(self.node, _address(cls, name, sub), Path(file), at)

    async def import_(
        self, file: str | os.PathLike[str], *, as_name: str | None = None, work: WorkRule = "hold"
    ) -> Fork:
        """Make a new root of an exported tree, named `as_name`, or as it was. There must be no such root yet.

        The file is checked first: its digests, its databases, and whether they fit the classes of this app. `work`
        says what happens to unfinished work, as for `fork`. Import only files that you trust.
        """
        return await import_tree(self.node, Path(file), as_name, work)

    async def diff(
        self,
        a: AnyAgent,
        b: AnyAgent,
        *,
        a_at: At | None = None,
        b_at: At | None = None,
        limit: int = DEFAULT_LIMIT,
    ) -> TreeDiff:
        """Return what differs between two agents and the agents below them.

        Tables, states, conversations, files and spending are compared. Each agent is `(Desk, "main")`, or an address
        such as `"Desk:main/Chat:a"`. Agents below them are matched by their paths. Both trees are copied, each as it
        is at one moment, and keep running. Agents stay asleep.

        With `a_at` or `b_at`, that side is as it was at a moment of its history, as for `fork`: so two moments of one
        agent can be compared. All counts are exact. At most `limit` agents, and `limit` changes of each part, are
        listed.
        """
        parts = self.node.read_models.compared
        return await compare(self.node, _compared(a), _compared(b), parts, limit, a_at, b_at)

    async def move(self, cls: type[Agent[Any]], name: str, *, to: str, token: str | None = None) -> Address:
        """Give a root another name, and return its new address. All agents below it, and their work, go with it.

        Calls to the tree wait while it is moved, running calls are cancelled, and sockets are closed with 1012.
        Schedules, fibers, turns, runs and questions continue under the new name, each once. The old name leads to
        the new one, for stubs and for clients, until the root is destroyed. A cluster does not support moves yet.

        With the URL of another server as `to`, move the root there, under the same name. `token` is a token of that
        server with the scope `admin`. Calls to the old server raise `MovedAway` from then on, and HTTP clients are
        redirected.
        """
        return await move(self.node, Address.root_of(known(cls).type, name), to, token)

    async def erase(
        self,
        cls: type[Agent[Any]],
        name: str,
        *,
        sub: Sequence[tuple[type[Agent[Any]], str]] = (),
        by: str = "program",
        id: str | None = None,
    ) -> ErasureReceipt:
        """Erase a tree, or with `sub` a sub-agent and everything below it, and return a signed receipt.

        Everything is removed that sapwood knows of these agents: files, history, indexes, and what the agents above
        store of their runs. The receipt lists each place, the backups that still hold the tree, and what is not
        covered.

        `by` is stored in the receipt. The same `id` joins an erasure that runs, or returns its receipt again. An
        erasure that a crash interrupts continues at the next start.
        """
        assert self.node.erasures is not None
        return await self.node.erasures.erase(_address(cls, name, sub), by=by, id=id)


def _root(cls: type[Agent[Any]] | None, name: str) -> Address | None:
    return None if cls is None else Address.root_of(known(cls).type, name)


def _address(cls: type[Agent[Any]], name: str, sub: Sequence[tuple[type[Agent[Any]], str]]) -> Address:
    address = Address.root_of(known(cls).type, name)
    for child, child_name in sub:
        address = address.child(known(child).type, child_name)
    return address


def _compared(agent: AnyAgent) -> Address:
    match agent:
        case Address():
            return agent
        case str():
            return Address.parse(agent)
        case (cls, name):
            return Address.root_of(known(cls).type, name)
        case _:
            raise UsageError(f'Expected an address, or a class and a name such as (Desk, "main"), got {agent!r}.')
