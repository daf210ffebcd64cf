"""A question of an agent: the tool call it is about or what its code asks, who may answer it, and the answer."""

from __future__ import annotations

import hashlib
from collections.abc import Awaitable, Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Literal, TypeAlias, cast
from urllib.parse import quote, unquote

import msgspec

from sapwood.address import Address, PathSegment
from sapwood.errors import InvalidArguments, InvalidName
from sapwood.kernel.marshal.call import OPERATOR, current, id_of
from sapwood.kernel.marshal.json_schemas import problem_of
from sapwood.roles import AnyClient, Roles

MAX_SHOWN = 80
"""How many characters of a wrong id an error shows."""
Kind: TypeAlias = Literal["approval", "client", "choice", "text", "form"]


def parse_full_id(text: str) -> tuple[tuple[PathSegment, ...], str]:
    """Return the path and the id that `Question.full_id` is made of."""
    path, _, id = text.rpartition("/")
    try:
        return Address.parse(path).segments if path else (), unquote(id, errors="strict")
    except (InvalidName, UnicodeDecodeError):
        raise InvalidArguments(f"{text[:MAX_SHOWN]!r} is not the full_id of a question.") from None


class _OnlyId(msgspec.Struct):
    id: str


@dataclass(frozen=True, slots=True)
class Question:
    """A question to a person: whether a tool call may run, or what the code of an agent asks."""

    id: str
    """The id of the question. Of a question about a tool call, the id of the call."""
    tool: str = ""
    """The name of the tool, if the question is about a tool call."""
    arguments: Any = None
    """The arguments of that call."""
    path: tuple[PathSegment, ...] = ()
    """The path to the agent that asks, from the agent that lists the question. Empty if they are the same."""
    kind: Kind = "approval"
    """`approval` if a person must allow a tool call, `client` if a client must run it. Of a question that code asks:
    `choice`, `text` or `form`."""
    prompt: str = ""
    """The text of a question that code asks."""
    options: tuple[str, ...] | None = None
    """What to choose from, if the kind is `choice`."""
    schema: dict[str, Any] | None = None
    """The JSON schema of the answer, if the kind is `form`."""
    roles: tuple[str, ...] | None = None
    """Which roles may answer a question that code asks, or allow a call to an MCP server. Empty: every client.
    `None`: the question does not say."""
    remote: tuple[PathSegment, ...] | None = None
    """If another server executes the agent that asks: the path to it there, from the agent that executes the run.
    `path` then leads to the sub-agent that stands for that run."""
    digest: str = field(default="", compare=False)
    """SHA-256 of what is shown: tool and arguments, or prompt, options and schema. An answer names it, so that it
    cannot answer anything else."""

    @classmethod
    def about(cls, id: str, tool: str, arguments: Any, kind: Kind) -> Question:
        """Return the question about a tool call, with its digest."""
        return cls(id, tool, arguments, kind=kind, digest=_digest([tool, arguments]))

    @classmethod
    def from_code(
        cls,
        prompt: str,
        options: tuple[str, ...] | None,
        schema: dict[str, Any] | None,
        roles: tuple[str, ...] | None,
    ) -> Question:
        """Return a question that code asks, with its digest and without an id."""
        kind = "choice" if options is not None else "text" if schema is None else "form"
        digest = _digest([prompt, options, schema])
        return cls("", kind=kind, prompt=prompt, options=options, schema=schema, roles=roles, digest=digest)

    @property
    def full_id(self) -> str:
        """The path and the id as one text, which names the question among all below the agent that lists it."""
        id = quote(self.id, safe="")
        return f"{Address(self.path)}/{id}" if self.path else id

    @property
    def is_from_code(self) -> bool:
        """Whether code asks it, and not a tool call."""
        return self.kind in ("choice", "text", "form")

    def shown(self) -> dict[str, Any]:
        """Return what a person sees of a question that code asks."""
        shown = {"prompt": self.prompt, "options": self.options, "schema": self.schema}
        return {name: one for name, one in shown.items() if one is not None}

    def problem_of(self, value: Any) -> str | None:
        """Return in a sentence why a value is no answer to what code asks; `None` if it is one."""
        if self.options is not None:
            return None if value in self.options else f"The answer must be one of {', '.join(map(repr, self.options))}."
        if self.schema is not None:
            return problem_of(self.schema, value)
        return None if isinstance(value, str) else "The answer must be a text."


_stored_ids = msgspec.json.Decoder(list[_OnlyId])


def stored_ids(body: str | None) -> tuple[str, ...]:
    """Return the ids of the questions that the index of a tree has of one agent."""
    return () if body is None else tuple(one.id for one in _stored_ids.decode(body))


def _digest(shown: Any) -> str:
    return hashlib.sha256(msgspec.json.encode(shown, order="sorted")).hexdigest()


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
    """Other arguments, a reason, the result of the tool or the answer to what code asks, or the error."""


Verdict: TypeAlias = bool | str
"""`True` allows. `False` refuses, and a text refuses with a reason."""
Rule: TypeAlias = Callable[[Any, Question], Verdict | Awaitable[Verdict]]
Approvers: TypeAlias = Roles | Rule
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
    call, client = current.get(), _calling_client()
    channel = "code" if call is None else f"code {call.actor.address}"
    if client is None:
        return Author(None, None, channel)
    if client is OPERATOR:
        return Author("operator", "operator token", channel)
    return author_of_client(getattr(client, "user", None), authentication, channel)


def user_of_code() -> str | None:
    """Return the id of the user whose client called the code that runs now, or whose message began the turn that it
    is a part of; `"operator"` for an operator."""
    call, client = current.get(), _calling_client()
    if client is OPERATOR:
        return "operator"
    return id_of(getattr(client, "user", None)) or (None if call is None else call.user)


def _calling_client() -> object:
    """Return the client, or `OPERATOR`, that called the code that runs now; `None` if none did."""
    call = current.get()
    return None if call is None else next((one.client for one in call.lineage() if one.client is not None), None)


def name_of(user: Any) -> str | None:
    """Return the id of a user, for a log line or a decision; `None` without a user."""
    return None if user is None else id_of(user) or f"a {type(user).__name__} without an id"


LONGEST_NAME = 200
