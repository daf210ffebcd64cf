"""`act`: acts on what an agent has to do later, or failed to do. A preview says what would happen."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Literal

from sapwood.address import Address
from sapwood.admin.agenda import FIBER, Found, UnfinishedWorks
from sapwood.admin.endpoint import AdminCall, Answer, Endpoint, OneAgent
from sapwood.capabilities.due_work import Agenda
from sapwood.capabilities.queue import Queue
from sapwood.capabilities.schedules import Schedules
from sapwood.errors import InvalidArguments
from sapwood.kernel.actors.actor import Actor


class ActParams(OneAgent):
    id: str
    do: Literal["fire", "cancel", "retry", "replay", "delete"]
    method: str | None = None
    preview: bool = False


@dataclass(frozen=True, slots=True)
class Act:
    """What is done, in a sentence and as a function of the agent."""

    effect: str
    apply: Callable[[Actor], bool]


async def _act(call: AdminCall, params: ActParams) -> Answer:
    if params.method is not None and params.do != "replay":
        raise InvalidArguments("`method` is for `replay` only.")
    if params.do in ("replay", "delete"):
        return await _with_letters(call, params)
    address = Address.parse(params.address)
    found = await UnfinishedWorks(call.node).find(address, params.id)
    act = {"fire": _fire, "cancel": _cancel, "retry": _retry}[params.do](found)
    if params.preview:
        return {"done": 0, "effect": act.effect}
    with call.content.of_failures():
        actor = await call.admin.lookup.wake(found.owner)
        done = act.apply(actor)
        await actor.leave()
    return {"done": int(done), "effect": act.effect if done else "Changes nothing: it has ended or is running."}


def _fire(found: Found) -> Act:
    if found.work.kind != "schedule":
        raise InvalidArguments("Only a schedule can be made due. Queued calls are called in their order.")
    return Act(f"Calls {found.work.name}() now.", lambda actor: actor.of(Agenda).make_due(found.id))


def _cancel(found: Found) -> Act:
    work, id = found.work, found.id
    if work.kind == "schedule":
        return Act(f"Cancels the schedule of {work.name}().", lambda actor: actor.of(Schedules).cancel(id))
    if work.kind == "queued":
        queue = f"the queue {work.queue!r}" if work.queue else "the default queue"
        return Act(f"Removes {work.name}() from {queue}.", lambda actor: actor.of(Queue).remove(id))
    if work.status == "failed":
        raise InvalidArguments(f"The fiber {work.name!r} has failed already.")
    return Act(f"Cancels the fiber {work.name!r}.", lambda actor: actor.of(Agenda).fibers.cancel(_fiber_id(id)))


def _retry(found: Found) -> Act:
    work, id = found.work, found.id
    if work.kind == "fiber":
        if work.status == "failed":
            return Act(f"Resumes the fiber {work.name!r}.", lambda actor: actor.of(Agenda).fibers.resume(_fiber_id(id)))
        if work.status == "waiting" or found.is_running:
            doing = "sleeping" if work.status == "waiting" else "running"
            raise InvalidArguments(f"The fiber {work.name!r} has not failed: it is {doing}.")
        return Act(
            f"Recovers the fiber {work.name!r}.", lambda actor: actor.of(Agenda).fibers.recover_now(_fiber_id(id))
        )
    if not work.failures:
        raise InvalidArguments(f"{work.name}() has not failed.")
    return Act(f"Calls {work.name}() again now.", lambda actor: actor.of(Agenda).make_due(id))


def _fiber_id(id: str) -> str:
    return id.removeprefix(FIBER)


async def _with_letters(call: AdminCall, params: ActParams) -> Answer:
    stored = call.admin.dead_letters
    meant = await stored.find(params.address, params.id)
    what = f"{meant[0]['method']}()" if len(meant) == 1 else f"{len(meant)} dead letters"
    if params.method is not None:
        effect = f"Calls {params.method}() with the arguments of {what}."
    elif params.do == "replay":
        effect = f"Calls {what} again, with the same arguments."
    else:
        effect = f"Deletes the dead letter of {what}." if len(meant) == 1 else f"Deletes {what}."
    if params.preview:
        return {"done": 0, "effect": effect}
    with call.content.of_failures():
        if params.method is not None:
            done, skipped = await stored.replay_as(params.address, params.id, params.method)
            if skipped:
                whole = f"{done} of {done + skipped} dead letters"
                effect = f"Called {params.method}() with the arguments of {whole}. The other arguments do not fit it."
        elif params.do == "replay":
            done = await stored.replay(params.address, params.id)
        else:
            done = await stored.delete(params.address, params.id)
        return {"done": done, "effect": effect}


ACT = Endpoint("act", "act", ActParams, _act, more=lambda params: "call" if params.method is not None else None)
