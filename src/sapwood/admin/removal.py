"""`restart` and `destroy`: end agents with all below them, for now or for good. A preview counts them."""

from __future__ import annotations

from contextlib import aclosing

from sapwood.address import Address
from sapwood.admin.endpoint import AdminCall, Answer, Endpoint, OneAgent
from sapwood.admin.walk import walk
from sapwood.errors import InvalidArguments, SapwoodError, Unavailable
from sapwood.kernel.trees.tree import Tree
from sapwood.runs.dispatch.child_removal import delete_child
from sapwood.runs.dispatch.lifecycle import Runs

MOST_COUNTED = 1000
"""Agents below an agent that are counted at most, if each database has to be read."""


class Restart(OneAgent):
    preview: bool = False


class Destroy(OneAgent):
    name: str | None = None
    preview: bool = False


async def _restart(call: AdminCall, params: Restart) -> Answer:
    tree, found, _ = await call.admin.lookup.find(Address.parse(params.address))
    live = [actor for address, actor in tree.actors.items() if address == found or address.is_below(found)]
    calls = sum(len(actor.calls) for actor in live)
    aborted = [address for address in tree.aborted if address == found or address.is_below(found)]
    effect = f"Restarts {_agents(len(live))} and ends {calls} call{'' if calls == 1 else 's'}."
    if aborted:
        effect += f" Lets {_agents(len(aborted))} answer again after an abort."
    if not live and not aborted:
        effect = "Changes nothing: no agent is in memory."
    if params.preview:
        return {"done": 0, "effect": effect}
    tree.slices.commit()
    tree.forget_aborts(found)
    # Those above first, because each takes those below it along.
    for actor in sorted(live, key=lambda actor: len(actor.address.segments)):
        if actor.dropped is None:
            tree.drop(actor, Unavailable(f"{actor.address} was restarted by an operator."))
    return {"done": len(live), "effect": effect}


async def _destroy(call: AdminCall, params: Destroy) -> Answer:
    tree, found, _ = await call.admin.lookup.find(Address.parse(params.address))
    if not params.preview and params.name != found.name:
        raise InvalidArguments("`name` must be the name of the agent, to confirm that it is deleted.")
    count, has_more = await _below(call, tree, found)
    below = f"more than {count} agents" if has_more else _agents(count)
    effect = f"Deletes {found} and {below} below it." if count else f"Deletes {found}."
    if params.preview:
        return {"done": 0, "effect": effect}
    with call.content.of_failures():
        if found.parent is None:
            await _destroy_root(call, found)
        else:
            await delete_child(await call.admin.lookup.wake(found.parent), found.type, found.name)
    return {"done": count + 1, "effect": effect}


async def _below(call: AdminCall, tree: Tree, found: Address) -> tuple[int, bool]:
    """Return how many agents are below an agent, and whether there are more."""
    if found.parent is None:
        return tree.root_registry.count() + tree.ledger.below_children(), False
    count = -1
    async with aclosing(walk(call.admin.lookup, found)) as visited:
        async for _ in visited:
            count += 1
            if count > MOST_COUNTED:
                return MOST_COUNTED, True
    return count, False


async def _destroy_root(call: AdminCall, root: Address) -> None:
    try:
        actor = await call.admin.lookup.wake(root)
    except SapwoodError:  # it is in quarantine, its class is gone, or it cannot start
        await call.node.removal.destroy(await call.node.loader.load_files(root))
        return
    await actor.of(Runs).destroy()


def _agents(count: int) -> str:
    return f"{count} agent{'' if count == 1 else 's'}"


RESTART = Endpoint("restart", "act", Restart, _restart)
DESTROY = Endpoint("destroy", "act", Destroy, _destroy)
