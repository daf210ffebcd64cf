"""A question of an agent: the tool call it is about, who may answer it, and the answer."""

from __future__ import annotations

import hashlib
from collections.abc import Awaitable, Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Final, Literal, TypeAlias, cast

import msgspec

from sapwood.address import PathSegment
from sapwood.kernel.context import OPERATOR, current


@dataclass(frozen=True, slots=True)
class Question:
    """A tool call that waits for a person to allow it, or for a client to run it."""

    id: str
    """The id of the tool call."""
    tool: str
    """The name of the tool."""
    arguments: Any
    """The arguments of the call."""
    path: tuple[PathSegment, ...] = ()
    """The path to the agent that asks, from the agent that lists the question. Empty if they are the same."""
    kind: Literal["approval", "client"] = "approval"
    """`approval` if a person must allow the call, `client` if a client must run it."""
    remote: tuple[PathSegment, ...] | None = None
    """If another server executes the agent that asks: the path to it there, from the agent that executes the run.
    `path` then leads to the sub-agent that stands for that run."""
    digest: str = field(default="", compare=False)
    """SHA-256 of tool and arguments. An answer names it, so that it cannot allow anything else."""

    @classmethod
    def about(cls, id: str, tool: str, arguments: Any, kind: Literal["approval", "client"]) -> Question:
        """Return the question about a tool call, with its digest."""
        shown = msgspec.json.encode([tool, arguments], order="sorted")
        return cls(id, tool, arguments, kind=kind, digest=hashlib.sha256(shown).hexdigest())


@dataclass(frozen=True, slots=True)
class Author:
    """The user or program that answered a question."""

    user: str | None
    """The id of the user; `None` if the client or program did not say who it is."""
    authentication: str | None
    """How the user was authenticated; `None` means not at all."""
    channel: str
    """`http`, `socket`, or `code` followed by the agent whose code answered."""


@dataclass(frozen=True, slots=True)
class Answer:
    """The answer to a question."""

    kind: Literal["approved", "denied", "done", "failed"]
    value: Any = None
    """Other arguments, a reason, the result of the tool, or the error."""


class AnyClient:
    """The type of `ANY_CLIENT`."""

    def __repr__(self) -> str:
        return "ANY_CLIENT"


ANY_CLIENT: Final = AnyClient()
"""Every client that the gates of the agent admit may answer: the users of the conversation themselves."""

Verdict: TypeAlias = bool | str
"""`True` allows. `False` refuses, and a text refuses with a reason."""
Rule: TypeAlias = Callable[[Any, Question], Verdict | Awaitable[Verdict]]
Approvers: TypeAlias = AnyClient | str | Sequence[str] | Rule
"""Who may approve the calls of a tool: `ANY_CLIENT`, one role or several, or a function of user and question."""

NOT_ALLOWED = "You may not answer this question."


def refusal_of(verdict: object) -> str | None:
    """Return why a hook refuses an answer; `None` if it allows it."""
    if verdict is True:
        return None
    return verdict if isinstance(verdict, str) and verdict else NOT_ALLOWED


async def refused_by(approvers: Approvers, user: Any, question: Question) -> str | None:
    """Return why a user may not approve; `None` if the user may."""
    if isinstance(approvers, AnyClient):
        return None
    if callable(approvers):
        verdict: Any = approvers(user, question)
        return refusal_of(await cast("Awaitable[Any]", verdict) if isinstance(verdict, Awaitable) else verdict)
    wanted = {approvers} if isinstance(approvers, str) else set(approvers)
    return None if wanted & roles_of(user) else NOT_ALLOWED


def roles_of(user: Any) -> set[str]:
    """Return the roles of a user: what its claims name as `roles`."""
    claims: Any = getattr(user, "claims", None)
    roles: Any = cast("Mapping[str, Any]", claims).get("roles") if isinstance(claims, Mapping) else None
    named = [roles] if isinstance(roles, str) else cast("Sequence[Any]", roles) if isinstance(roles, Sequence) else []
    return {one for one in named if isinstance(one, str)}


def author_of_client(user: Any, authentication: str | None, channel: str) -> Author:
    """Return the author of an answer that a client gave."""
    return Author(name_of(user), authentication if user is not None else None, channel)


def author_of_code(authentication: str | None) -> Author:
    """Return the author of an answer that the code that runs now gives: for a client or an operator, if one called."""
    call, channel = current.get(), "code"
    while call is not None:
        channel = f"code {call.actor.address}" if channel == "code" else channel
        if call.client is OPERATOR:
            return Author("operator", "operator token", channel)
        if call.client is not None:
            return author_of_client(getattr(call.client, "user", None), authentication, channel)
        call = call.caller
    return Author(None, None, channel)


def name_of(user: Any) -> str | None:
    """Return the id of a user, for a log line or a decision; `None` without a user."""
    if user is None:
        return None
    id: Any = getattr(user, "id", None)
    return id if isinstance(id, str) else repr(user)[:LONGEST_NAME]


LONGEST_NAME = 200
