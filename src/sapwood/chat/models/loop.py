"""The one module that knows Pydantic AI's loop: one model request, or one round of tools.

A turn is a sequence of these two. Each starts from the stored conversation and ends with what
is to be stored next, so each may run in another process.
"""

from __future__ import annotations

import functools
import inspect
from collections.abc import AsyncGenerator, AsyncIterator, Awaitable, Callable, Mapping, Sequence
from contextlib import AbstractContextManager, asynccontextmanager
from dataclasses import dataclass, field
from types import MethodType
from typing import TYPE_CHECKING, Any, cast, get_args

from sapwood.chat.models import provider_sockets
from sapwood.chat.models.prices import Prices
from sapwood.chat.models.request_usage import ModelRequestUsage
from sapwood.chat.models.sent_form import SentForm
from sapwood.chat.models.tool_journal import Hooked, Journal, Journalled
from sapwood.chat.models.turn_capabilities import HistoryCopy, TurnCapabilities
from sapwood.chat.store.compaction import SUMMARISE
from sapwood.chat.tools.tools import Toolbox

if TYPE_CHECKING:
    from pydantic_ai import CancellationToken
    from pydantic_ai.messages import ModelMessage, ModelRequest, ModelResponse, ToolCallPart

SDKS_THAT_RETRY = frozenset({"openai", "openai-chat", "openai-responses", "anthropic", "groq", "cohere"})
SAY_WHY_THEY_END = frozenset({"openai", "anthropic"})
"""Providers whose answers always say why they end."""


@dataclass(slots=True)
class ToolResults:
    """What came of the tool calls of a response."""

    request: ModelRequest | None = None
    """The next message for the model. `None` if the turn has ended or waits for an answer."""
    output: Any = None
    """What the turn ended with."""
    is_over: bool = False
    is_text: bool = False
    """Whether that is what the model wrote, as it is."""
    result: Any = None
    """What Pydantic AI has for that output: its `AgentRunResult`."""
    approvals: Sequence[ToolCallPart] = ()
    """Calls that wait for a person."""
    client_calls: Sequence[ToolCallPart] = ()
    """Calls that the client has to run."""


@dataclass(slots=True)
class LoopTurn:
    """What one turn needs of its agent, beside the conversation."""

    model: Any
    instructions: Any
    output_type: Any
    settings: Any
    deps: Any
    client_tools: Sequence[Mapping[str, Any]]
    toolbox: Toolbox
    within: Callable[[str, str], AbstractContextManager[None]]
    """Has the code in it belong to this tool call."""
    journal: Journal
    before_tool_call: Callable[[str, dict[str, Any]], Any]
    after_tool_call: Callable[[str, dict[str, Any], Any], Any]
    stored_bytes: Callable[[Any], Awaitable[Any]]
    """Returns the result of a tool with references in the place of bytes, which it stores."""
    tool_raised: Callable[[str, Exception], str]
    """Logs what a tool raised, and returns the text that the model gets for it."""
    ready: Any = None
    """A `pydantic_ai.Agent` of the user's own."""
    capabilities: TurnCapabilities | None = None
    """`None` if no capability is used."""
    step: int = 0
    """How many model requests the turn has made."""
    prices: Prices = field(default_factory=dict[str, tuple[float, float]])

    @property
    def asked(self) -> Any:
        """The model that is asked: the agent's own, or that of the user's `pydantic_ai.Agent`."""
        return self.model if self.model is not None else getattr(self.ready, "model", None)


class PydanticLoop:
    """Asks models and runs tools with Pydantic AI."""

    def __init__(self) -> None:
        self._own: Any = None
        """The Pydantic AI agent of all turns: each run of it is given what is a turn's own."""

    def _agent(self, turn: LoopTurn) -> Any:
        if turn.ready is not None:
            return turn.ready if turn.capabilities is None else turn.capabilities.agent
        if self._own is None:
            from pydantic_ai import Agent

            self._own = Agent(None, instructions=None)
        return self._own

    @asynccontextmanager
    async def _run(
        self,
        turn: LoopTurn,
        history: Sequence[ModelMessage],
        *,
        model: Any = None,
        capabilities: Sequence[Any] = (),
        **more: Any,
    ) -> AsyncGenerator[Any]:
        from pydantic_ai import DeferredToolRequests

        agent = self._agent(turn)
        of_step = [] if turn.capabilities is None else turn.capabilities.of_step
        wanted: list[Any] = [*_outputs(turn.output_type), DeferredToolRequests]
        async with agent.iter(
            None,
            message_history=history,
            model=model or turn.model,
            instructions=turn.instructions,
            deps=turn.deps,
            model_settings=_settings(turn, turn.settings),
            toolsets=turn.toolbox.toolsets(turn.client_tools),
            output_type=wanted,
            infer_name=False,
            capabilities=[*of_step, *capabilities],
            **more,
        ) as run:
            # Each step is a run for Pydantic AI, and what a capability does in the first step only is to be done once.
            run.ctx.state.run_step = turn.step
            yield run

    async def start(self, turn: LoopTurn, history: Sequence[ModelMessage], *, is_new: bool) -> Any:
        """Enter the capabilities of a turn, at its start or its resumption.

        Return the result if one has answered in place of the model.
        """
        assert turn.capabilities is not None
        async with self._run(turn, history):
            return await turn.capabilities.start(history, is_new=is_new)

    async def ask(
        self,
        turn: LoopTurn,
        history: Sequence[ModelMessage],
        token: CancellationToken,
        said: Callable[[Any], None],
        used: Callable[[ModelRequestUsage], None],
        asked: Callable[[SentForm], None],
        rewritten: Callable[[dict[int, ModelMessage]], None],
    ) -> ModelResponse:
        """Ask the model to continue.

        `said` receives every event as it comes, `used` what it cost, complete or not, `asked` what the
        model is asked, in the form of Pydantic AI, and `rewritten` the messages of
        the history whose prompts a capability has replaced.
        """
        from pydantic_ai import Agent

        is_plain = turn.ready is None and turn.capabilities is None
        model = _telling()(turn.model, said, asked) if is_plain else None
        given = None if is_plain else HistoryCopy(history)
        messages = history if given is None else given.messages
        stream: Any = None
        try:
            watch = [] if is_plain else [_Watch()(asked)]
            async with self._run(turn, messages, model=model, capabilities=watch, cancellation_token=token) as run:
                provider_sockets.watch(model or turn.asked)  # only now is it sure which HTTP client it will use
                node = run.next_node
                while not Agent.is_model_request_node(node):
                    node = await run.next(node)
                async with node.stream(run.ctx) as stream:
                    async for event in stream:
                        said(event)
                response: ModelResponse = run.all_messages()[-1]
        finally:
            if stream is not None:  # after all awaits: what was used is committed with the response
                used(ModelRequestUsage.of(stream.response, turn.asked, turn.prices))
        if given is not None and (changes := given.changes()):
            rewritten(changes)
        _check_end(response)
        return response

    async def summarise(
        self,
        turn: LoopTurn,
        history: Sequence[ModelMessage],
        token: CancellationToken,
        used: Callable[[ModelRequestUsage], None],
    ) -> str:
        """Have the model say in short what was said."""
        from pydantic_ai import Agent

        provider_sockets.watch(turn.asked)
        result = await Agent(turn.asked).run(
            SUMMARISE, message_history=history, model_settings=_settings(turn, {}), cancellation_token=token
        )
        used(ModelRequestUsage.of(result.response, turn.asked, turn.prices))
        return result.output

    def said_by_user(self, text: str) -> ModelRequest:
        """Return a message that tells the model something."""
        from pydantic_ai.messages import ModelRequest, UserPromptPart

        return ModelRequest(parts=[UserPromptPart(text)])

    async def act(
        self,
        turn: LoopTurn,
        history: Sequence[ModelMessage],
        answers: Mapping[str, tuple[str, Any]],
        token: CancellationToken,
        said: Callable[[Any], None],
    ) -> ToolResults:
        """Run the tool calls of the last response, each once; what others answered comes with `answers`."""
        from pydantic_ai import Agent, CallToolsNode, DeferredToolRequests

        if not answers and (text := _only_said(turn, history[-1])):
            return ToolResults(output=text, is_over=True, is_text=True)
        more: dict[str, Any] = {"cancellation_token": token, "capabilities": [Journalled(turn), Hooked(turn)]}
        if answers:
            more["deferred_tool_results"] = _deferred(answers)
        async with self._run(turn, history, **more) as run:
            node: Any = run.next_node
            while not Agent.is_call_tools_node(node):
                node = await run.next(node)
                if Agent.is_model_request_node(node):
                    # With instructions it would ask the model once more, although that has said all it wanted.
                    node = cast("Any", CallToolsNode)(history[-1])
            async with node.stream(run.ctx) as events:
                async for event in events:
                    said(event)
            following = await run.next(node)
            if not Agent.is_end_node(following):
                return ToolResults(request=following.request)
            result = run.result
            output = result.output
            # Not counted from `history`: what follows each other there may have been put together.
            new = run.new_messages()
            last = new[-1] if new else None
        if isinstance(output, DeferredToolRequests):
            return ToolResults(request=last, approvals=list(output.approvals), client_calls=list(output.calls))
        request = last if last is not None and last.kind == "request" else None  # the call of an output tool
        is_text = request is None and isinstance(output, str) and _may_be_text(turn.output_type)
        return ToolResults(request=request, output=output, is_over=True, is_text=is_text, result=result)


def _outputs(output_type: Any) -> Sequence[Any]:
    """Return each of the types and functions that a turn may end with."""
    return cast("Sequence[Any]", output_type) if isinstance(output_type, list | tuple) else [output_type]


def _may_be_text(output_type: Any) -> bool:
    return any(one is str or str in get_args(one) for one in _outputs(output_type))


def output_type_of(agent: Any) -> Any:
    """Return the `output_type` of an agent. A function of it is bound to the agent only if it is a method."""
    value = agent.output_type
    if inspect.ismethod(value) and value.__self__ is agent:
        value = value.__func__  # a function that is set on a class is taken for a method
    bound = [_bound(one, agent) for one in _outputs(value)]
    return bound if isinstance(value, list | tuple) else bound[0]


def _bound(output: Any, agent: Any) -> Any:
    if inspect.isfunction(output) and next(iter(inspect.signature(output).parameters), None) == "self":
        return MethodType(output, agent)
    return output


def text_of(response: ModelMessage) -> str:
    """Return the text in a response."""
    return "".join(part.content for part in response.parts if part.part_kind == "text")


def _only_said(turn: LoopTurn, response: ModelMessage) -> str:
    """Return the text of a response that calls for nothing else: without the user's own agent, that is the output.

    Pydantic AI would come to the same, after it has gone through the whole conversation once more.
    """
    if turn.ready is not None or turn.capabilities is not None or turn.output_type is not str:
        return ""
    if any(part.part_kind not in ("text", "thinking") for part in response.parts):
        return ""
    return text_of(response)


@functools.cache
def _telling() -> Any:
    """Return the class of models that tell what they say as it comes."""
    from pydantic_ai.models.wrapper import WrapperModel

    class Telling(WrapperModel):
        """Tells each word as it comes, and hands on only where parts begin and end.

        Each event that an agent's stream hands on takes four locks, and a turn of the event
        loop for each of them: most of what a word costs. In our own agents nothing listens
        in between. What the model said is complete all the same; models keep it where it comes in.
        """

        def __init__(self, wrapped: Any, tell: Callable[[Any], None], asked: Callable[[SentForm], None]) -> None:
            super().__init__(wrapped)
            self._tell = tell
            self._asked = asked

        @asynccontextmanager
        async def request_stream(
            self, messages: Any, model_settings: Any, model_request_parameters: Any, run_context: Any = None
        ) -> AsyncGenerator[Any]:
            self._asked(SentForm(self.model_id, messages, dict(model_settings or {}), model_request_parameters))
            streaming = super().request_stream(messages, model_settings, model_request_parameters, run_context)
            async with streaming as response:
                # A response that continues where an earlier one stopped is counted on from there, above us.
                if messages[-1].kind == "request":
                    events: Any = response._get_event_iterator  # pyright: ignore[reportPrivateUsage]
                    cast("Any", response)._get_event_iterator = lambda: self._told(events())
                # A response that does not pass through there is handed on whole.
                yield response

        async def _told(self, events: AsyncIterator[Any]) -> AsyncIterator[Any]:
            async for event in events:
                if event.event_kind == "part_delta":
                    self._tell(event)
                else:
                    yield event

    return Telling


@functools.cache
def _Watch() -> Any:  # noqa: N802 - it makes a class, which needs Pydantic AI to be imported
    from pydantic_ai.capabilities import AbstractCapability, CapabilityOrdering

    class Watch(AbstractCapability[Any]):
        """Inside all others: tells what the model is asked after they have changed it."""

        def __init__(self, asked: Callable[[SentForm], None]) -> None:
            self._asked = asked

        def get_ordering(self) -> Any:
            return CapabilityOrdering(position="innermost")

        async def before_model_request(self, ctx: Any, request_context: Any) -> Any:
            one = request_context
            settings, parameters = dict(one.model_settings or {}), one.model_request_parameters
            self._asked(SentForm(one.model.model_id, list(one.messages), settings, parameters))
            return one

    return Watch


def _deferred(answers: Mapping[str, tuple[str, Any]]) -> Any:
    from pydantic_ai import DeferredToolResults, ToolApproved, ToolDenied, ToolFailed

    results = DeferredToolResults()
    for id, (kind, value) in answers.items():
        if kind == "approved":
            results.approvals[id] = True if value is None else ToolApproved(override_args=value)
        elif kind == "denied":
            results.approvals[id] = ToolDenied(value or "The user does not allow this call.")
        elif kind == "failed":
            results.calls[id] = ToolFailed(value)
        else:
            results.calls[id] = value
    return results


def _check_end(response: ModelResponse) -> None:
    """Refuse an answer that broke off: a proxy may have closed normally what its provider had not ended."""
    from pydantic_ai.exceptions import ModelConnectionError

    if response.provider_name not in SAY_WHY_THEY_END:
        return
    # Pydantic AI takes an answer of OpenAI's that says nothing of its end for a whole one: some that speak like it
    # never say why they stop. An answer that does not even say what it has used was cut.
    says = "finish_reason" in (response.provider_details or {}) or response.finish_reason != "stop"
    if response.finish_reason is None or not (says or response.usage.output_tokens):
        raise ModelConnectionError(response.model_name or "", "The model's response ended early.", phase="read")


def _settings(turn: LoopTurn, mine: Any) -> Any:
    """Return the settings of a request: the driver asks again, and can be seen to wait, so the SDK is not to."""
    chosen: list[Any] = [mine, getattr(turn.asked, "settings", None), getattr(turn.ready, "model_settings", None)]
    if callable(mine) or any("max_retries" in one for one in chosen if isinstance(one, Mapping)):
        return mine
    return cast("Any", {"max_retries": 0} | (mine or {})) if _retries(turn.asked) else mine


def _retries(model: Any) -> bool:
    """Return whether a model's SDK retries automatically, and can be told not to; others would warn."""
    if isinstance(model, str):
        return model.partition(":")[0] in SDKS_THAT_RETRY
    models = getattr(model, "models", None)
    if models:
        return all(_retries(one) for one in models)
    return model is not None and "max_retries" not in getattr(model, "unsupported_settings", ())
