"""`record`: a turn of a chat agent as a pytest file."""

from __future__ import annotations

import asyncio
from importlib.metadata import version
from typing import Any, NamedTuple

import msgspec

from sapwood.address import Address
from sapwood.admin.agent_lookup import MOST_ROWS
from sapwood.admin.app_origin import deps_origin, origin_of, unknown_origin
from sapwood.admin.endpoint import AdminCall, Answer, Endpoint, OneAgent
from sapwood.admin.recorded_test import RecordedTest
from sapwood.admin.redacted_turn import RedactedTurn
from sapwood.admin.turn_script import TurnScript
from sapwood.chat.store.turn_copies import TurnCopy, turn_copy
from sapwood.errors import InvalidArguments, NotFound, UnknownAgent
from sapwood.kernel.marshal.agent_class import AgentClass
from sapwood.kernel.ports.work_id import WorkId
from sapwood.kernel.trees.tree import Tree
from sapwood.runs.tables.decisions import ASK
from sapwood.storage.database import Database

DECIDED = ("approved", "denied")
ANSWERED = ("answered", "denied")
"""The kinds of decisions about tool calls, and about what code asks."""

WROTE, ASKED_FOR = "what a person wrote", "what a person was asked"


class OneTurn(OneAgent):
    turn: str


async def _record(call: AdminCall, params: OneTurn) -> Answer:
    address = Address.parse(params.address)
    tree, database = await call.read(address)
    kind = _class_of(call, tree, address)
    copy = _copy(database, address, params.turn.removeprefix("run "), kind)
    records = _Records.read(call, database, copy)
    redacted = RedactedTurn(call.content)
    shown = redacted.of(copy)
    said = "".join(step.text for step in copy.steps)
    error = records.model_error(copy)
    calls, answers = records.call_comments(copy, redacted), records.answers(copy, redacted)
    test = RecordedTest(
        TurnScript(shown, error, records.step_comments(has_failed=error is not None), calls),
        "".join(step.text for step in shown.steps) if said == copy.text else shown.text,
        address,
        unknown_origin(address.type) if kind is None else origin_of(kind.cls),
        version("sapwood"),
        deps=None if kind is None else deps_origin(kind),
        debounces=kind is not None and getattr(kind.cls, "concurrency", None) == "debounce",
        notes=[
            *(f"Redacted: {one}" for one in redacted.changed),
            *(f"Not copied: {one}" for one in shown.missing),
            *answers,
        ],
    )
    return {"file": test.file, "text": await asyncio.to_thread(test.text)}  # a long turn takes long to write


def _class_of(call: AdminCall, tree: Tree, address: Address) -> AgentClass | None:
    """Return the class of an agent; `None` without the app."""
    try:
        return call.admin.lookup.kind(tree, address)
    except UnknownAgent:
        return None


def _copy(database: Database, address: Address, turn: str, kind: AgentClass | None) -> TurnCopy:
    copy = turn_copy(database, turn)
    if copy is None:
        raise NotFound(f"{address} has no turn {turn!r}.", path=address.segments)
    if isinstance(copy, str):
        why = "it did not begin" if copy in ("skipped", "cancelled") else "wait until it has ended"
        raise InvalidArguments(f"The turn {turn!r} of {address} is {copy}: {why}.")
    if kind is not None and kind.overrides("respond"):
        raise InvalidArguments(f"{kind.cls.__name__} answers in respond(), so there is no model to script.")
    if not copy.steps and copy.status == "completed":
        raise InvalidArguments(f"The turn {turn!r} of {address} completed without a model, so there is none to script.")
    if not copy.asked:
        raise InvalidArguments(f"The message that the turn {turn!r} of {address} answers is deleted.")
    if any(step.continues for step in copy.steps) and copy.status != "completed":
        raise InvalidArguments(f"The turn {turn!r} of {address} was continued and then {copy.status}.")
    return copy


class _Records(NamedTuple):
    """What is recorded of a turn beside the conversation."""

    spans: list[dict[str, Any]]
    decisions: list[dict[str, Any]]

    @classmethod
    def read(cls, call: AdminCall, database: Database, copy: TurnCopy) -> _Records:
        reads = call.node.read_models
        spans = reads.spans(database, str(WorkId.run(copy.id)), MOST_ROWS)
        return cls(spans, reads.decisions(database, MOST_ROWS) or [])

    def model_error(self, copy: TurnCopy) -> str | None:
        """Return with what the last request to the model failed; `None` if it did not."""
        if copy.status != "failed":
            return None
        requests = [one for one in self.spans if one["kind"] == "step" and one["step"] is not None]
        if requests:
            last = requests[-1]
            return str(last["facts"].get("error", "failed")) if last["status"] in ("failed", "interrupted") else None
        # Nothing is recorded. Without an answer to the last message or result, it was the model.
        return "failed" if not copy.steps or copy.steps[-1].calls or copy.steps[-1].is_cut else None

    def step_comments(self, *, has_failed: bool) -> dict[int, str]:
        """Return the attempts that steps needed, by the numbers of the steps; not the one that ended the turn."""
        found: dict[int, list[str]] = {}
        requests = [one for one in self.spans if one["kind"] == "step" and one["step"] is not None]
        for one in requests[:-1] if has_failed else requests:
            if one["status"] in ("failed", "interrupted"):
                why = one["facts"].get("error")
                how = one["status"] if why is None else f"{one['status']} ({why})"
                found.setdefault(one["step"], []).append(f"attempt {one['attempt']} {how}")
        return {step: ", ".join(attempts) for step, attempts in found.items()}

    def call_comments(self, copy: TurnCopy, redacted: RedactedTurn) -> dict[str, str]:
        """Return what is recorded of tool calls, by their ids in the copy."""
        found: dict[str, list[str]] = {}
        for one in self.spans:
            if one["kind"] == "tool" and one["attempt"] > 1:
                found.setdefault(one["facts"].get("key", ""), []).append(f"attempt {one['attempt']}")
        for one in self.decisions:
            if one["kind"] not in DECIDED or one["tool"] == ASK or one["question"] not in copy.ids:
                continue
            what = one["kind"]
            if one["arguments"] is not None:
                what += f" with {_json(redacted.value('arguments', msgspec.json.decode(one['arguments']), WROTE))}"
            found.setdefault(one["question"], []).append(what)
        return {copy.ids[id]: ", ".join(dict.fromkeys(notes)) for id, notes in found.items() if id in copy.ids}

    def answers(self, copy: TurnCopy, redacted: RedactedTurn) -> list[str]:
        """Return what people answered during the turn that code has asked them."""
        found: list[str] = []
        for one in self.decisions:
            if one["kind"] not in ANSWERED or one["tool"] != ASK or not copy.began_at <= one["at"] <= copy.ended_at:
                continue
            prompt = redacted.value("message", msgspec.json.decode(one["shown"]).get("prompt"), ASKED_FOR)
            answer = None if one["arguments"] is None else msgspec.json.decode(one["arguments"])
            said = _json(redacted.value("message", answer, WROTE)) if one["kind"] == "answered" else "no answer"
            found.append(f"A person was asked: {prompt} Answer: {said}")
        return found


def _json(value: Any) -> str:
    return msgspec.json.encode(value).decode()


RECORD = Endpoint("record", "content", OneTurn, _record)
