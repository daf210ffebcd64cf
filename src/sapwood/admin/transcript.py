"""`transcript`: the messages of a chat agent, the newest first."""

from __future__ import annotations

import msgspec

from sapwood.address import Address
from sapwood.admin.cursors import cut_page, number_in
from sapwood.admin.endpoint import AdminCall, AgentPage, Answer, Endpoint


async def _transcript(call: AdminCall, params: AgentPage) -> Answer:
    _, database = await call.read(Address.parse(params.address))
    reads, content = call.node.read_models, call.content
    found = reads.messages(database, number_in(params.after), params.limit + 1)
    page, following = cut_page(found, params.limit, lambda message: message.position)
    rows = [
        {
            "position": message.position,
            "id": message.id,
            "role": message.role,
            "created_at": message.created_at,
            "turn": message.turn,
            "message": content.value("message", msgspec.json.decode(message.body)),
        }
        for message in page
    ]
    return {"rows": rows, "next": following, "total": reads.message_count(database)}


TRANSCRIPT = Endpoint("transcript", "look", AgentPage, _transcript)
