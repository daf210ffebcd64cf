"""`branches` and `switch-branch`: the branches of a conversation, and which of them is active."""

from __future__ import annotations

from sapwood.address import Address
from sapwood.admin.endpoint import AdminCall, Answer, Endpoint, OneAgent
from sapwood.chat.store.branches import stored_branches
from sapwood.chat.turn.conversation import BUSY, Conversation
from sapwood.errors import NotFound, Refused


async def _branches(call: AdminCall, params: OneAgent) -> Answer:
    _, database = await call.read(Address.parse(params.address))
    rows = [
        {
            "id": branch.message_id,
            "after": branch.after,
            "parent": branch.parent,
            "role": branch.role,
            "text": call.content.text("message", branch.text),
            "at": branch.at.timestamp(),
            "messages": branch.messages,
            "is_active": branch.is_active,
        }
        for branch in stored_branches(database)
    ]
    return {"rows": rows}


class SwitchBranch(OneAgent):
    id: str
    preview: bool = False


async def _switch_branch(call: AdminCall, params: SwitchBranch) -> Answer:
    tree, found, stem = await call.admin.lookup.find(Address.parse(params.address))
    tree.slices.commit()
    database = call.admin.lookup.database(tree, stem)
    branch = next((one for one in stored_branches(database) if one.message_id == params.id), None)
    if branch is None:
        raise NotFound(f"{found} has no branch that begins with the message {params.id!r}.", path=found.segments)
    if branch.is_active:
        return {"done": 0, "effect": "The branch is active already."}
    if opened := call.node.read_models.open_turns(database, 1):
        raise Refused(BUSY.format(opened[0].status, opened[0].id))
    count = "1 message" if branch.messages == 1 else f"{branch.messages} messages"
    effect = f"Makes the branch with {count} active. Clients and the model see it instead of the active one."
    if params.preview:
        return {"done": 0, "effect": effect}
    with call.content.of_failures():
        actor = await call.admin.lookup.wake(found)
        is_done = actor.of(Conversation).switch(params.id)
        await actor.leave()
    return {"done": int(is_done), "effect": effect}


BRANCHES = Endpoint("branches", "look", OneAgent, _branches)
SWITCH_BRANCH = Endpoint("switch-branch", "act", SwitchBranch, _switch_branch)
