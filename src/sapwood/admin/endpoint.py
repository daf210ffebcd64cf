"""What one endpoint of the admin API is: its parameters, the scope that it needs, and what answers it."""

from __future__ import annotations

from collections.abc import AsyncIterator, Awaitable, Callable, Sequence
from dataclasses import dataclass
from typing import Any, Generic, NamedTuple, TypeAlias, TypeVar

import msgspec

from sapwood.address import Address
from sapwood.admin.access import Access, Scope
from sapwood.admin.admin import Admin
from sapwood.admin.content import Content
from sapwood.errors import InvalidArguments, Refused
from sapwood.kernel.node.node import Node
from sapwood.kernel.trees.tree import Tree
from sapwood.storage.database import Database

MAX_LIMIT = 500
"""Rows of a page at most."""
READS = frozenset({None, "look", "content"})
"""Scopes of requests that change nothing."""
PATIENCE = 3.0
"""Seconds that another process is given to say what it knows; one that is stuck is left out."""
LONG_PATIENCE = 60.0
"""And how many if it has to read all its trees, as some have the first time."""


class Params(msgspec.Struct, forbid_unknown_fields=True, kw_only=True):
    """The parameters of an endpoint. Those of most have an `address`."""


class OneAgent(Params):
    """The parameters of an endpoint about one agent."""

    address: str


class SeveralAgents(Params):
    """The parameters of an endpoint about several agents."""

    addresses: list[str]


class MaybeAgent(Params):
    """The parameters of an endpoint about one agent, or about all."""

    address: str | None = None


class AgentPage(OneAgent):
    """The parameters of an endpoint that lists something of one agent by pages."""

    after: str | None = None
    limit: int = 100


class Page(MaybeAgent):
    """The parameters of an endpoint that lists by pages."""

    after: str | None = None
    limit: int = 100


class AdminCall(NamedTuple):
    """One request to the admin API, at the node that answers it."""

    node: Node
    admin: Admin
    access: Access

    async def read(self, address: Address) -> tuple[Tree, Database]:
        """Return the tree and the database of an agent, which stays asleep if it is. What it wrote is committed."""
        tree, _, stem = await self.admin.lookup.find(address)
        tree.slices.commit()
        return tree, self.admin.lookup.database(tree, stem)

    @property
    def content(self) -> Content:
        """What it may see of what agents and people wrote."""
        return Content(self.node, is_shown="content" in self.access.scopes)


Event: TypeAlias = tuple[str, Any]
"""One server-sent event: its name and its data."""
Answer: TypeAlias = dict[str, Any]
P = TypeVar("P", bound=Params)


@dataclass(frozen=True, slots=True)
class Endpoint(Generic[P]):
    """One endpoint."""

    name: str
    scope: Scope | None
    """`None` means that every token may ask."""
    params: type[P]
    answer: Callable[[AdminCall, P], Awaitable[Any]] | None = None
    """Returns the result, or a response."""
    stream: Callable[[AdminCall, P], AsyncIterator[Event]] | None = None
    """Yields server-sent events."""
    merge: Callable[[P, Sequence[Answer]], Answer] | None = None
    """Joins what the nodes answer that share the trees; `None` if a request without an address is for one node."""
    more: Callable[[P], Scope | None] = lambda _: None
    """Returns another scope that these parameters need."""
    of_class: Callable[[Node, P], Scope | None] = lambda _, __: None
    """Returns another scope that the class of the agent demands for these parameters."""
    patience: float = PATIENCE
    is_of_any_node: bool = False
    """Whether any node answers, whichever has the agent."""
    is_audited: bool = True
    """Whether a request that changes something is for the audit log."""

    needs_client: bool = False
    """Whether to cancel it when its client leaves."""

    def read(self, body: dict[str, Any], access: Access) -> P:
        """Return the parameters of a request that this access allows."""
        params = self.converted(body)
        self.check(params, access)
        return params

    def converted(self, body: dict[str, Any]) -> P:
        """Return the parameters of a request."""
        try:
            params = msgspec.convert(body, self.params)
        except msgspec.ValidationError as error:
            raise InvalidArguments(f"The parameters of {self.name!r} do not fit: {error}.") from None
        if not 1 <= (limit := getattr(params, "limit", 1)) <= MAX_LIMIT:
            raise InvalidArguments(f"`limit` must be from 1 to {MAX_LIMIT}, got {limit}.")
        return params

    def is_act(self, params: P) -> bool:
        """Return whether a request changes something, and is for the audit log."""
        return (
            self.is_audited and not getattr(params, "preview", False) and not {self.scope, self.more(params)} <= READS
        )

    def check_class(self, node: Node, params: P, access: Access) -> None:
        """Raise `Refused` if an access lacks the scope that the class of the agent demands."""
        if (scope := self.of_class(node, params)) is not None:
            access.check(scope, self.name)

    def check(self, params: P, access: Access) -> None:
        """Raise `Refused` unless an access allows these parameters. A token limited to an agent is about that agent."""
        for scope in (self.scope, self.more(params)):
            if scope is not None:
                access.check(scope, self.name)
        if access.below is None:
            return
        if hasattr(params, "address") and getattr(params, "address", None) is None:
            params.address = str(access.below)  # pyright: ignore[reportAttributeAccessIssue]
            if hasattr(params, "below") and not self.is_act(params):
                params.below = True  # pyright: ignore[reportAttributeAccessIssue] - all that it may see
        if not (addresses := addresses_of(params)):
            if self.scope is None:
                return
            raise Refused(f"{self.name!r} needs a token that is not limited to {access.below}.")
        for address in addresses:
            if not access.covers(address):
                raise Refused(f"The token is limited to {access.below} and agents below it, got {address}.")


def addresses_of(params: Params) -> list[Address]:
    """Return the agents that parameters name."""
    named: list[str | None] = [getattr(params, "address", None), getattr(params, "other", None)]
    several: list[str] = getattr(params, "addresses", [])
    return [Address.parse(text) for text in (*named, *several) if text is not None]
