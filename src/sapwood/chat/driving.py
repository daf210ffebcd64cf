"""Drives one turn: asks the model, runs the tools, asks again, until it is over or somebody has to be asked.

Whatever comes of a step is stored before the next begins. Begun again after a crash, a turn
finds the conversation as far as it got and does the rest: what the model was saying when the
process died is asked for again, a tool that had returned is not called again.
"""

from __future__ import annotations

import asyncio
import logging
from asyncio import CancelledError
from collections.abc import AsyncGenerator, Awaitable, Callable, Generator, Sequence
from contextlib import AbstractContextManager, contextmanager
from datetime import timedelta
from typing import TYPE_CHECKING, Any, Protocol, TypeVar

import msgspec

from sapwood import tracing
from sapwood.capabilities.agenda import Agenda
from sapwood.capabilities.steps import Work
from sapwood.chat.agent_tools import AgentTool
from sapwood.chat.chunks import Chunk, Projection, json_of
from sapwood.chat.compaction import BEFORE, cut_of
from sapwood.chat.interrupting import Cancelled, Interrupts
from sapwood.chat.loop import Acted, PydanticLoop, Used, in_words, retry_after
from sapwood.chat.loop import Turn as LoopTurn
from sapwood.chat.providers import Providers
from sapwood.chat.record import Record
from sapwood.chat.resuming import Resuming
from sapwood.chat.tools import Toolbox
from sapwood.chat.turns import CallJournal, Row
from sapwood.chat.wires import Wire
from sapwood.clock import Clock
from sapwood.errors import Refused, UsageError
from sapwood.kernel.actor import Actor
from sapwood.kernel.context import current
from sapwood.kernel.crossing import describe
from sapwood.runs.contract import doing
from sapwood.runs.outcomes import Outcomes
from sapwood.runs.registry import Run
from sapwood.runs.runner import Runs, ToolCall, Wish, tool_call
from sapwood.runs.served import Served
from sapwood.when import Retry
from sapwood.wire.chat import recovering

if TYPE_CHECKING:
    from pydantic_ai import CancellationToken
    from pydantic_ai.messages import ModelMessage, ModelResponse

T = TypeVar("T")

log = logging.getLogger(__name__)

LOOP = PydanticLoop()
SOON = ("client soon", "run soon")
"""Whom a tool call waits for that a client or another agent does, while our own tools still run."""
PROVIDER = Retry(attempts=5, base=timedelta(seconds=1), most=timedelta(seconds=30))
"""How often a provider is asked that cannot answer now."""


class Failed(Exception):
    """An answer says of itself that it failed."""


class Stalled(Exception):
    """The model stopped answering."""


class Silence:
    """Cuts off what has said nothing for so many seconds."""

    def __init__(self, clock: Clock, seconds: float, cut: Callable[[], object]) -> None:
        self._clock = clock
        self._seconds = seconds
        self._cut = cut
        self._heard_at = clock.now()
        self.is_too_long = False
        self._timer = clock.call_at(self._heard_at + seconds, self._look)

    def broken(self) -> None:
        """Something was said."""
        self._heard_at = self._clock.now()

    def _look(self) -> None:
        due = self._heard_at + self._seconds
        if self._clock.now() < due:
            self._timer = self._clock.call_at(due, self._look)
        else:
            self.is_too_long = True
            self._cut()

    def end(self) -> None:
        self._timer.cancel()


class End(Protocol):
    """Ends a turn, or has it wait for somebody, and lets what follows begin."""

    async def __call__(self, number: int, status: str, *, error: str | None = None) -> None: ...


class Driver:
    """Drives the turns of one conversation."""

    def __init__(self, actor: Actor, end: End) -> None:
        self._actor = actor
        self._agent: Any = actor.agent
        self._record = actor.of(Record)
        self._interrupts = actor.of(Interrupts)
        self._end = end
        self._toolbox: Toolbox | None = None
        self._silence: Silence | None = None
        """Notes how long nothing has come of what the model is asked for now."""
        self._said = 0
        """How many events have come of what the model is asked for now."""

    async def drive(self, number: int) -> None:
        """Drive a turn to its end, or to where somebody has to be asked."""
        row = self._record.turns.of(number)
        if row is None or row.status != "running":
            await self._tell_end(number)  # the process died while it was told, or nobody had to drive it to its end
            return
        doing.set((self._actor, row.id))
        with self._interrupts.turn():
            if row.run is not None and not self._actor.of(Served).is_wanted(row.run):
                self._interrupts.cut(row, self._actor.of(Served).why_not(row.run))
            if row.continues:
                await self._actor.leave()
                await self._record.stream.asked_for()
                self._actor.check_live()
            self._record.stream.begin(row)
            self._note_recovery(row)
            with self._span_of(row) as span:
                await self._drive(row, span)
        await self._tell_end(number)

    def _span_of(self, row: Row) -> AbstractContextManager[tracing.Span]:
        who = str(self._actor.address)
        return tracing.span(
            f"invoke_agent {self._actor.kind.type}",
            gen_ai__operation__name="invoke_agent",
            gen_ai__agent__name=self._actor.kind.type,
            gen_ai__conversation__id=who,
            sapwood__address=who,
            sapwood__turn__id=row.id,
            sapwood__run__id=row.run,
            sapwood__recovered=row.recovering_at is not None or None,
        )

    async def _drive(self, row: Row, span: tracing.Span) -> None:
        number = row.number
        try:
            await self._go(row)
        except CancelledError:
            raise
        except Exception as error:
            self._actor.check_live()
            if self._interrupts.is_cancelled(self._record.turns.of(number)):
                await self._end(number, "aborted")
                span.set(sapwood__turn__status="aborted")
                return
            log.warning(
                "a turn of %s failed: %s",
                self._actor.address,
                describe(error),
                extra={"address": str(self._actor.address)},
                exc_info=error,
            )
            span.fail(describe(error))
            await self._end(number, "error", error=in_words(error, said=self._said > 0))

    async def _tell_end(self, number: int) -> None:
        row = self._record.turns.of(number)
        if row is None or row.is_open:
            return
        turn, agent = self._record.shown(row), self._agent
        hooks = [agent.on_turn_end]
        if turn.status in ("completed", "error", "aborted"):
            hooks.append(agent.on_agent_complete if turn.status == "completed" else agent.on_agent_fail)
        for hook in hooks:
            await self._actor.tell(hook, turn)

    def _note_recovery(self, row: Row) -> None:
        """Have clients know that a turn goes on after a crash."""
        call = current.get()
        work = call.work if call is not None else None
        if isinstance(work, Work) and work.fiber is not None and self._actor.of(Agenda).fibers.current().recoveries:
            self._record.turns.set(row.number, recovering_at=row.recovering_at or self._actor.host.clock.now())
            self._record.stream.tell(recovering(row.id, is_so=True))
            address = str(self._actor.address)
            log.info("%s goes on with the turn %s, which was interrupted", address, row.id, extra={"address": address})

    async def _go(self, row: Row) -> None:
        record, number = self._record, row.number
        self._interrupts.going_on(number)
        if row.output is not None:  # it was about to end when the process died
            await self._end(number, "completed")
            return
        said = record.stream.stored(number)
        if not row.continues and not row.steps and not said:
            with self._interrupts.own_code(number):
                await self._agent.before_turn(record.shown(row))
                await self._agent.on_agent_start(record.shown(row))
        if not said:
            record.stream.begin_step(row.steps)
            record.stream.put({"type": "start"} if row.continues else {"type": "start", "messageId": row.message})
        if self._actor.kind.overrides("respond"):
            await self._respond_at_last(self._interrupts.going_on(number))
            return
        turn = self._loop_turn(row)
        await record.transcript.load()
        self._actor.check_live()
        while True:
            row = self._interrupts.going_on(number)
            await self._until_runs_are_over(row)
            history = record.transcript.history()
            if not history:
                raise UsageError("There is nothing to answer: the conversation is empty.")
            if self._is_asking(number):  # it was about to wait
                await self._end(number, "waiting")
                return
            if history[-1].kind != "request" or self._answers(number):
                if await self._act(row, turn, history):
                    return
            else:
                await self._shorten(row, turn, history)
                await self._ask(self._interrupts.going_on(number), turn, record.transcript.history())

    def _is_asking(self, number: int) -> bool:
        """Return whether somebody was asked about a tool call and has not answered."""
        return any(call.is_open and call.asked not in SOON for call in self._record.turns.calls(number))

    def _answers(self, number: int) -> dict[str, tuple[str, Any]]:
        """Return what was answered for tool calls that the turn waited for."""
        return {
            call.id: tuple(msgspec.json.decode(call.answer))
            for call in self._record.turns.calls(number)
            if call.answer is not None and call.asked not in SOON
        }

    def _loop_turn(self, row: Row) -> LoopTurn:
        agent = self._agent
        if self._toolbox is None:
            self._toolbox = Toolbox(self._actor, tuple(agent.tools))
        model = agent.get_model()
        if model is None and agent.loop is None:
            raise UsageError(f"{type(agent).__name__} has no model. Set `model`, or write respond().")
        return LoopTurn(
            model=model,
            instructions=agent.get_instructions(),
            output_type=agent.output_type,
            settings=agent.model_settings,
            deps=self._actor.host.deps,
            client_tools=row.tools(),
            toolbox=self._toolbox,
            within=lambda call, name: self._within(row, call, name),
            journal=CallJournal(self._actor, self._record.turns, row.number),
            before_tool_call=agent.before_tool_call,
            after_tool_call=agent.after_tool_call,
            tool_raised=self._tool_raised,
            ready=agent.loop,
        )

    def _tool_raised(self, name: str, error: Exception) -> None:
        """Have a mistake in a tool be seen, which only the model would hear of; what is refused is none."""
        if self._actor.dropped is None and not isinstance(error, Refused):
            log.warning(
                "the tool %s of %s failed: %s",
                name,
                self._actor.address,
                describe(error),
                extra={"address": str(self._actor.address)},
                exc_info=error,
            )

    async def _ask(self, row: Row, turn: LoopTurn, history: Sequence[ModelMessage]) -> None:
        """Ask the model once."""
        record, step = self._record, row.steps + 1
        if step > self._agent.max_steps:
            raise Refused(f"The turn has asked the model {row.steps} times, and may not ask again (max_steps).")
        record.stream.forget_from(step)
        record.stream.begin_step(step)
        with self._interrupts.own_code(row.number):
            await self._agent.before_step(record.shown(row), step)
        record.stream.put({"type": "start-step"})
        await self._actor.leave()
        self._interrupts.going_on(row.number)
        with tracing.span("chat", gen_ai__operation__name="chat", sapwood__step=step) as span:
            response = await self._asked(row, turn, history, Projection(step))
            usage = response.usage
            span.set(
                gen_ai__response__model=response.model_name,
                gen_ai__provider__name=response.provider_name,
                gen_ai__usage__input_tokens=usage.input_tokens,
                gen_ai__usage__output_tokens=usage.output_tokens,
            )
        row = self._interrupts.going_on(row.number)
        self._actor.check_live()
        record.stream.flush()
        record.transcript.add(row.message, response)
        record.turns.set(row.number, steps=step)
        self._progressed()
        await self._actor.leave()

    async def _shorten(self, row: Row, turn: LoopTurn, history: Sequence[ModelMessage]) -> None:
        """Have what is old summarised, if the conversation has grown too long for the model."""
        allowed: int | None = self._agent.compact_above
        cut = 0 if allowed is None else cut_of(history, allowed)
        if not cut:
            return
        with self._interrupts.own_code(row.number):
            summary = await self._agent.compact(list(history[:cut]))
        if summary is None:
            old = history[:cut]
            summary = await self._provided(
                row, turn, lambda token: LOOP.summarise(turn, old, token, self._counting(row))
            )
        self._actor.check_live()
        self._record.transcript.shorten(cut, LOOP.said_by_user(BEFORE + summary))
        await self._actor.leave()

    async def _asked(
        self, row: Row, turn: LoopTurn, history: Sequence[ModelMessage], projection: Projection
    ) -> ModelResponse:
        """Have the model say something, and everybody hear it."""
        stream = self._record.stream

        def hear(event: Any) -> None:
            self._said += 1
            if self._silence is not None:
                self._silence.broken()
            stream.put(*projection.event(event))

        for failed in range(1, PROVIDER.attempts + 1):
            try:
                return await self._provided(row, turn, lambda token: self._watched(row, turn, history, token, hear))
            except Stalled:
                if failed == PROVIDER.attempts:
                    raise
                self._begin_again(row, row.steps + 1)
                projection = Projection(row.steps + 1)
                stream.put({"type": "start-step"})
                await self._actor.leave()
        raise AssertionError

    async def _watched(
        self,
        row: Row,
        turn: LoopTurn,
        history: Sequence[ModelMessage],
        token: CancellationToken,
        hear: Callable[[Any], None],
    ) -> ModelResponse:
        """Ask the model, and no longer if it falls silent."""
        self._silence = silence = self._listen_for(token.cancel)
        try:
            return await LOOP.ask(turn, history, token, hear, self._counting(row))
        except Exception:
            if silence is None or not silence.is_too_long:
                raise
            raise Stalled(Stalled.__doc__) from None
        finally:
            self._silence = None
            if silence is not None:
                silence.end()

    def _listen_for(self, cut: Callable[[], object]) -> Silence | None:
        seconds: float | None = self._agent.stall_timeout
        return None if seconds is None else Silence(self._actor.host.clock, seconds, cut)

    def _begin_again(self, row: Row, step: int) -> None:
        """Have a step be begun again that fell silent."""
        self._interrupts.going_on(row.number)
        log.warning(
            "the model of %s was silent for %s s, and is asked again",
            self._actor.address,
            self._agent.stall_timeout,
            extra={"address": str(self._actor.address)},
        )
        self._interrupts.renew()
        self._actor.of(Resuming).begin_again(row.number, step)

    def _counting(self, row: Row) -> Callable[[Used], None]:
        """Return what counts the use of a model, whatever becomes of its answer."""

        def count(used: Used) -> None:
            if self._actor.dropped is None:
                self._record.turns.count(row.number, used.model, used.input_tokens, used.output_tokens, used.cost)

        return count

    async def _provided(self, row: Row, turn: LoopTurn, ask: Callable[[CancellationToken], Awaitable[T]]) -> T:
        """Ask the provider, when it may be asked; again if it could not answer now and has said nothing yet."""
        limiter = self._actor.host.shared(Providers).of(turn.asked)
        self._said = 0
        for failed in range(1, PROVIDER.attempts + 1):
            try:
                async with limiter.request(self._waits, self._interrupts.stopped):
                    self._interrupts.going_on(row.number)
                    return await self._over_wire(ask)
            except Exception as error:
                wait = retry_after(error, PROVIDER.wait(failed))
                if wait is None or self._said or failed == PROVIDER.attempts:
                    raise
                log.info("a provider could not answer now, and is asked again in %.1f s: %s", wait.seconds, error)
            if wait.for_all:
                limiter.close_for(wait.seconds)
            else:
                await limiter.pause(wait.seconds, self._waits, self._interrupts.stopped)
        raise AssertionError

    async def _over_wire(self, ask: Callable[[CancellationToken], Awaitable[T]]) -> T:
        assert self._interrupts.token is not None
        self._interrupts.wire = wire = Wire()
        try:
            with wire.used():
                return await ask(self._interrupts.token)
        finally:
            self._interrupts.wire = None

    def _waits(self, seconds: float | None) -> None:
        self._record.stream.put({"type": "data-waiting", "transient": True, "data": {"seconds": seconds}})
        self._record.stream.flush()

    async def _act(self, row: Row, turn: LoopTurn, history: Sequence[ModelMessage]) -> bool:
        """Run the tools the model asked for; return whether the turn is over, or waits."""
        record = self._record
        assert self._interrupts.token is not None
        projection = Projection(row.steps)
        answers = self._answers(row.number)
        if not answers:
            self._expect_clients(row, history)
            self._begin_runs(row, history)
        # What others answered is in the message already; clients of a continuation do not know the call any more.
        runs = {call.id for call in record.turns.calls(row.number) if call.asked == "run"}
        known = {id for id, (kind, _) in answers.items() if kind != "approved" and (kind == "failed" or id not in runs)}
        acted = await LOOP.act(
            turn,
            history,
            answers,
            self._interrupts.token,
            lambda event: record.stream.put(*projection.event(event, known=known)),
        )
        row = self._interrupts.going_on(row.number)
        self._actor.check_live()
        if acted.request is not None:
            record.transcript.add(row.message, acted.request)
        record.turns.forget_calls(row.number, but=[call.tool_call_id for call in acted.client_calls])
        for call in acted.client_calls:
            whom = "run" if call.tool_name in turn.toolbox.agents else "client"
            record.turns.ask_about(call.tool_call_id, row.number, call.tool_name, call.args_as_json_str(), whom)
        clients = [call for call in acted.client_calls if call.tool_name not in turn.toolbox.agents]
        if acted.approvals or clients:
            await self._wait_for(row, acted)
            return True
        if acted.client_calls:
            return False
        record.stream.put({"type": "finish-step"})
        record.stream.flush()
        self._progressed()
        if not acted.is_over:
            self._count_retries(row, acted)
            return False
        record.turns.set(row.number, output=msgspec.json.encode(json_of(acted.output)).decode())
        record.stream.put({"type": "finish"})
        await self._end(row.number, "completed")
        return True

    def _expect_clients(self, row: Row, history: Sequence[ModelMessage]) -> None:
        """Note what clients are to run: they may be done before our own tools are."""
        theirs = {tool["name"] for tool in row.tools()}
        for part in history[-1].parts:
            if part.part_kind == "tool-call" and part.tool_name in theirs:
                self._record.turns.ask_about(
                    part.tool_call_id, row.number, part.tool_name, part.args_as_json_str(), SOON[0]
                )

    def _begin_runs(self, row: Row, history: Sequence[ModelMessage]) -> None:
        """Have the agents begin that the model wants to use: they work beside our own tools."""
        assert self._toolbox is not None
        turns, place = self._record.turns, 0
        for part in history[-1].parts:
            tool = self._toolbox.agents.get(part.tool_name) if part.part_kind == "tool-call" else None
            if tool is None or part.part_kind != "tool-call":
                continue
            id = part.tool_call_id
            turns.ask_about(id, row.number, part.tool_name, part.args_as_json_str(), SOON[1])
            self._give(row, tool, id, part.args_as_json_str(), place)
            place += 1

    def _give(self, row: Row, tool: AgentTool, id: str, arguments: str, place: int = 0) -> str | None:
        """Give a run for a tool call, or find it again; return its id. None: the arguments do not fit."""
        try:
            given = tool.given(msgspec.json.decode(arguments))
        except (ValueError, msgspec.DecodeError) as error:
            self._record.turns.answer_call(id, "failed", f"The arguments do not fit: {error}", go_on=True)
            return None
        wish = Wish(tool_call=id, place=place, timeout=tool.timeout, display=tool.display, work=row.id)
        return self._actor.of(Runs).give(tool.cls, given, wish).id

    async def _until_runs_are_over(self, row: Row) -> None:
        """Wait for the agents that the model uses; what becomes of them are the answers to its calls."""
        turns, runs = self._record.turns, self._actor.of(Outcomes)
        calls = [call for call in turns.calls(row.number) if call.asked == "run" and call.is_open]
        if not calls:
            return
        if self._toolbox is None:
            self._toolbox = Toolbox(self._actor, tuple(self._agent.tools))
        for call in calls:
            tool = self._toolbox.agents[call.name]
            run = self._give(row, tool, call.id, call.input)
            while run is not None and runs.of(run).status in ("starting", "running"):
                await asyncio.wait({runs.changing(run), self._interrupts.stopped}, return_when=asyncio.FIRST_COMPLETED)
                self._actor.check_live()
                self._interrupts.going_on(row.number)
            if run is not None:
                self._answer_with(call.id, tool, runs.of(run))
                self._progressed()

    def _answer_with(self, id: str, tool: AgentTool, run: Run) -> None:
        """Take what became of a run as the answer to a tool call."""
        turns, stream = self._record.turns, self._record.stream
        failure = None if run.ok else run.failure()
        if failure is None:
            try:
                turns.answer_call(id, "done", tool.returned(run), go_on=True)
                return
            except ValueError as error:
                failure = {
                    "ok": False,
                    "status": "error",
                    "error": f"Its output does not fit: {error}",
                    "retryable": False,
                }
        turns.answer_call(id, "failed", msgspec.json.encode(failure).decode(), go_on=True)
        stream.put({"type": "tool-output-error", "toolCallId": id, "errorText": failure["error"]})

    @contextmanager
    def _within(self, row: Row, id: str, name: str) -> Generator[None, None, None]:
        """Have the runs that are given in this block belong to a tool call."""
        token = tool_call.set(ToolCall(self._actor, id, row.id))
        try:
            with tracing.span(f"execute_tool {name}", gen_ai__tool__name=name, gen_ai__tool__call__id=id):
                yield
        finally:
            tool_call.reset(token)

    def _count_retries(self, row: Row, acted: Acted) -> None:
        """Pydantic AI counts from nothing each time it is entered: over a turn, we count."""
        parts = acted.request.parts if acted.request is not None else ()
        retried = any(part.part_kind == "retry-prompt" or getattr(part, "outcome", "") == "retried" for part in parts)
        if retried and row.retries >= self._agent.max_retries:
            raise Refused(f"The model made the same mistake {row.retries + 1} times (max_retries).")
        self._record.turns.set(row.number, retries=row.retries + 1 if retried else 0)

    async def _wait_for(self, row: Row, acted: Acted) -> None:
        record = self._record
        for call in acted.approvals:
            id = call.tool_call_id
            record.turns.ask_about(id, row.number, call.tool_name, call.args_as_json_str(), "approval")
            record.stream.put({"type": "tool-approval-request", "approvalId": id, "toolCallId": id})
        await self._until_runs_are_over(row)
        record.stream.put({"type": "finish-step"})
        await self._end(row.number, "waiting")

    async def _respond_at_last(self, row: Row) -> None:
        """Let the agent's own `respond` answer; again if it falls silent."""
        for failed in range(1, PROVIDER.attempts + 1):
            try:
                await self._respond(row)
            except Stalled:
                if failed == PROVIDER.attempts:
                    raise
                self._begin_again(row, 1)
            else:
                return

    async def _respond(self, row: Row) -> None:
        """Let the agent's own `respond` answer."""
        from pydantic_ai.messages import ModelResponse, TextPart

        record = self._record
        record.stream.forget_from(1)
        record.stream.begin_step(1)
        record.stream.put({"type": "start-step"})
        await self._actor.leave()
        texts: list[str] = []
        answer: AsyncGenerator[str | Chunk, None] = self._agent.respond(record.shown(row))
        silence = self._listen_for(self._interrupts.cut_own_code)
        try:
            with self._interrupts.own_code(row.number):
                try:
                    async for said in answer:
                        self._interrupts.going_on(row.number)
                        if silence is not None:
                            silence.broken()
                        if not isinstance(said, str) and said["type"] == "error":
                            raise Failed(str(said["errorText"]))
                        record.stream.put(*_chunks_of(said, first=not texts))
                        if isinstance(said, str):
                            texts.append(said)
                finally:
                    await answer.aclose()
        except Cancelled:
            if (
                silence is None
                or not silence.is_too_long
                or self._interrupts.is_cancelled(self._record.turns.of(row.number))
            ):
                raise
            raise Stalled(Stalled.__doc__) from None
        finally:
            if silence is not None:
                silence.end()
        if texts:
            record.stream.put({"type": "text-end", "id": "1-0"})
        record.stream.put({"type": "finish-step"}, {"type": "finish"})
        self._actor.check_live()
        text = "".join(texts)
        record.transcript.add(row.message, ModelResponse(parts=[TextPart(text)]))
        record.turns.set(row.number, output=msgspec.json.encode(text).decode(), steps=1)
        await self._end(row.number, "completed")

    def _progressed(self) -> None:
        call = current.get()
        if call is not None and isinstance(call.work, Work):
            call.work.progressed()


def _chunks_of(said: str | Chunk, *, first: bool) -> list[Chunk]:
    if not isinstance(said, str):
        return [said]
    start: list[Chunk] = [{"type": "text-start", "id": "1-0"}] if first else []
    return [*start, {"type": "text-delta", "id": "1-0", "delta": said}]
