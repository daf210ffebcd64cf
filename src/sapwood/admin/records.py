"""`works`, `spans` and `asked`: what an agent did and when, as it is recorded."""

from __future__ import annotations

import asyncio
import re
from collections.abc import AsyncGenerator, AsyncIterator
from contextlib import aclosing
from typing import Annotated, Any, cast

import msgspec

from sapwood.address import Address
from sapwood.admin.cursors import WRONG
from sapwood.admin.endpoint import AdminCall, AgentPage, Answer, Endpoint, Event, OneAgent
from sapwood.admin.event_stream import END
from sapwood.admin.waiting_runs import with_waits
from sapwood.admin.walk import Visited, walk
from sapwood.errors import InvalidArguments, SapwoodError
from sapwood.kernel.ports.read_models import Timespan

SPANS_AT_ONCE = 200
"""Spans of an event. Other agents have their turn after each."""
MOST_SPANS = 20_000
LONGEST_INPUT = 200
"""Characters of what work was given."""


class Works(AgentPage):
    work: str | None = None


async def _works(call: AdminCall, params: Works) -> Answer:
    _, database = await call.read(Address.parse(params.address))
    reads = call.node.read_models
    if params.work is not None:
        spans = reads.spans(database, params.work, 1)
        found = [span for span in spans if span["parent"] is None and params.after is None]
    else:
        found = reads.works(database, _checked(params.after), params.limit + 1)
    page = found[: params.limit]
    inputs: dict[str, Any] = {}
    for read in reads.inputs:
        inputs |= read(database, [span["work"] for span in page])
    rows = [call.content.span(span) | {"input": _input(call, inputs.get(span["work"]))} for span in page]
    after = reads.work_cursor(page, params.after) if len(found) > params.limit else None
    return {"rows": rows, "next": after}


def _checked(after: str | None) -> str | None:
    """Return the cursor of a page of works: two numbers, of which one may be missing."""
    if after is not None and re.fullmatch(r"[0-9]{0,18}\.[0-9]{0,18}", after, re.ASCII) is None:
        raise InvalidArguments(WRONG)
    return after


class Spans(OneAgent):
    work: str | None = None
    begins_at: float | None = msgspec.field(default=None, name="from")
    ends_at: float | None = msgspec.field(default=None, name="to")
    below: bool = False
    only_failed: bool = False
    after: Annotated[int, msgspec.Meta(ge=-(2**62), le=2**62)] | None = None


async def _spans(call: AdminCall, params: Spans) -> AsyncIterator[Event]:
    which = Timespan(params.work, params.begins_at, params.ends_at, params.only_failed)
    told, agents, start = 0, 0, Address.parse(params.address)
    has_more = False
    async with aclosing(walk(call.admin.lookup, start, below=params.below)) as visited:
        async for one in visited:
            after = None if agents else params.after
            agents += 1
            try:
                async with aclosing(_pages(call, one, which, after)) as pages:
                    async for page in pages:
                        has_more = told + len(page) > MOST_SPANS
                        page = page[: MOST_SPANS - told]
                        told += len(page)
                        if page:
                            yield "spans", _event(call, one, page)
                        if has_more:
                            break
            except SapwoodError:
                if one.address == start:
                    raise  # of the others, those are shown that can be read
            if has_more:
                break
            which = which._replace(work=None)  # the work of other agents has ids of its own
    yield END, {"spans": told, "agents": agents, "more": has_more}


async def _pages(
    call: AdminCall, one: Visited, which: Timespan, after: int | None
) -> AsyncGenerator[list[dict[str, Any]], None]:
    """Yield the spans of one agent by pages. Other agents have their turn between two of them."""
    while page := call.node.read_models.timeline(one.database, which, after, SPANS_AT_ONCE):
        yield page
        if len(page) < SPANS_AT_ONCE:
            return
        after = max(span["number"] for span in page)
        await asyncio.sleep(0)
        if one.tree.destroyed is not None:
            return
        one.tree.slices.commit()


def _event(call: AdminCall, one: Visited, page: list[dict[str, Any]]) -> dict[str, Any]:
    numbers = {span["incarnation"] for span in page}
    known = call.node.read_models.incarnations(one.database)
    first, last = min(numbers), max(numbers) + 1  # with the next one: where a gap ends
    return {
        "address": str(one.address),
        "spans": [call.content.span(span) for span in with_waits(one.tree, one.address, page)],
        "incarnations": [entry._asdict() for entry in known if first <= entry.number <= last],
    }


def _input(call: AdminCall, value: Any) -> Any:
    """Return what work was given as a short text, or what stands for it."""
    if value is None or value == {}:
        return None
    shown = call.content.value("input", value)
    if not call.content.is_shown:
        return shown
    if isinstance(shown, dict):
        fields = cast("dict[str, Any]", shown)
        shown = ", ".join(f"{name}: {msgspec.json.encode(one).decode()}" for name, one in fields.items())
    text = shown if isinstance(shown, str) else msgspec.json.encode(shown).decode()
    text = " ".join(text.split())
    return text if len(text) <= LONGEST_INPUT else text[:LONGEST_INPUT] + "…"


class Step(OneAgent):
    turn: str
    step: int


async def _asked(call: AdminCall, params: Step) -> Answer:
    told = await call.admin.explain(params.address, params.turn.removeprefix("run "), params.step)
    requests: list[dict[str, Any]] = told["requests"]
    return {"requests": [one | {"body": call.content.text("request", one["body"])} for one in requests]}


WORKS = Endpoint("works", "look", Works, _works)
SPANS = Endpoint("spans", "look", Spans, stream=_spans)
ASKED = Endpoint("asked", "content", Step, _asked)
