"""The class users extend to have a conversation. Signatures, docstrings, and lines that hand on."""

from __future__ import annotations

import importlib
import inspect
from collections.abc import AsyncIterator, Callable, Coroutine, Mapping, Sequence
from typing import TYPE_CHECKING, Any, ClassVar, Generic, cast

from typing_extensions import TypeVar

from sapwood.agent import Agent
from sapwood.chat.chat_conversation import ChatConversation
from sapwood.chat.chat_hooks import ChatHooks
from sapwood.chat.chat_turns import ChatTurns
from sapwood.chat.models.model_check import check_alternatives, check_class
from sapwood.chat.models.user_ledger import TurnUsage
from sapwood.chat.store.chunks import Chunk
from sapwood.chat.store.outputs import Output, declare
from sapwood.chat.store.transcript import UIMessage
from sapwood.chat.store.turns import Turn
from sapwood.chat.tools.agent_tools import AgentTool, PersistentAgent
from sapwood.chat.tools.tools import Toolbox, check_approvers, check_tools
from sapwood.chat.turn.compaction import Compaction
from sapwood.chat.turn.conversation import Conversation
from sapwood.chat.turn.intake import POLICIES, Intake
from sapwood.chat.turn.limit_waits import LimitWaits
from sapwood.chat.turn.user_reservations import UserReservations
from sapwood.errors import UsageError
from sapwood.kernel.actors.actor import Actor
from sapwood.kernel.marshal.namespace import Namespace
from sapwood.runs.tables.runnable import O_co

if TYPE_CHECKING:
    from pydantic_ai import Agent as PydanticAgent
    from pydantic_ai.messages import ModelMessage
    from pydantic_ai.output import OutputSpec

O = TypeVar("O", default=str)  # noqa: E741 - output
S = TypeVar("S", default=Any)

HOOKS = frozenset(
    {"before_turn", "after_turn", "before_step", "on_chunk", "before_tool_call", "after_tool_call"}
    | {"compact", "respond", "get_model", "get_instructions"}
)
PLAIN_HOOKS = frozenset({"on_chunk", "get_model", "get_instructions"})
"""Those that are not awaited."""
SETTINGS = frozenset(
    {"model", "instructions", "tools", "output_type", "max_steps", "max_retries"}
    | {"model_settings", "loop", "concurrency", "debounce", "compact_above", "max_messages", "stall_timeout"}
    | {"capabilities", "page_messages", "page_bytes", "alternative_models"}
)
SHOWN = frozenset({"send"})


class ChatAgent(Agent[S], Generic[O, S], hooks=HOOKS, settings=SETTINGS, shows=SHOWN):
    """An agent that holds a conversation with a model.

    Set `model` and `instructions`, and mark methods with `@tool`. Messages are stored in the agent's
    database and streamed to every client. An interrupted turn continues after a crash.

    `ChatAgent[Recipe]` ends its turns with a `Recipe` instead of text, and `ChatAgent[Recipe, Kitchen]` also has the
    state `Kitchen`. Without brackets, the output is text, and the state has the type of `initial_state`.
    Hooks are `async def`, except `get_model`, `get_instructions` and `on_chunk`, which are
    plain methods, and `respond`, which is an async generator.
    """

    model: ClassVar[Any] = None
    """The model: any Pydantic AI model, or its name, such as `openai:gpt-5`."""
    alternative_models: ClassVar[Mapping[str, Any]] = {}
    """Models that an operator may choose for a single turn instead, by the names that the studio shows."""
    instructions: ClassVar[str | None] = None
    """The system instructions for the model."""
    tools: ClassVar[Sequence[Any]] = ()
    """Functions and toolsets that the model may use, in addition to the methods marked with `@tool`."""
    capabilities: ClassVar[Sequence[Any]] = ()
    """Capabilities of Pydantic AI, in addition to those of `loop`. Run-level hooks mean a turn."""
    output_type: OutputSpec[O] = cast(Any, str)
    """How the model produces the output, where its type in the brackets is not enough: a function, or several types."""
    max_steps: ClassVar[int] = 20
    """Maximum number of model requests in one turn."""
    model_settings: ClassVar[Any] = None
    """The `ModelSettings` of Pydantic AI, such as the temperature."""
    loop: ClassVar[PydanticAgent[Any, Any] | None] = None
    """Your own `pydantic_ai.Agent`. It replaces the one that sapwood creates from the settings above."""
    compact_above: ClassVar[int | None] = None
    """Approximate number of tokens above which old messages are shortened for the model. `None` means never."""
    max_retries: ClassVar[int] = 3
    """Maximum number of consecutive retries when the model returns an invalid answer."""
    stall_timeout: ClassVar[float | None] = 600.0
    """Seconds without output after which a model request is cancelled and retried. `None` means no timeout. It applies
    to `respond` only if a class sets it."""
    max_messages: ClassVar[int | None] = None
    """Maximum number of stored messages. The oldest are deleted first, for the model too. `None` means no limit."""
    page_messages: ClassVar[int] = 100
    """Maximum number of messages that a client receives at once: the newest when it connects, older ones on request."""
    page_bytes: ClassVar[int] = 1_000_000
    """Maximum size of these messages together. The last message of the user and its answer are always sent."""
    debounce: ClassVar[float] = 1.0
    """Seconds without a new message after which a turn starts, if `concurrency` is `debounce`."""
    concurrency: ClassVar[str] = "queue"
    """How to handle messages during a turn: `queue`, `latest`, `merge`, `drop`, `debounce` or `interrupt`."""

    _hooks_class = ChatHooks
    _toolbox: ClassVar[Callable[[Actor], Toolbox]] = Toolbox

    _output: ClassVar[Output]

    turns: Namespace[ChatTurns[O]] = Namespace(ChatTurns, crosses=True)
    conversation = Namespace(ChatConversation, crosses=True)

    def __init_subclass__(cls, **kwargs: Any) -> None:
        _have_pydantic_ai(cls.__name__)
        cls._output = declare(cls, ChatAgent)
        super().__init_subclass__(**kwargs)
        if cls.concurrency not in POLICIES:
            raise UsageError(
                f"{cls.__name__}.concurrency must be one of {', '.join(POLICIES)}, got {cls.concurrency!r}."
            )
        check_alternatives(cls)
        _check_hooks(cls)
        check_tools(cls, cls.tools)

    if TYPE_CHECKING:  # a run of a chat agent is a turn

        def on_run(self, input: Any, /) -> Coroutine[Any, Any, O]: ...

    @classmethod
    def _type_arguments(cls) -> Mapping[Any, Any]:
        output = getattr(cls, "_output", None)  # the framework's own class has none
        return {} if output is None else {O: output.crosses, O_co: output.crosses}

    @classmethod
    def _brings(cls) -> list[type]:
        """Return the classes that the model may use: whatever else has their names, these are meant."""
        given: Any = cls.tools  # perhaps a property, which only an agent can answer
        tools = cast("Sequence[Any]", given if isinstance(given, Sequence) else ())
        return [one.cls for one in tools if isinstance(one, AgentTool | PersistentAgent)]

    @classmethod
    def _check_setup(cls, *, has_users: bool) -> None:
        if cls.respond is ChatAgent.respond and cls.get_model is ChatAgent.get_model:
            check_class(cls)
        if has_users:
            check_approvers(cls)

    def get_model(self) -> Any:
        """Return the model. Override it to choose one by name, user or time."""
        return self.model

    def get_instructions(self) -> Any:
        """Return the system instructions for the model. Override it to compute them."""
        return self.instructions

    async def before_turn(self, turn: Turn[O]) -> None:
        """Called before a turn starts, also a turn that is a run of another agent. Raise to refuse it. Override it.

        If the process dies before the model has answered, it is called again.
        """

    async def before_step(self, turn: Turn[O], step: int) -> None:
        """Called before each model request. Override it."""

    def on_chunk(self, chunk: Chunk) -> None:
        """Called with each chunk that is streamed. Override it."""

    async def before_tool_call(self, tool: str, arguments: dict[str, Any]) -> None:
        """Called before a tool runs. Raise to refuse the call. Override it."""

    async def after_tool_call(self, tool: str, arguments: dict[str, Any], result: Any) -> None:
        """Called when a tool has returned. Override it."""

    async def after_turn(self, turn: Turn[O]) -> None:
        """Called when a turn has ended: completed, failed or cancelled. See `turn.status`. Override it.

        It is called once for each turn that started, and again if the process dies during the call. An exception is
        logged and does not change the turn.
        """

    async def compact(self, messages: list[ModelMessage]) -> str | None:
        """Return a summary of old messages. Return `None` to let the model write the summary. Override it."""

    async def respond(self, turn: Turn[O]) -> AsyncIterator[str | Chunk]:
        """Answer without Pydantic AI: yield text, or chunks of an AI SDK stream. Override it."""
        raise NotImplementedError
        yield ""

    async def send(self, message: str | Sequence[UIMessage]) -> Turn[O]:
        """Send a message and return the turn that answers it, once it has ended or waits for an answer.

        `message` is a text, or messages in the format of the AI SDK.
        """
        talk = self._actor.of(Conversation)
        talk.check_may_wait()
        row = await self._actor.of(Intake).receive(message)
        return await talk.over(row.number)

    async def _sapwood_drive_turn(self, number: int) -> None:
        """Drive a turn to its end; the framework's own."""
        await self._actor.of(Conversation).driver.drive(number)

    async def _sapwood_leave_limit(self, turn: str) -> None:
        """Note that a turn no longer waits for a limit; the framework's own."""
        await self._actor.of(LimitWaits).leave(turn)

    async def _sapwood_settle_user(self, settlement: tuple[str, TurnUsage]) -> None:
        """Settle with the ledger of a user; the framework's own."""
        await self._actor.of(UserReservations).deliver(*settlement)

    async def _sapwood_compact(self, number: int) -> None:
        """Compact the conversation after a turn; the framework's own."""
        await self._actor.of(Compaction).after_turn(number)

    async def _sapwood_begin_turn(self) -> None:
        """Let the next turn begin; the framework's own."""
        self._actor.of(Intake).begin_next(is_silent=True)


def _check_hooks(cls: type) -> None:
    """Refuse now what would fail every turn, with words that do not tell why."""
    for name in HOOKS:
        function = inspect.getattr_static(cls, name)
        if not inspect.isfunction(function):
            continue
        is_async = inspect.iscoroutinefunction(function)
        if name == "respond":
            if is_async:
                raise UsageError(
                    f"{cls.__name__}.respond must be an async generator. `yield` the answer instead of returning it."
                )
        elif name in PLAIN_HOOKS:
            if is_async:
                raise UsageError(f"{cls.__name__}.{name} must be a plain method. Write `def`, not `async def`.")
        elif not is_async:
            raise UsageError(f"{cls.__name__}.{name} must be `async def`.")


def _have_pydantic_ai(name: str) -> None:
    """Import it now, and have it build what it puts off, and not in the middle of the first turn."""
    try:
        messages = importlib.import_module("pydantic_ai.messages")
    except ImportError as error:
        raise UsageError(
            f"{name} is a chat agent and requires Pydantic AI. Run: pip install 'sapwood[chat]'."
        ) from error
    messages.ModelMessagesTypeAdapter.validate_json("[]")
