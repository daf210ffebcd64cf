"""The turn that runs now, for its driver: a fiber of this process, or a workflow that outlives it.

A driver takes a turn, starts it, and executes one step after the other: one model request, or
the tools that the model called. Between two steps it starts the runs that the turn waits for,
and collects their results. At the end it finishes the turn.

The result of a step is stored before the step returns. Started again after a crash, a turn
reads the stored conversation and does the rest: the interrupted model request is repeated, a
tool that had returned is not called again. Cancelling bypasses the driver: the current step
raises, and no other starts.
"""

from __future__ import annotations

import logging
from collections.abc import Sequence
from contextlib import suppress
from typing import TYPE_CHECKING, Any, Protocol

import msgspec

from sapwood import tracing
from sapwood.capabilities.steps import Work
from sapwood.chat.models.loop import LoopTurn, ToolResults, output_type_of, text_of
from sapwood.chat.models.model_check import ModelUnusable, check_model
from sapwood.chat.models.provider_errors import in_words, retry_after
from sapwood.chat.models.turn_capabilities import TurnCapabilities
from sapwood.chat.models.turn_overrides import read_overrides
from sapwood.chat.store.chat_behavior import ChatBehavior
from sapwood.chat.store.chunks import Projection, json_of
from sapwood.chat.store.record import ConversationRecord
from sapwood.chat.store.turn_rows import BEGUN, TurnRow
from sapwood.chat.store.turns import CLIENT_SOON, SOON, CallJournal
from sapwood.chat.tools.tools import toolbox
from sapwood.chat.turn.agent_tool_calls import AgentToolCalls
from sapwood.chat.turn.cancellation import CancellableTurn
from sapwood.chat.turn.capability_hooks import CapabilityHooks
from sapwood.chat.turn.compaction import Compaction
from sapwood.chat.turn.custom_responder import CustomResponder, ResponseFailed
from sapwood.chat.turn.limit_waits import LimitWaits
from sapwood.chat.turn.mid_turn_messages import MidTurnMessages
from sapwood.chat.turn.model_requests import LOOP, ModelRequests, ModelStalled, reason_of
from sapwood.errors import OverLimit, Refused, SapwoodError, Unavailable
from sapwood.kernel.actors.actor import Actor
from sapwood.kernel.marshal.call import current
from sapwood.kernel.marshal.copier import json_to_copy
from sapwood.kernel.marshal.disclosure import as_stored, with_reference
from sapwood.kernel.marshal.exceptions import describe, mistake
from sapwood.kernel.ports.work_id import WorkId
from sapwood.kernel.trees.budgets import Extensible
from sapwood.runs.dispatch.lifecycle import Runs
from sapwood.runs.execution.executor import RunExecutor
from sapwood.wire.chat import recovering

if TYPE_CHECKING:
    from pydantic_ai.messages import ModelMessage

log = logging.getLogger(__name__)

MODEL_UNUSABLE = "The model of this assistant is not configured. The operator finds the reason in the log."
FILES_LEFT_OUT = "The model could not read a file of this conversation. The file is left out of the following turns."


class EndTurn(Protocol):
    """Ends a turn or leaves it waiting for an answer, and starts what follows."""

    async def __call__(
        self, number: int, status: str, *, error: str | None = None, reason: str | None = None
    ) -> None: ...


class ActiveTurn(CancellableTurn):
    """One running turn of a conversation. A driver executes its steps."""

    def __init__(self, actor: Actor, number: int, end: EndTurn) -> None:
        super().__init__(actor, number)
        self._agent: ChatBehavior = actor.agent
        record = self._record = actor.of(ConversationRecord)
        self._transcript, self._turns, self._stream = record.transcript, record.turns, record.stream
        self._asking = ModelRequests(actor, self)
        self._delegating = actor.of(AgentToolCalls)
        self._steering = actor.of(MidTurnMessages)
        self._limits = actor.of(LimitWaits)
        self._waits_for_limit = False
        self._end = end
        self._hooks = CapabilityHooks(actor, self)
        self._loop: LoopTurn | None = None
        """What the loop needs of the agent; `None` if the agent overrides `respond`."""

    async def take_up(self, row: TurnRow, *, again: bool) -> None:
        """Have a turn stream from here, for the first time or `again`."""
        if row.run is not None and not self._actor.of(RunExecutor).is_wanted(row.run):
            self._interrupts.cut(row, self._actor.of(RunExecutor).why_not(row.run))
        if row.run is not None and (again or row.continues):
            with suppress(Unavailable):  # a loss of power may have kept less of those above than of this
                self._actor.of(RunExecutor).wake_above(row.run)
        if row.continues:
            await self._actor.leave()
            await self._stream.asked_for()
            self._actor.check_live()
        if self._stream.active is None or self._stream.active.number != row.number:  # it may only have rested
            self._stream.begin(row)
        if again:
            await self._asking.put_right(row)
            self._actor.check_live()
            self._turns.set(row.number, recovering_at=row.recovering_at or self._actor.host.clock.now())
            self._stream.tell(recovering(row.id, is_so=True))
            address = str(self._actor.address)
            log.info(
                "turn resumed after an interruption address=%s turn=%s", address, row.id, extra={"address": address}
            )

    async def begin(self) -> str:
        """Begin a turn, or continue it; return its status: `running`, or `completed` and not yet finished."""
        await self._actor.until_leased()
        row = self.going_on()
        if row.output is not None:  # it was about to end when the process died
            if row.run_hooks == BEGUN:
                self._loop = self._loop_turn(row)
                await self._hooks.start(row, self._loop)
            return "completed"
        said = self._stream.stored(self.number)
        if not row.continues and not row.steps and not said:
            with self.own_code():
                await self._agent.before_turn(self._record.shown(row))
            self._actor.check_live()
        if not said:
            self._stream.begin_step(row.steps)
            self._stream.put({"type": "start"} if row.continues else {"type": "start", "messageId": row.message})
        if not self._actor.kind.overrides("respond"):
            self._loop = self._loop_turn(row)
            await self._transcript.load()
            self._actor.check_live()
            if not await self._hooks.start(row, self._loop):
                return "completed"
        return "running"

    async def step(self) -> str:
        """Ask the model and run its tools, or do the rest of that; return how the turn stands."""
        await self._actor.until_leased()
        row = self.going_on()
        if self._loop is not None:
            self._loop.step = row.steps
        if self._loop is None:
            await CustomResponder(self._actor, self, self._asking).respond(row)
            return "completed"
        history = self._transcript.history()
        if not history:
            raise Refused("There is nothing to answer: the conversation is empty. Send a message first.")
        if self._is_asking():  # it was about to wait
            return "waiting"
        if history[-1].kind != "request" or self._answers():
            return await self._act(row, self._loop, history)
        if self._steering.join(self.number):
            self._record.tell_all()
            history = self._transcript.history()
        await self._loop.toolbox.servers.refresh()
        self._actor.check_live()
        try:
            self._limits.check(row)
            await self._actor.of(Compaction).before_request(self, self._asking, row, self._loop)
            await self._ask(self.going_on(), self._loop, self._transcript.history())
        except Extensible as reached:
            return await self._wait_for_limit(reached)
        self._actor.check_live()
        return await self._act(self.going_on(), self._loop, self._transcript.history())

    async def _wait_for_limit(self, reached: Extensible) -> str:
        """Have a person asked to allow more of a limit, and wait for the answer."""
        self._actor.check_live()
        row = self.going_on()
        self._stream.flush()
        self._stream.forget_from(row.steps + 1)
        await self._limits.ask(row, reached)
        self.going_on()
        self._waits_for_limit = True
        return "waiting"

    def start_runs(self) -> list[tuple[str, str]]:
        """Have the runs begin, or find them again, that a turn waits for; return each tool call with its run."""
        wanted = self._delegating.wanted(self.going_on())
        if wanted:
            self._progressed()  # it only waits for them from here on
        return wanted

    def take_run(self, call: str, run: str) -> None:
        """Take what became of a run as the answer to a tool call."""
        self._delegating.answer(call, run)
        self._progressed()

    def come_to_rest(self) -> None:
        """A turn leaves memory until a run that it waits for continues."""
        self._stream.flush()
        row = self._turns.of(self.number)
        if row is not None and row.run is not None:
            self._actor.of(RunExecutor).rests(row.run)

    async def finish(self, status: str) -> None:
        """End a turn or leave it waiting for an answer."""
        if status == "completed" and (row := self._turns.of(self.number)) is not None:
            await self._hooks.end(row)
        await self._hooks.close()
        self._actor.check_live()
        if status == "waiting":
            self._stream.flush()
            said = self._stream.stored(self.number)
            if said and said[-1]["type"] != "finish-step":
                self._stream.put({"type": "finish-step"})
        reason = OverLimit.code if status == "waiting" and self._waits_for_limit else None
        await self._end(self.number, status, reason=reason)

    async def let_go(self) -> None:
        """Let go what capabilities hold: this process does not drive the turn any more."""
        await self._hooks.close()

    async def fail(self, error: Exception) -> str:
        """End a turn that went wrong, or was cancelled; return which: a capability may have an answer all the same."""
        self._actor.check_live()
        try:
            row, cancelled = self._turns.of(self.number), self._interrupts.is_cancelled(self._turns.of(self.number))
            if row is not None and await self._hooks.fail(row, error, cancelled=cancelled):
                self._actor.of(Runs).let_go(WorkId.run(row.id), is_done=False)
                await self._end(self.number, "completed")
                return "completed"
        except Exception as final:  # noqa: BLE001 - a capability may raise another one
            error = final
        if self._interrupts.is_cancelled(self._turns.of(self.number)):
            await self._end(self.number, "cancelled")
            return "cancelled"
        words, reference = self._in_words(error)
        found = {} if reference is None else {"reference": reference}
        log.warning(
            "turn failed address=%s%s: %s",
            self._actor.address,
            "" if reference is None else f" reference={reference}",
            describe(error),
            extra={"address": str(self._actor.address), **found},
            exc_info=None if isinstance(error, ModelUnusable) else mistake(error),
        )
        work = WorkId.run(self._record.row(self.number).id)
        self._actor.of(Runs).let_go(work, is_done=False)  # no caller is left to receive their results
        if self._may_be_files(error) and self._transcript.leave_out_files():
            words = FILES_LEFT_OUT
        await self._end(self.number, "failed", error=words, reason=reason_of(error))
        return "failed"

    def _in_words(self, error: Exception) -> tuple[str, str | None]:
        """Return the error of a turn, and its reference if it is not one that clients are told."""
        if isinstance(error, ModelStalled | ResponseFailed):
            return str(error), None
        if isinstance(error, ModelUnusable):
            return MODEL_UNUSABLE, None
        if (words := in_words(error, said=self._asking.said > 0)) is not None:
            return words, None
        return as_stored(error, self._actor.host.random)

    def _may_be_files(self, error: Exception) -> bool:
        """Return whether a request to the model failed in a way that files of the conversation can cause."""
        from pydantic_ai import exceptions as theirs

        # Every later request holds the same files: it would fail in the same way.
        spared = (
            SapwoodError,
            theirs.ModelAuthenticationError,
            theirs.ModelNotFoundError,
            theirs.ModelQuotaExceededError,
        )
        return error is self._asking.failure and retry_after(error, 0) is None and not isinstance(error, spared)

    def _is_asking(self) -> bool:
        """Return whether a question about a tool call is not answered yet."""
        return any(call.is_open and call.answerer not in SOON for call in self._turns.calls(self.number))

    def _answers(self) -> dict[str, tuple[str, Any]]:
        """Return what was answered for tool calls that the turn waited for."""
        return {
            call.id: tuple(msgspec.json.decode(call.answer))
            for call in self._turns.calls(self.number)
            if call.answer is not None and call.answerer not in SOON
        }

    def _loop_turn(self, row: TurnRow) -> LoopTurn:
        agent = self._agent
        overrides = read_overrides(row.overrides)
        model = overrides.model_of(agent)
        if model is None and agent.loop is None:
            raise ModelUnusable(f"{type(agent).__name__} has no model. Set `model`, or write get_model() or respond().")
        check_model(model)
        return LoopTurn(
            model=model,
            instructions=overrides.instructions_after(agent.get_instructions()),
            output_type=output_type_of(agent),
            settings=overrides.settings_over(agent.model_settings),
            deps=self._actor.host.deps,
            client_tools=row.tools(),
            toolbox=self._actor.of(toolbox),
            within=lambda call, name: self._delegating.within(row, call, name),
            journal=CallJournal(self._actor, self._turns, row.number),
            stored_bytes=self._record.files.stored_bytes,
            before_tool_call=agent.before_tool_call,
            after_tool_call=agent.after_tool_call,
            tool_raised=self._tool_raised,
            ready=agent.loop,
            capabilities=TurnCapabilities.of(agent.loop, agent.capabilities),
            step=row.steps,
            prices=self._actor.host.settings.prices,
        )

    def _tool_raised(self, name: str, error: Exception) -> str:
        """Log an error of a tool, unless it is meant for the client; return the text that the model gets for it."""
        _, reference = as_stored(error, self._actor.host.random)
        text = f"{type(error).__name__}: {error}"
        if reference is None or self._actor.dropped is not None:
            return text
        address = str(self._actor.address)
        log.warning(
            "tool failed tool=%s address=%s reference=%s: %s",
            name,
            address,
            reference,
            describe(error),
            extra={"address": address, "reference": reference},
            exc_info=mistake(error),
        )
        return with_reference(text, reference)

    async def _ask(self, row: TurnRow, turn: LoopTurn, history: Sequence[ModelMessage]) -> None:
        """Ask the model once."""
        step = row.steps + 1
        if step > self._agent.max_steps:
            raise Refused(f"The turn has reached max_steps: {row.steps} model requests.")
        self._stream.forget_from(step)
        self._stream.begin_step(step)
        with self.own_code():
            await self._agent.before_step(self._record.shown(row), step)
        self._stream.put({"type": "start-step"})
        self._asking.begin(row, turn)
        await self._actor.leave()
        self.going_on()
        with tracing.span("chat", gen_ai__operation__name="chat", sapwood__step=step) as span:
            response = await self._asking.answer(row, turn, history)
            usage = response.usage
            span.set(
                gen_ai__response__model=response.model_name,
                gen_ai__provider__name=response.provider_name,
                gen_ai__usage__input_tokens=usage.input_tokens,
                gen_ai__usage__output_tokens=usage.output_tokens,
            )
        self._actor.check_live()
        response, files = await self._record.files.stored_response(response)
        self._actor.check_live()
        row = self.going_on()
        self._stream.put(*files)
        self._stream.flush()
        self._transcript.add(row.message, response)
        self._turns.set(row.number, steps=step)
        turn.step = step
        self._progressed()
        await self._actor.leave()

    async def _act(self, row: TurnRow, turn: LoopTurn, history: Sequence[ModelMessage]) -> str:
        """Run the tools the model asked for; return how the turn stands."""
        projection = Projection(row.steps)
        answers = self._answers()
        if not answers:
            self._expect_clients(row, history)
            self._delegating.begin(row, history[-1])
        # What others answered is in the message already; clients of a continuation do not know the call any more.
        runs = {call.id for call in self._turns.calls(row.number) if call.answerer == "run"}
        known = {id for id, (kind, _) in answers.items() if kind != "approved" and (kind == "failed" or id not in runs)}
        acted = await LOOP.act(
            turn,
            history,
            answers,
            self.token,
            lambda event: self._stream.put(*projection.event(event, known=known)),
        )
        self._actor.check_live()
        row = self.going_on()
        if acted.request is not None:
            self._transcript.add(row.message, acted.request)
        self._turns.forget_calls(row.number, but=[call.tool_call_id for call in acted.client_calls])
        for call in acted.client_calls:
            whom = "run" if turn.toolbox.is_run(call.tool_name) else "client"
            self._turns.ask_about(call.tool_call_id, row.number, call.tool_name, call.args_as_json_str(), whom)
            self._delegating.tell_refusal(call.tool_call_id)
        clients = [call for call in acted.client_calls if not turn.toolbox.is_run(call.tool_name)]
        for call in acted.approvals:
            id = call.tool_call_id
            self._turns.ask_about(id, row.number, call.tool_name, call.args_as_json_str(), "approval")
            self._stream.put({"type": "tool-approval-request", "approvalId": id, "toolCallId": id})
        if acted.approvals or acted.client_calls:
            self._stream.flush()  # now: a turn that continues after a crash does not stream these calls again
        if acted.approvals or clients:
            return "waiting"
        if acted.client_calls:
            return "running"
        self._stream.put({"type": "finish-step"})
        self._stream.flush()
        self._progressed()
        if not acted.is_over:
            self._count_retries(row, acted, history[-1])
            return "running"
        if self._steering.join(row.number):  # it has an answer, and received a message since
            return "running"
        if acted.is_text:
            self._record.check_answer(row, acted.output)
        output = json_to_copy(json_of(acted.output), "The output of a turn").decode()
        self._record.output.read(output)  # an output that could not be read again fails here
        self._turns.set(row.number, output=output)
        self._hooks.made(acted.result)
        self._stream.put({"type": "finish"})
        return "completed"

    def _expect_clients(self, row: TurnRow, history: Sequence[ModelMessage]) -> None:
        """Note what clients are to run: they may be done before our own tools are."""
        theirs = {tool["name"] for tool in row.tools()}
        for part in history[-1].parts:
            if part.part_kind == "tool-call" and part.tool_name in theirs:
                self._turns.ask_about(
                    part.tool_call_id, row.number, part.tool_name, part.args_as_json_str(), CLIENT_SOON
                )

    def _count_retries(self, row: TurnRow, acted: ToolResults, response: ModelMessage) -> None:
        """Pydantic AI counts from nothing each time it is entered: over a turn, we count."""
        parts = acted.request.parts if acted.request is not None else ()
        retried = any(part.part_kind == "retry-prompt" or getattr(part, "outcome", "") == "retried" for part in parts)
        # Of one that says nothing, Pydantic AI demands an answer as a user would.
        is_silent = all(part.part_kind in ("text", "thinking") for part in response.parts) and not text_of(response)
        if (retried or is_silent) and row.retries >= self._agent.max_retries:
            if is_silent:
                self._record.check_answer(row, "")
            raise Refused(f"The model returned an invalid answer {row.retries + 1} times in a row (max_retries).")
        self._turns.set(row.number, retries=row.retries + 1 if retried or is_silent else 0)

    def _progressed(self) -> None:
        call = current.get()
        if call is not None and isinstance(call.work, Work):
            call.work.progressed()
