"""The class users extend to have a conversation. Signatures, docstrings, and lines that hand on."""

from __future__ import annotations

import importlib
import inspect
from collections.abc import AsyncIterator, Mapping, Sequence
from typing import TYPE_CHECKING, Any, ClassVar, Generic, cast

from typing_extensions import TypeVar

from sapwood.agent import Agent
from sapwood.chat.accepting import POLICIES, Accepting
from sapwood.chat.agent_tools import AgentTool, PersistentAgent
from sapwood.chat.chat_conversation import ChatConversation
from sapwood.chat.chat_turns import ChatTurns, messages_of
from sapwood.chat.chunks import Chunk
from sapwood.chat.conversation import Conversation
from sapwood.chat.model_check import check_class
from sapwood.chat.runs import ChatRuns
from sapwood.chat.talk import Talk
from sapwood.chat.tools import approvers_of, check_approvers
from sapwood.chat.transcript import UIMessage
from sapwood.chat.turns import Turn
from sapwood.errors import UsageError
from sapwood.kernel.namespace import Namespace
from sapwood.runs.clients import RunClients
from sapwood.runs.from_outside import RunsFromOutside
from sapwood.runs.method_list import ListedMethods
from sapwood.runs.question import Approvers
from sapwood.runs.questions import Questions
from sapwood.runs.registry import Run
from sapwood.runs.streaming import Watchers

if TYPE_CHECKING:
    from pydantic_ai import Agent as PydanticAgent
    from pydantic_ai.messages import ModelMessage

O = TypeVar("O", default=str)  # noqa: E741 - what it puts out

HOOKS = frozenset(
    {"on_child_finish", "before_turn", "before_step", "on_chunk", "before_tool_call", "after_tool_call", "on_turn_end"}
    | {"on_agent_start", "on_agent_complete", "on_agent_fail"}
    | {"compact", "respond", "get_model", "get_instructions"}
)
PLAIN_HOOKS = frozenset({"on_chunk", "get_model", "get_instructions"})
"""Those that are not awaited."""
SETTINGS = frozenset(
    {"model", "instructions", "tools", "output_type", "max_steps", "max_retries"}
    | {"model_settings", "loop", "concurrency", "debounce", "compact_above", "max_messages", "stall_timeout"}
)
SHOWN = frozenset({"send"})


class ChatAgent(Agent[Any], Generic[O], hooks=HOOKS, settings=SETTINGS, shows=SHOWN):
    """An agent that holds a conversation with a model.

    Set `model` and `instructions`; mark methods with `@tool`. What is said is kept in the agent's
    database, streamed to every client, and finished after a crash.

    `ChatAgent[Recipe]` names the `output_type`. The state has the type of `initial_state`.
    Everything to override is `async def`, but `get_model`, `get_instructions` and `on_chunk`,
    which are plain; `respond` is an async generator.
    """

    model: ClassVar[Any] = None
    """The model that answers: any of Pydantic AI's, or its name, such as `openai:gpt-5`."""
    instructions: ClassVar[str | None] = None
    """What the model is told before everything else."""
    tools: ClassVar[Sequence[Any]] = ()
    """Functions and toolsets that the model may use, beside the methods marked with `@tool`."""
    output_type: Any = str
    """What a turn ends with: text, a type that the model has to fill in, or what a function returns that it calls."""
    max_steps: ClassVar[int] = 20
    """How often the model may be asked in one turn."""
    model_settings: ClassVar[Any] = None
    """Temperature and the like, as Pydantic AI has them."""
    loop: ClassVar[PydanticAgent[Any, Any] | None] = None
    """A `pydantic_ai.Agent` of your own, to be used instead of one made from the above."""
    compact_above: ClassVar[int | None] = None
    """Tokens, roughly, above which what is old in the conversation is summarised for the model; None: never."""
    max_retries: ClassVar[int] = 3
    """How often in a row the model may be asked to mend what it said."""
    stall_timeout: ClassVar[float | None] = None
    """Seconds of silence after which a model that answers is cut off, and asked again; None: it may take for ever."""
    max_messages: ClassVar[int | None] = None
    """How many messages are kept; the oldest go first, from the model's memory too. None: all."""
    debounce: ClassVar[float] = 1.0
    """Seconds of silence after which a turn begins, if `concurrency` is `debounce`."""
    concurrency: ClassVar[str] = "queue"
    """What becomes of something said during a turn: `queue`, `latest`, `merge`, `drop`, `debounce` or `interrupt`."""

    _speaks = (Talk, RunClients, Watchers, Questions, ListedMethods, RunsFromOutside)
    _runs_as = ChatRuns
    _has_conversation = True

    turns = Namespace(ChatTurns, crosses=True)
    conversation = Namespace(ChatConversation, crosses=True)

    def __init_subclass__(cls, **kwargs: Any) -> None:
        _have_pydantic_ai(cls.__name__)
        super().__init_subclass__(**kwargs)
        if cls.concurrency not in POLICIES:
            raise UsageError(f"{cls.__name__}.concurrency is {cls.concurrency!r}; it can be {', '.join(POLICIES)}.")
        _check_hooks(cls)

    @classmethod
    def _brings(cls) -> list[type]:
        """Return the classes that the model may use: whatever else has their names, these are meant."""
        given: Any = cls.tools  # perhaps a property, which only an agent can answer
        tools = cast("Sequence[Any]", given if isinstance(given, Sequence) else ())
        return [one.cls for one in tools if isinstance(one, AgentTool | PersistentAgent)]

    @classmethod
    def _approvers_of(cls, tool: str) -> Approvers | None:
        return approvers_of(cls, tool)

    @classmethod
    def _check_setup(cls, *, has_users: bool) -> None:
        check_class(cls)
        if has_users:
            cls._check_approvers()

    @classmethod
    def _check_approvers(cls) -> None:
        check_approvers(cls)

    def get_model(self) -> Any:
        """Return the model that answers. Override it to choose one by name, user or time."""
        return self.model

    def get_instructions(self) -> Any:
        """Return what the model is told before everything else. Override it to have it change."""
        return self.instructions

    async def before_turn(self, turn: Turn) -> None:
        """Called before a turn begins; raise to refuse it. Override it."""

    async def before_step(self, turn: Turn, step: int) -> None:
        """Called before the model is asked, each time. Override it."""

    def on_chunk(self, chunk: Chunk) -> None:
        """Called with everything that is streamed. Override it."""

    async def before_tool_call(self, tool: str, arguments: dict[str, Any]) -> None:
        """Called before a tool runs; raise to refuse it. Override it."""

    async def after_tool_call(self, tool: str, arguments: dict[str, Any], result: Any) -> None:
        """Called when a tool has returned. Override it."""

    async def on_turn_end(self, turn: Turn) -> None:
        """Called when a turn is over; again if the process died in it. Override it."""

    async def on_agent_start(self, turn: Turn) -> None:
        """Called when the agent begins to work on a turn, also as another agent's sub-agent. Override it."""

    async def on_agent_complete(self, turn: Turn) -> None:
        """Called when the agent has completed a turn. Override it."""

    async def on_agent_fail(self, turn: Turn) -> None:
        """Called when a turn failed or was cancelled. Override it."""

    async def on_child_finish(self, run: Run) -> None:
        """Called when a non-blocking child that the model keeps is done with a task, or was given up. Override it.

        It is called also if the process died meanwhile. A method without awaits is called exactly
        once; if it raises, it is called again.
        """

    async def compact(self, messages: list[ModelMessage]) -> str | None:
        """Return a summary of messages that have become too many; None has the model write one. Override it."""

    async def respond(self, turn: Turn) -> AsyncIterator[str | Chunk]:
        """Answer without a model of Pydantic AI's: yield text, or chunks of an AI SDK stream. Override it."""
        raise NotImplementedError
        yield ""

    async def send(self, message: str | Sequence[UIMessage]) -> Turn:
        """Send a message and return the turn that answers it, once it has ended or waits for an answer.

        `message` is a text, or messages in the format of the AI SDK.
        """
        talk = self._actor.of(Conversation)
        talk.check_may_wait()
        return await talk.over(self._actor.of(Accepting).ask(messages_of(message)).number)

    def _gave_up(self, method: str, arguments: Mapping[str, Any], error: str) -> None:
        if method == "_sapwood_drive_turn":
            self._actor.of(Conversation).gave_up(arguments["number"], error)
        else:
            super()._gave_up(method, arguments, error)

    def _notified(self, run: Run) -> None:
        self._actor.of(Accepting).note_run(run)

    async def _sapwood_drive_turn(self, number: int) -> None:
        """Drive a turn to its end; the framework's own."""
        await self._actor.of(Conversation).driver.drive(number)

    async def _sapwood_begin_turn(self) -> None:
        """Let the next turn begin; the framework's own."""
        self._actor.of(Accepting).begin_next(is_silent=True)


def _check_hooks(cls: type) -> None:
    """Refuse now what would fail every turn, with words that do not tell why."""
    for name in HOOKS:
        function = inspect.getattr_static(cls, name)
        if not inspect.isfunction(function):
            continue
        is_async = inspect.iscoroutinefunction(function)
        if name == "respond":
            if is_async:
                raise UsageError(f"{cls.__name__}.respond returns; it has to `yield` what it says.")
        elif name in PLAIN_HOOKS:
            if is_async:
                raise UsageError(f"{cls.__name__}.{name} is not awaited: write `def`, not `async def`.")
        elif not is_async:
            raise UsageError(f"{cls.__name__}.{name} has to be `async def`.")


def _have_pydantic_ai(name: str) -> None:
    """Import it now, and have it build what it puts off, and not in the middle of the first turn."""
    try:
        messages = importlib.import_module("pydantic_ai.messages")
    except ImportError as error:
        raise UsageError(f"{name} is a chat agent, which needs Pydantic AI: pip install 'sapwood[chat]'.") from error
    messages.ModelMessagesTypeAdapter.validate_json("[]")
