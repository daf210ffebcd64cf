"""`cancel-run` and `cancel-turn`: stop what an agent does, and what others do for it. A preview counts them."""

from __future__ import annotations

import asyncio
from collections.abc import Sequence

from sapwood.address import Address
from sapwood.admin.agent_lookup import MOST_ROWS
from sapwood.admin.endpoint import AdminCall, Answer, Endpoint, OneAgent
from sapwood.chat.turn.conversation import Conversation
from sapwood.errors import NotFound
from sapwood.kernel.ports.read_models import UnfinishedRun
from sapwood.kernel.trees.deletion import child_stem
from sapwood.kernel.trees.tree import Tree
from sapwood.runs.dispatch.lifecycle import Runs
from sapwood.runs.execution.contract import CANCELLED

MOST_COUNTED = 1000
"""Agents that are counted at most for a preview: each database has to be read."""


class CancelRun(OneAgent):
    run: str
    preview: bool = False


class CancelTurn(OneAgent):
    turn: str | None = None
    preview: bool = False


async def _cancel_run(call: AdminCall, params: CancelRun) -> Answer:
    address = Address.parse(params.address)
    tree, found, stem = await call.admin.lookup.find(address)
    tree.slices.commit()
    open_runs = call.node.read_models.unfinished_runs(call.admin.lookup.database(tree, stem), None, MOST_ROWS)
    runs = [run for run in open_runs if run.id == params.run]
    if not runs:
        raise NotFound(f"{found} has no unfinished run {params.run!r}.", path=found.segments)
    effect = f"Cancels the run of {runs[0].type}:{runs[0].name}. {await _stops(call, tree, stem, runs)}"
    if params.preview:
        return {"done": 0, "effect": effect}
    with call.content.of_failures():
        actor = await call.admin.lookup.wake(found)
        is_done = actor.of(Runs).cancel(params.run, CANCELLED)
        await actor.leave()
    return {"done": int(is_done), "effect": effect}


async def _cancel_turn(call: AdminCall, params: CancelTurn) -> Answer:
    address = Address.parse(params.address)
    tree, found, stem = await call.admin.lookup.find(address)
    tree.slices.commit()
    database, reads = call.admin.lookup.database(tree, stem), call.node.read_models
    id = None if params.turn is None else params.turn.removeprefix("run ")
    turns = [turn for turn in reads.open_turns(database, MOST_ROWS) if id in (None, turn.id)]
    if not turns:
        what = "turn" if id is None else f"turn {id!r}"
        raise NotFound(f"{found} has no unfinished {what}.", path=found.segments)
    runs = [run for turn in turns for run in reads.unfinished_runs(database, turn.id, MOST_ROWS)]
    counted = f"the turn {turns[0].id!r}" if len(turns) == 1 else f"{len(turns)} turns"
    effect = f"Cancels {counted}. {await _stops(call, tree, stem, runs)}"
    if params.preview:
        return {"done": 0, "effect": effect}
    # Those in the queue first: the next one begins when the running one ends.
    ordered = sorted(turns, key=lambda turn: turn.status != "queued")
    with call.content.of_failures():
        actor = await call.admin.lookup.wake(found)
        done = sum(actor.of(Conversation).cancel(turn.id) for turn in ordered)
        await actor.leave()
    return {"done": done, "effect": effect}


async def _stops(call: AdminCall, tree: Tree, stem: str, runs: Sequence[UnfinishedRun]) -> str:
    """Say how many agents execute these runs and those below them."""
    count = await _agents_of(call, tree, stem, runs)
    if count > MOST_COUNTED:
        return f"Stops more than {MOST_COUNTED} agents."
    return f"Stops {count} agent{'' if count == 1 else 's'}." if count else "Stops no other agent."


async def _agents_of(call: AdminCall, tree: Tree, stem: str, runs: Sequence[UnfinishedRun]) -> int:
    lookup, seen = call.admin.lookup, set[str]()
    to_visit = [(stem, run) for run in runs]
    tree.visitors += 1
    try:
        while to_visit and tree.destroyed is None and len(seen) <= MOST_COUNTED:
            above, run = to_visit.pop()
            child = lookup.children(tree, above).find((run.type,), run.name)
            if child is None or (below := child_stem(above, child.generation)) in seen:
                continue
            seen.add(below)
            found = call.node.read_models.unfinished_runs(lookup.database(tree, below), None, MOST_COUNTED)
            to_visit += [(below, one) for one in found]
            await asyncio.sleep(0)
    finally:
        tree.visitors -= 1
    return len(seen)


CANCEL_RUN = Endpoint("cancel-run", "act", CancelRun, _cancel_run)
CANCEL_TURN = Endpoint("cancel-turn", "act", CancelTurn, _cancel_turn)
