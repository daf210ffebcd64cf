"""`replay`: a stored request of a turn, or all of them, to a model again. Nothing is written to the agent."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import AsyncGenerator, Sequence
from contextlib import AsyncExitStack, asynccontextmanager, suppress
from dataclasses import replace
from typing import TYPE_CHECKING, Any, NamedTuple

from sapwood.address import Address
from sapwood.admin.agent_lookup import MOST_ROWS
from sapwood.admin.endpoint import AdminCall, Answer, Endpoint, OneAgent
from sapwood.chat.models.model_check import ModelUnusable
from sapwood.chat.models.named_models import NamedModels, model_of, names_of
from sapwood.chat.models.providers import Providers
from sapwood.chat.models.stored_request import StoredRequest, has_files
from sapwood.chat.models.turn_replay import AskedCall, ReplayedStep, Replayer, TurnReplay
from sapwood.chat.store.request_reads import stored_form
from sapwood.chat.store.tool_keys import tools_without_keys
from sapwood.chat.store.turn_copies import turn_copy
from sapwood.errors import InvalidArguments, NotFound, StoredDataError, UnknownAgent
from sapwood.kernel.ports.work_id import WorkId
from sapwood.kernel.trees.usage import NANO
from sapwood.storage.database import Database

if TYPE_CHECKING:
    from pydantic_ai.models import Model

LONGEST = 540.0
"""Seconds that a replay may take: less than clients wait for it."""
KEEP = "Records are kept as `record_retention` of the class says."

log = logging.getLogger(__name__)


class Replay(OneAgent):
    turn: str
    step: int | None = None
    model: str | None = None
    instructions: str | None = None


async def _replay(call: AdminCall, params: Replay) -> Answer:
    address, turn = Address.parse(params.address), params.turn.removeprefix("run ")
    tree, database = await call.read(address)
    stored = _Stored.read(call, database, address, turn)
    numbers = list(stored.spans) if params.step is None else [params.step]
    requests, original = [stored.request(number) for number in numbers], stored.original()
    try:
        cls: Any = call.admin.lookup.kind(tree, address).cls
    except UnknownAgent:
        cls = None
    replay = TurnReplay()
    async with AsyncExitStack() as stack:
        model, name = await _model(call, stack, params.model, requests[0].model, cls)
        replayer = Replayer(model, call.node.settings.prices, lambda: _turn_of(call, model), params.instructions)
        try:
            async with asyncio.timeout(LONGEST):
                if params.step is None:
                    await replayer.turn(requests, replay)
                else:
                    await replayer.step(params.step, requests[0], replay)
        except TimeoutError:
            replay.ended, replay.problem = "failed", f"took longer than {LONGEST:.0f} seconds"
        finally:  # also if the client has left
            log.info(
                "turn replayed address=%s turn=%s model=%s token=%s requests=%d input_tokens=%d output_tokens=%d",
                address,
                turn,
                name,
                call.access.name,
                len(replay.steps),
                sum(step.input_tokens or 0 for step in replay.steps),
                sum(step.output_tokens or 0 for step in replay.steps),
            )
    shown = original if params.step is None else [one for one in original if one.step == params.step]
    return {
        "address": str(address),
        "turn": turn,
        "original": {"model": requests[0].model, "steps": [_shown(call, one) for one in shown]},
        "replay": {
            "model": name,
            "ended": replay.ended,
            "problem": call.content.text("error", replay.problem),
            "steps": [
                _shown(call, one) | {"same": any(one.step == two.step and one.is_same(two) for two in original)}
                for one in replay.steps
            ],
        },
    }


class _Stored(NamedTuple):
    """What is stored of a turn."""

    database: Database
    address: Address
    turn: str
    spans: dict[int, dict[str, Any]]
    """The last attempt of each step that has ended well, or the last."""

    @classmethod
    def read(cls, call: AdminCall, database: Database, address: Address, turn: str) -> _Stored:
        spans: dict[int, dict[str, Any]] = {}
        for one in call.node.read_models.spans(database, str(WorkId.run(turn)), MOST_ROWS):
            if one["kind"] == "step" and one["step"] is not None:
                known = spans.get(one["step"])
                if known is None or known["status"] != "completed":
                    spans[one["step"]] = one
        if not spans:
            raise NotFound(
                f"{address} has no record of a model request of a turn {turn!r}. {KEEP}", path=address.segments
            )
        return cls(database, address, turn, dict(sorted(spans.items())))

    def request(self, step: int) -> StoredRequest:
        """Return the request of a step; refuse one that cannot be made again as it was."""
        where = f"step {step} of turn {self.turn!r} of {self.address}"
        if (span := self.spans.get(step)) is None:
            known = ", ".join(map(str, self.spans))
            raise NotFound(f"There is no record of {where}. Recorded steps: {known}.", path=self.address.segments)
        form = stored_form(self.database, span["number"])
        if form is None:
            raise NotFound(
                f"The request of {where} is not recorded: its process ended before the next commit, or the database "
                f"was nearly full. {KEEP}",
                path=self.address.segments,
            )
        if form.is_redacted:
            raise InvalidArguments(
                f"The request of {where} was changed by App(redact=…) before it was recorded, so it cannot be made "
                "again as it was."
            )
        if not form.is_whole:
            raise StoredDataError(
                f"The request of {where} is not whole: a text of more than 1 MiB is not recorded, or the record is "
                "damaged."
            )
        if has_files(form.body):
            raise InvalidArguments(
                f"The request of {where} has files, and a record names files without their bytes. It cannot be made "
                "again as it was."
            )
        request = StoredRequest.read(form.body)
        if keyless := tools_without_keys(request.parameters):
            raise InvalidArguments(
                f"The request of {where} has tools of the provider that could not authenticate, because their keys are "
                f"not recorded: {', '.join(keyless)}. It cannot be made again as it was."
            )
        return request

    def original(self) -> list[ReplayedStep]:
        """Return what the model answered then."""
        copy = turn_copy(self.database, self.turn)
        if copy is None or isinstance(copy, str):
            why = "it is not stored any more" if copy is None else f"it is {copy}"
            raise InvalidArguments(f"The turn {self.turn!r} of {self.address} has no answer to compare with: {why}.")
        found: list[ReplayedStep] = []
        for one in copy.steps:
            calls = [AskedCall(made.tool, made.arguments) for made in one.calls]
            step, span = ReplayedStep(one.number, one.text, calls), self.spans.get(one.number)
            found.append(step if span is None else _measured(step, span))
        return found


def _measured(step: ReplayedStep, span: dict[str, Any]) -> ReplayedStep:
    facts: dict[str, Any] = span["facts"]
    cost = facts.get("nanodollars")
    return replace(
        step,
        model=facts.get("model"),
        input_tokens=facts.get("input_tokens"),
        output_tokens=facts.get("output_tokens"),
        cost=None if cost is None else cost / NANO,
        seconds=None if span["ended_at"] is None else span["ended_at"] - (span["began_at"] or 0.0),
    )


async def _model(
    call: AdminCall, stack: AsyncExitStack, name: str | None, recorded: str, cls: Any
) -> tuple[Model, str]:
    """Return the model to ask, and its name: by default, the one that answered then."""
    named = call.node.shared(NamedModels)
    try:
        if name is not None:
            model = named.find(name)
            return (model if name in named.models else await stack.enter_async_context(model)), name
        for one in (*_models_of(cls), *named.models.values()):
            with suppress(ModelUnusable):  # for example without its key: another one may be meant
                if (model := model_of(one)).model_id == recorded:
                    return model, recorded
        return await stack.enter_async_context(named.find(recorded)), recorded
    except ModelUnusable as error:
        if name is None:
            raise InvalidArguments(
                f"The model {recorded!r} that was asked then is not the `model` of the class, and cannot be made from "
                f"its name: {_sentence(call, error)} Name a model, here or in App(models=…)."
            ) from None
        raise InvalidArguments(f"The model {name!r} cannot be used: {_sentence(call, error)}") from None


def _sentence(call: AdminCall, error: ModelUnusable) -> str:
    """Return why a model cannot be used; a command that opened the folder knows no model of an app."""
    why = f"{str(error).rstrip('.')}."
    if call.node.roots:
        return f"{why} {names_of(call.node.shared(NamedModels).models)}"
    return f"{why} Names of App(models=…) and models of classes need the running server."


def _models_of(cls: Any) -> Sequence[Any]:
    """Return the models that a class names itself."""
    found = (getattr(cls, "model", None), getattr(getattr(cls, "loop", None), "model", None))
    return [one for one in found if isinstance(one, str) or hasattr(one, "request_stream")]


@asynccontextmanager
async def _turn_of(call: AdminCall, model: Model) -> AsyncGenerator[None]:
    """Wait until the provider may be asked: a replay has its turn among the agents."""
    never: asyncio.Future[None] = asyncio.get_running_loop().create_future()
    async with call.node.shared(Providers).of(model).request("replay", lambda _: None, never):
        yield


def _shown(call: AdminCall, step: ReplayedStep) -> dict[str, Any]:
    content = call.content
    return {
        "step": step.step,
        "text": content.text("message", step.text),
        "calls": [{"tool": one.tool, "arguments": content.value("arguments", one.arguments)} for one in step.calls],
        "model": step.model,
        "input_tokens": step.input_tokens,
        "output_tokens": step.output_tokens,
        "nanodollars": None if step.cost is None else round(step.cost * NANO),
        "seconds": step.seconds,
    }


REPLAY = Endpoint("replay", "replay", Replay, _replay, more=lambda _: "content", needs_client=True)
