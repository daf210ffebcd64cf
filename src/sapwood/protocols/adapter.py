"""What a protocol adds to an app: paths below its agents, paths of the server, and agents of its own."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Any, ClassVar, NamedTuple, cast

from sapwood.capabilities.connections import HttpOnly
from sapwood.clock import Clock
from sapwood.errors import UsageError
from sapwood.kernel.actors.actor import Actor
from sapwood.protocols.exchange import Exchange
from sapwood.settings import Settings

if TYPE_CHECKING:
    from starlette.requests import Request
    from starlette.responses import Response

    from sapwood.agent import Agent


class Place(NamedTuple):
    """The root that answers a request, and the path that it receives."""

    cls: type[Agent[Any]]
    name: str | None
    """`None` means a new root with a random name."""
    rest: str = "/"


class Adapter:
    """One protocol of `App(protocols=…)`. Subclass it to speak another one.

    An adapter answers inside the agent that a request is for, on the node that runs it. So authentication, every hook
    on the way, limits and durability hold for a protocol as for every other client.
    """

    paths: tuple[str, ...] = ()
    """The paths below an agent that it answers, such as `/ag-ui`. With a slash at its end, one means all under it."""
    roots: tuple[str, ...] = ()
    """The paths of the server that it answers, with everything below them, such as `/v1`. See `locate`."""
    public: tuple[str, ...] = ()
    """Those of `roots` that clients reach without authentication, such as metadata for clients that sign in."""
    agents: ClassVar[tuple[type[Agent[Any]], ...]] = ()
    """Root classes of its own. No client reaches them by their URL."""

    async def locate(self, request: Request, agents: Sequence[type[Agent[Any]]]) -> Place | Response:
        """Return the root that answers a request to one of `roots`, or a response. Override it.

        `agents` are the root classes of the app. `request.scope["user"]` is the user, and the body can be read.
        """
        raise NotImplementedError

    def challenge(self, request: Request) -> str | None:
        """Return the header `WWW-Authenticate` for a client of `roots` without a valid user. Override it."""
        return None

    def refusal(self, status: int, text: str) -> bytes | None:
        """Return the JSON body of an error that is not its own, for a path in `roots`. `None` sends the text.

        These are the errors of authentication, authorization, hooks and limits. Override it.
        """
        return None

    async def answer(self, request: Request, exchange: Exchange) -> Response | None:
        """Answer a request to one of `paths`, inside the agent. `None` if it is for something else. Override it."""
        raise NotImplementedError


class AdapterRequests(HttpOnly):
    """The requests to one agent that its app's protocols answer."""

    def __init__(self, actor: Actor) -> None:
        self._actor = actor
        self._adapters = actor.host.shared(Adapters).adapters

    async def request(self, request: Any) -> Any:
        """Answer a request of a protocol; None if it is for something else."""
        path: str = request.scope["path"]
        for adapter in self._adapters:
            if answers(adapter, path) and (answer := await adapter.answer(request, Exchange(self._actor, request))):
                return answer
        return None


class Adapters:
    """The protocols of one app."""

    def __init__(self, settings: Settings, clock: Clock) -> None:
        self.adapters: tuple[Adapter, ...] = ()


def answers(adapter: Adapter, path: str) -> bool:
    """Return whether a protocol answers a path below an agent."""
    return path in adapter.paths or any(one.endswith("/") and path.startswith(one) for one in adapter.paths)


def adapter_of(adapters: Sequence[Adapter], path: str) -> Adapter | None:
    """Return the protocol that answers a path of the server; `None` if none does."""
    for adapter in adapters:
        if any(path == root or path.startswith(f"{root}/") for root in adapter.roots):
            return adapter
    return None


def check_adapters(adapters: Sequence[Adapter]) -> None:
    """Refuse what is no protocol, and two protocols for one path."""
    seen: dict[str, Adapter] = {}
    given: object = adapters
    if isinstance(given, Adapter):
        name = type(given).__name__
        raise UsageError(f"App(protocols=…) must be a list of protocols. Write protocols=[{name}(…)].")
    for adapter in adapters:
        if not isinstance(cast(object, adapter), Adapter):
            raise UsageError(f"App(protocols=…) must be a list of protocols, such as AgUi(), got {adapter!r}.")
        for path in (*adapter.paths, *adapter.roots):
            if (other := seen.setdefault(path, adapter)) is not adapter:
                names = f"{type(other).__name__} and {type(adapter).__name__}"
                raise UsageError(f"{names} both answer {path}: leave one of them out of App(protocols=…).")
