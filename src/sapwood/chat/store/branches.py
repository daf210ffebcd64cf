"""The branches of a conversation: its messages are a tree, and one path through it is active.

An edited message or a regenerated answer is a sibling of the old one. Clients and the model see the active path; the
other branches stay stored.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from datetime import UTC, datetime
from typing import Any, Literal, NamedTuple

import msgspec

from sapwood.kernel.ports.read_models import has_table
from sapwood.storage.database import Database

MOST_READ = 1_000_000
"""Messages that are read at most without waking an agent."""
FIRST_WORDS = 100
"""Characters of a message that stand for a branch."""


@dataclass(frozen=True, slots=True)
class ConversationBranch:
    """One of several ways in which a conversation continues after a message."""

    message_id: str
    """The id of its first message."""
    after: str | None
    """The id of the message that it follows. Branches that follow the same message are siblings. `None` if it begins
    the conversation."""
    parent: str | None
    """The `message_id` of the branch in which it begins. `None` if it begins in no other."""
    role: Literal["user", "assistant"]
    """Who wrote its first message: `user` after an edit, `assistant` after an answer was regenerated."""
    text: str
    """The first words of its first message."""
    at: datetime
    """When its first message was stored."""
    messages: int
    """The number of messages from its first one to its newest one."""
    is_active: bool
    """Whether its first message is on the active path, which clients and the model see."""


class PlacedMessage(NamedTuple):
    """A message, and where it is in the tree."""

    after: str | None
    """The id of the message before it; `None` if it is the first."""
    message: dict[str, Any]
    is_active: bool


class _Node(NamedTuple):
    """A message in the tree."""

    position: int
    parent: int | None
    is_active: int


class BranchTree:
    """The tree of the messages of one conversation. Every change belongs to the open slice."""

    def __init__(self, database: Database) -> None:
        self._db = database

    def newest_of(self, position: int) -> int:
        """Return the position of the newest message of the branches that go through a message."""
        newest = {position}
        for node in self._nodes():
            if node.parent in newest:
                newest.add(node.position)
        return max(newest)

    def activate(self, position: int | None) -> None:
        """Let the active path end with a message, or let it be empty."""
        nodes, path = self._nodes(), set[int]()
        parents = {node.position: node.parent for node in nodes}
        while position is not None:
            path.add(position)
            position = parents[position]
        changed = [node.position for node in nodes if node.is_active != (node.position in path)]
        ids = self._db.execute(
            "UPDATE sapwood_messages SET is_active = NOT is_active"
            " WHERE position IN (SELECT value FROM json_each(?)) RETURNING id",
            _json(changed),
        )
        rows: list[Any] = self._db.execute(
            "SELECT one.replaces, coalesce(message.is_active, 0) FROM sapwood_model_messages AS one"
            " LEFT JOIN sapwood_messages AS message ON message.id = one.message WHERE one.replaces IS NOT NULL"
        )
        # What belongs to no message was never shown: a turn that ended before it said anything. What it replaces
        # is there again.
        self._db.execute("DELETE FROM sapwood_model_messages WHERE message NOT IN (SELECT id FROM sapwood_messages)")
        replaced = [(at, is_active) for replaces, is_active in rows for at in msgspec.json.decode(replaces)]
        self._db.execute(
            "UPDATE sapwood_model_messages SET is_active = position NOT IN (SELECT value FROM json_each(?))"
            " AND (SELECT one.is_active FROM sapwood_messages AS one WHERE one.id = sapwood_model_messages.message)"
            " WHERE message IN (SELECT value FROM json_each(?)) OR position IN (SELECT value FROM json_each(?))",
            _json([at for at, is_active in replaced if is_active]),
            _json([id for (id,) in ids]),
            _json([at for at, _ in replaced]),
        )

    def own_since(self) -> int | None:
        """Return the position since which the active path is not also that of another branch; `None` if it has none.

        It is the last message of the path that has siblings, or the place after the path if only others continue it.
        """
        nodes = self._nodes()
        path = [node for node in nodes if node.is_active]
        if len(path) == len(nodes):
            return None
        left = {node.parent for node in nodes if not node.is_active}
        tip = path[-1].position if path else None
        if tip in left:
            return (tip or 0) + 1
        return max((node.position for node in path if node.parent in left), default=None)

    def branches(self) -> list[ConversationBranch]:
        """Return all branches, in the order of their first messages; none if no message has a sibling."""
        return _branches(self._db.execute)

    def messages(self) -> list[PlacedMessage]:
        """Return the messages of all branches, in the order in which they were stored."""
        rows = self._db.execute(
            "SELECT before.id, one.body, one.is_active FROM sapwood_messages AS one"
            " LEFT JOIN sapwood_messages AS before ON before.position = one.parent ORDER BY one.position"
        )
        return [PlacedMessage(after, msgspec.json.decode(body), bool(active)) for after, body, active in rows]

    def over(self, most: int) -> list[str]:
        """Return the ids of messages that have to go, so that at most so many are left, from other branches.

        Branches go as a whole, first those in which nothing was said for the longest time.
        """
        nodes = self._nodes()
        excess = len(nodes) - most
        others = [node for node in nodes if not node.is_active]
        if excess <= 0 or not others:
            return []
        first: dict[int | None, int] = {}
        found: dict[int, list[int]] = {}
        for node in others:  # parents come first
            first[node.position] = first.get(node.parent, node.position)
            found.setdefault(first[node.position], []).append(node.position)
        gone: list[int] = []
        for positions in sorted(found.values(), key=max):
            if len(gone) >= excess:
                break
            gone += positions
        rows = self._db.execute(
            "SELECT id FROM sapwood_messages WHERE position IN (SELECT value FROM json_each(?))",
            _json(gone),
        )
        return [id for (id,) in rows]

    def detach(self, ids: str) -> None:
        """Let what follows messages, by their ids as JSON, follow what is before them: they are about to be deleted."""
        gone: dict[int, int | None] = dict(
            self._db.execute(
                "SELECT position, iif(parent < position, parent, NULL) FROM sapwood_messages"
                " WHERE id IN (SELECT value FROM json_each(?))",
                ids,
            )
        )
        following: list[tuple[int, int | None]] = self._db.execute(
            "SELECT position, parent FROM sapwood_messages WHERE parent IN (SELECT value FROM json_each(?))",
            _json([*gone]),
        )
        changed: list[tuple[int, int | None]] = []
        for position, parent in following:
            if position not in gone:
                while parent in gone:
                    parent = gone[parent]
                changed.append((position, parent))
        self._db.execute(
            "UPDATE sapwood_messages SET parent = one.value ->> 1 FROM json_each(?) AS one"
            " WHERE position = one.value ->> 0",
            msgspec.json.encode(changed).decode(),
        )

    def _nodes(self) -> list[_Node]:
        return _nodes(self._db.execute)


def stored_branches(database: Database) -> list[ConversationBranch]:
    """Return all branches of a conversation, without waking its agent."""
    if not has_table(database, "sapwood_messages"):
        return []

    def select(sql: str, *arguments: str) -> list[Any]:
        return database.look(sql, arguments, MOST_READ)[1]

    return _branches(select)


Select = Callable[..., Any]
"""Returns the rows of a statement."""


def _branches(select: Select) -> list[ConversationBranch]:
    nodes = _nodes(select)
    if all(node.is_active for node in nodes):
        return []
    children: dict[int | None, list[_Node]] = {}
    newest: dict[int, tuple[int, int]] = {}
    """The newest message below each, and the number of messages up to it."""
    for node in reversed(nodes):
        last, count = newest.setdefault(node.position, (node.position, 1))
        children.setdefault(node.parent, []).append(node)
        if node.parent is not None and last > newest.get(node.parent, (0, 0))[0]:
            newest[node.parent] = (last, count + 1)
    actives = {None, *(node.position for node in nodes if node.is_active)}
    firsts = {
        node.position: node
        for parent, siblings in children.items()
        for node in siblings
        # One message is a branch of its own if the active path ends before it.
        if len(siblings) > 1 or (parent in actives and not node.is_active)
    }
    within: dict[int | None, int] = {}
    """The first message of the branch that a message belongs to."""
    for node in nodes:
        if node.position in firsts:
            within[node.position] = node.position
        elif node.parent in within:
            within[node.position] = within[node.parent]
    rows = select(
        "SELECT one.position, one.id, before.id, one.role, one.created_at, one.body FROM sapwood_messages AS one"
        " LEFT JOIN sapwood_messages AS before ON before.position = one.parent"
        " WHERE one.position IN (SELECT value FROM json_each(?)) ORDER BY one.position",
        _json([*firsts]),
    )
    ids = {row[0]: row[1] for row in rows}
    return [
        ConversationBranch(
            message_id=id,
            after=after,
            parent=ids.get(within.get(firsts[position].parent)),
            role=role,
            text=first_words(msgspec.json.decode(body)),
            at=datetime.fromtimestamp(at, UTC),
            messages=newest[position][1],
            is_active=bool(firsts[position].is_active),
        )
        for position, id, after, role, at, body in rows
    ]


def _nodes(select: Select) -> list[_Node]:
    """Return all messages in their order, each after its parent. In a damaged file, parents may be a cycle."""
    rows: list[Any] = select("SELECT position, iif(parent < position, parent, NULL), is_active FROM sapwood_messages")
    return sorted((_Node(*row) for row in rows), key=lambda node: node.position)


def _json(values: Sequence[int] | Sequence[str]) -> str:
    return msgspec.json.encode(values).decode()


def first_words(message: dict[str, Any]) -> str:
    """Return the beginning of the text of a message, on one line."""
    parts: Sequence[dict[str, Any]] = message["parts"]
    text = " ".join(" ".join(str(part["text"]).split()) for part in parts if part.get("type") == "text")
    return text if len(text) <= FIRST_WORDS else f"{text[: FIRST_WORDS - 1]}…"
