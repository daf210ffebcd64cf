"""What a client holds of an agent on a server: its methods, its state, its messages."""

from __future__ import annotations

from collections.abc import AsyncGenerator, Awaitable, Callable
from typing import Any, Generic, Protocol, TypeVar, cast

from sapwood.address import Address
from sapwood.client.calls import RemoteMethod, encode
from sapwood.client.conversation import Conversation
from sapwood.kernel.context import current, deadline_of
from sapwood.wire.methods import ExposedMethod

A_co = TypeVar("A_co", covariant=True)
S = TypeVar("S")


class HasState(Protocol[S]):
    """An agent with a state; by it a type checker finds what `Agent[State]` was given."""

    initial_state: S


class RemoteAgent(Generic[A_co]):
    """An agent on a server, through a connection that comes back by itself when it is lost.

    What was sent and not answered when it was lost fails with `Unavailable`, because nobody
    knows whether it was done. What was not sent yet waits for the connection.
    """

    def __init__(self, talk: Conversation, get_methods: Callable[[], Awaitable[list[ExposedMethod]]]) -> None:
        self._talk = talk
        self._get_methods = get_methods
        self._stub = RemoteStub(talk)

    @property
    def stub(self) -> A_co:
        """The agent's exposed methods: await them, or read those that stream with ``async for``."""
        return cast(A_co, self._stub)

    async def methods(self) -> list[ExposedMethod]:
        """Return the methods that the agent exposes, as the server describes them. Needs `sapwood[remote]`.

        This is a request of its own, not a message on the socket. Raises `Refused` if `on_before_request` or
        `on_before_watch` refuses it.
        """
        return await self._get_methods()

    @property
    def state(self: RemoteAgent[HasState[S]]) -> S:
        """The agent's state, as it was last heard of; None if it has none. Never change it in place."""
        return self._talk.state()

    def states(self: RemoteAgent[HasState[S]]) -> AsyncGenerator[S, None]:
        """Yield the state as it is, then every newer one. Whoever reads slowly misses some, never the last."""
        return self._talk.states()

    async def set_state(self: RemoteAgent[HasState[S]], state: S) -> None:
        """Replace the agent's state; return when it is kept. Raises `Refused` if the agent does not take it."""
        await self._talk.set_state(state)

    async def send(self, message: object) -> None:
        """Send a message to the agent's `on_message`: text and bytes as they are, anything else as JSON."""
        if isinstance(message, bytearray | memoryview):
            message = bytes(cast("bytes", message))
        await self._talk.send(message if isinstance(message, str | bytes) else encode(message, "A message").decode())

    def messages(self) -> AsyncGenerator[str | bytes, None]:
        """Yield what the agent sends, beginning with what came before anybody read; each goes to one reader."""
        return self._talk.messages()

    async def ready(self) -> None:
        """Return when the client is connected and knows the agent's state; after a loss, when it is so again."""
        await self._talk.link.ready()

    @property
    def is_connected(self) -> bool:
        """Whether it is connected now."""
        return self._talk.link.is_greeted

    @property
    def id(self) -> str:
        """What this client calls itself, also after a reconnect: the agent sees it as `connection.id`."""
        return self._talk.id

    @property
    def address(self) -> Address:
        """Whom it asked for: all steps from the root."""
        return self._talk.address

    @property
    def name(self) -> str:
        """The agent's own name, as the server says it."""
        return self._talk.name

    @property
    def agent(self) -> str:
        """The agent's class, as the server says it and as it stands in URLs."""
        return self._talk.agent

    def __repr__(self) -> str:
        return f"<remote agent {self.address}>"


class RemoteStub:
    """The methods of an agent on a server, each awaited."""

    _talk: Conversation

    def __init__(self, talk: Conversation) -> None:
        self.__dict__["_talk"] = talk

    def __getattr__(self, name: str) -> Callable[..., Any]:
        if name == "_talk":  # a stub without one is being made by somebody else, such as pickle
            raise AttributeError(name)
        talk = self._talk
        method = RemoteMethod(talk.kind.method(name))

        # Arguments are written down now, not when it is awaited: what the caller changes in between must not show.
        def call(*args: object, **named: object) -> Any:
            return talk.call(method, method.arguments(args, named))

        def stream(*args: object, **named: object) -> Any:
            return talk.stream(method, method.arguments(args, named), deadline_of(current.get()))

        chosen = self.__dict__[name] = stream if method.streams else call
        return chosen

    def __setattr__(self, name: str, value: object) -> None:
        raise AttributeError("A stub has no attributes to set; call a method of the agent instead.")

    def __repr__(self) -> str:
        return f"<stub {self._talk.address}>"
