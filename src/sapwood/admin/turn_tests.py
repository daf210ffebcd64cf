"""`record`: a turn of a chat agent as a pytest file."""

from __future__ import annotations

import asyncio
from importlib.metadata import version

from sapwood.address import Address
from sapwood.admin.app_origin import deps_origin, origin_of, unknown_origin
from sapwood.admin.endpoint import AdminCall, Answer, Endpoint, OneAgent
from sapwood.admin.recorded_test import RecordedTest
from sapwood.admin.recorded_tree import RecordedTree, class_of, copy_of
from sapwood.admin.redacted_turn import RedactedTurn
from sapwood.admin.turn_records import TurnRecords


class RecordedTurn(OneAgent):
    turn: str
    run_tools: bool = False


async def _record(call: AdminCall, params: RecordedTurn) -> Answer:
    address, turn = Address.parse(params.address), params.turn.removeprefix("run ")
    tree, database = await call.read(address)
    kind = class_of(call, tree, address)
    copy = copy_of(database, address, turn, kind)
    redacted = RedactedTurn(call.content)
    root = Address.root_of(*address.segments[-1])
    records = TurnRecords.read(call, database, copy)
    whole = RecordedTree(call, redacted, runs_tools=params.run_tools)
    script = await whole.script(address, root, copy, records, kind)
    shown = script.copy
    said = "".join(step.text for step in copy.steps)
    test = RecordedTest(
        script,
        "".join(step.text for step in shown.steps) if said == copy.text else shown.text,
        address,
        unknown_origin(address.type) if kind is None else origin_of(kind.cls),
        version("sapwood"),
        deps=None if kind is None else deps_origin(kind),
        debounces=kind is not None and getattr(kind.cls, "concurrency", None) == "debounce",
        agents=whole.agents,
        notes=[
            *(f"Redacted: {one}" for one in redacted.changed),
            *(f"Not copied: {one}" for one in dict.fromkeys(whole.missing)),
            *records.answers(copy, redacted),
        ],
    )
    return {"file": test.file, "text": await asyncio.to_thread(test.text)}  # a long turn takes long to write


RECORD = Endpoint("record", "content", RecordedTurn, _record)
