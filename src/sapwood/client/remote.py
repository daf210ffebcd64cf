"""What a client holds of an agent on a server: its methods, its state, its messages."""

from __future__ import annotations

from collections.abc import AsyncGenerator, Awaitable, Callable
from typing import Any, Generic, Protocol, TypeVar, cast

from sapwood.address import Address
from sapwood.client.calls import RemoteMethod, encode
from sapwood.client.conversation import Conversation
from sapwood.kernel.marshal.call import current, deadline_of
from sapwood.wire.methods import ExposedMethod

A_co = TypeVar("A_co", covariant=True)
S = TypeVar("S")


class HasState(Protocol[S]):
    """An agent with a state; by it a type checker finds what `Agent[State]` was given."""

    initial_state: S


class RemoteAgent(Generic[A_co]):
    """An agent on a server, over a connection that reconnects automatically.

    If the connection is lost, calls without a response fail with `Unavailable`: they may or may not have been
    executed. Calls that were not sent yet wait for the next connection.
    """

    def __init__(self, talk: Conversation, get_methods: Callable[[], Awaitable[list[ExposedMethod]]]) -> None:
        self._talk = talk
        self._get_methods = get_methods
        self._stub = RemoteStub(talk)

    @property
    def stub(self) -> A_co:
        """The exposed methods of the agent. Await them, or read streams with ``async for``."""
        return cast(A_co, self._stub)

    async def methods(self) -> list[ExposedMethod]:
        """Return the methods that the agent exposes, as the server describes them. Needs `sapwood[remote]`.

        This is a separate HTTP request, not a message on the socket. Raises `Refused` if `on_before_request` or
        `on_before_watch` refuses it.
        """
        return await self._get_methods()

    @property
    def state(self: RemoteAgent[HasState[S]]) -> S:
        """The last received state of the agent; `None` if it has no state. Do not change it in place."""
        return self._talk.state()

    def states(self: RemoteAgent[HasState[S]]) -> AsyncGenerator[S, None]:
        """Yield the current state, then each newer one. A slow reader may miss some states, but never the last."""
        return self._talk.states()

    async def set_state(self: RemoteAgent[HasState[S]], state: S) -> None:
        """Replace the agent's state and wait until it is durable. Raises `Refused` if the agent refuses it."""
        await self._talk.set_state(state)

    async def send(self, message: object) -> None:
        """Send a message to the agent's `on_message`: `str` and `bytes` as they are, anything else as JSON."""
        if isinstance(message, bytearray | memoryview):
            message = bytes(cast("bytes", message))
        await self._talk.send(message if isinstance(message, str | bytes) else encode(message, "A message").decode())

    def messages(self) -> AsyncGenerator[str | bytes, None]:
        """Yield the messages of the agent, unread ones first. Each message goes to one reader."""
        return self._talk.messages()

    async def ready(self) -> None:
        """Wait until the client is connected, or connected again, and has the agent's state."""
        await self._talk.link.ready()

    @property
    def is_connected(self) -> bool:
        """Whether the client is connected."""
        return self._talk.link.is_greeted

    @property
    def id(self) -> str:
        """The id of this client, stable over reconnects. The agent sees it as `connection.id`."""
        return self._talk.id

    @property
    def address(self) -> Address:
        """The requested address: all path segments from the root."""
        return self._talk.address

    @property
    def name(self) -> str:
        """The name of the agent, from the server."""
        return self._talk.name

    @property
    def agent(self) -> str:
        """The class of the agent, from the server and in the form of URLs."""
        return self._talk.agent

    def __repr__(self) -> str:
        return f"<remote agent {self.address}>"


class RemoteStub:
    """The methods of an agent on a server, each awaited."""

    _talk: Conversation

    def __init__(self, talk: Conversation) -> None:
        self.__dict__["_talk"] = talk

    def __getattr__(self, name: str) -> Callable[..., Any]:
        if name == "_talk":  # a stub without one is being made by other code, such as pickle
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
        raise AttributeError("The attributes of a stub cannot be set. Call a method of the agent instead.")

    def __repr__(self) -> str:
        return f"<stub {self._talk.address}>"
