"""`questions`: what waits for a person, below one agent or in all trees; and `answer`."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Iterable
from contextlib import aclosing
from typing import Any, Literal

import msgspec

from sapwood.address import Address
from sapwood.admin.agent_lookup import MOST_ROWS, AgentLookup, is_there
from sapwood.admin.agents import owned
from sapwood.admin.cursors import cursor, values_in
from sapwood.admin.endpoint import LONG_PATIENCE, AdminCall, Answer, Endpoint, OneAgent, Page
from sapwood.admin.merged import by_page
from sapwood.admin.root_names import RootNames
from sapwood.admin.unread import Unread
from sapwood.errors import InvalidArguments, NotFound, SapwoodError, StoredDataError
from sapwood.kernel.node.node import Node
from sapwood.kernel.trees.tree import Tree
from sapwood.kernel.trees.tree_files import ROOT_STEM

Place = tuple[str, str]
"""The agent that asks, and the id of the question."""


async def _questions(call: AdminCall, params: Page) -> Answer:
    after = None if params.after is None else values_in(params.after, Place)
    asked = Asked(call.node)
    rows: list[dict[str, Any]] = []
    unread: list[dict[str, Any]] = []
    has_more = False
    async for found in asked.after(params.address, after):
        if isinstance(found, Unread):
            unread.append(found.shown(call.content))
        elif has_more := len(rows) == params.limit:
            break
        else:
            rows.append(_shown(call, *found))
    last = rows[-1] if rows and has_more else None
    return {
        "rows": rows,
        "next": None if last is None else cursor(last["address"], last["id"]),
        "unread": unread,
        "unanswered": [],
    }


class Asked:
    """The open questions of one node, as they are stored."""

    def __init__(self, node: Node) -> None:
        self._node = node
        self._lookup = AgentLookup(node)

    async def after(
        self, address: str | None, place: Place | None
    ) -> AsyncIterator[tuple[Address, dict[str, Any]] | Unread]:
        """Yield the questions in the order of their roots, agents and ids, below an agent or of all trees."""
        if address is not None:
            for found in _later(await self.below(Address.parse(address)), place):
                yield found
            return
        first = None if place is None else str(Address.parse(place[0]).root)
        names, at = await self._node.shared(RootNames).sorted_after(self._node, first)
        start = at - 1 if at > 0 and names[at - 1] == first else at
        async with aclosing(owned(self._node, names[start:])) as roots:
            async for root in roots:
                await asyncio.sleep(0)
                try:
                    asked = await self.below(root) if is_there(self._node, root) else []
                except NotFound:
                    continue  # destroyed
                except SapwoodError as error:
                    yield Unread(root, error)
                    continue
                for found in _later(asked, place if str(root) == first else None):
                    yield found

    async def below(self, address: Address) -> list[tuple[Address, dict[str, Any]]]:
        """Return the open questions of an agent and of all below it, with who asks."""
        tree, found, stem = await self._lookup.find(address)
        tree.slices.commit()
        own = self._own(tree, stem) if stem == ROOT_STEM else _read(found, tree.questions.of(found) or "[]")
        asked = [(found, one) for one in own]
        asked += [(owner, one) for owner, body in tree.questions.below(found) for one in _read(owner, body)]
        return asked

    def _own(self, tree: Tree, stem: str) -> list[dict[str, Any]]:
        """Return the questions of a root, which the index of its tree does not have."""
        database = self._lookup.database(tree, stem)
        return [one for read in self._node.read_models.questions for one in read(database, MOST_ROWS)]


def _read(owner: Address, body: str) -> list[dict[str, Any]]:
    try:
        return msgspec.json.decode(body, type=list[dict[str, Any]])
    except msgspec.DecodeError as error:
        raise StoredDataError(f"The questions of {owner} cannot be read: {error}") from None


def _later(
    asked: Iterable[tuple[Address, dict[str, Any]]], place: Place | None
) -> list[tuple[Address, dict[str, Any]]]:
    ordered = sorted(asked, key=lambda one: (str(one[0]), one[1]["id"]))
    return [one for one in ordered if place is None or (str(one[0]), one[1]["id"]) > place]


def _shown(call: AdminCall, owner: Address, asked: dict[str, Any]) -> dict[str, Any]:
    content = call.content
    question = call.node.read_models.question(asked)
    return {
        "address": str(owner),
        "id": question["id"],
        "kind": question["kind"],
        "tool": question["tool"] or None,
        "arguments": content.value("arguments", question["arguments"]),
        "prompt": content.text("question", question["prompt"] or None),
        "options": content.value("question", question["options"]),
        "schema": question["schema"],
        "remote": question["remote"],
        "roles": question["roles"],
        "digest": question["digest"],
    }


class AnswerParams(OneAgent):
    id: str
    answer: Literal["approve", "deny", "value"]
    value: Any = None
    reason: str | None = None
    digest: str | None = None


async def _answer(call: AdminCall, params: AnswerParams) -> Answer:
    owner = Address.parse(params.address)
    stored = [one for asker, one in await Asked(call.node).below(owner) if asker == owner and one["id"] == params.id]
    question = call.node.read_models.question(stored[0]) if stored else None
    if question is None or params.digest not in (None, question["digest"]):
        return {"accepted": False}
    if params.answer == "value" and question["kind"] in ("approval", "client"):
        raise InvalidArguments("The question is about a tool call. Approve or deny it.")
    # As it was shown: if it has changed since, it is not open any more.
    asked: dict[str, Any] = {name: value for name, value in question.items() if name != "remote"}
    arguments: dict[str, list[Any]] = {
        "approve": [asked, params.value],
        "deny": [asked, params.reason],
        "value": [asked, params.value],
    }
    method = {"approve": "approve", "deny": "deny", "value": "answer"}[params.answer]
    with call.content.of_failures():
        told = [one async for one in call.admin.call(params.address, f"questions.{method}", arguments[params.answer])]
    return {"accepted": told == [b"true"]}


QUESTIONS = Endpoint(
    "questions",
    "look",
    Page,
    _questions,
    merge=by_page(
        lambda row: (str(Address.parse(row["address"]).root), row["address"], row["id"]), lambda key: cursor(*key[1:])
    ),
    patience=LONG_PATIENCE,
)
ANSWER = Endpoint("answer", "answer", AnswerParams, _answer)
