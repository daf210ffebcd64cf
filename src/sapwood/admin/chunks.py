"""`chunks`: what a turn or run streamed, in the pieces in which it was stored."""

from __future__ import annotations

import msgspec

from sapwood.address import Address
from sapwood.admin.cursors import cut_page, number_in
from sapwood.admin.endpoint import AdminCall, AgentPage, Answer, Endpoint
from sapwood.kernel.ports.read_models import ChunkRange


class Chunks(AgentPage, kw_only=True):
    work: str
    begins_at: float | None = msgspec.field(default=None, name="from")
    ends_at: float | None = msgspec.field(default=None, name="to")


async def _chunks(call: AdminCall, params: Chunks) -> Answer:
    _, database = await call.read(Address.parse(params.address))
    reads, content = call.node.read_models, call.content
    which = ChunkRange(params.work, params.begins_at, params.ends_at)
    after = number_in(params.after)
    found = reads.chunks(database, which, -1 if after is None else after, params.limit + 1)
    page, following = cut_page(found, params.limit, lambda segment: segment.first)
    rows = [
        {"number": one.first, "at": one.at, "chunks": content.chunks(msgspec.json.decode(one.body))} for one in page
    ]
    return {"rows": rows, "next": following, "total": reads.chunk_count(database, which)}


CHUNKS = Endpoint("chunks", "look", Chunks, _chunks)
