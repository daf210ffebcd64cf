"""`files`: the files that an agent has stored."""

from __future__ import annotations

from sapwood.address import Address
from sapwood.admin.cursors import number_in
from sapwood.admin.endpoint import AdminCall, AgentPage, Answer, Endpoint


async def _files(call: AdminCall, params: AgentPage) -> Answer:
    _, database = await call.read(Address.parse(params.address))
    reads, content = call.node.read_models, call.content
    found = reads.files(database, number_in(params.after), params.limit + 1)
    rows = [
        {
            "digest": file.digest,
            "name": content.text("name", file.name),
            "media_type": file.media_type,
            "size": file.size,
            "created_at": file.created_at,
            "place": file.place,
            "used_by": file.used_by.split(),
        }
        for file in found[: params.limit]
    ]
    count, size, uploads = reads.file_totals(database)
    following = str(found[params.limit - 1].number) if len(found) > params.limit else None
    return {"rows": rows, "next": following, "total": count, "bytes": size, "uploads": uploads}


FILES = Endpoint("files", "look", AgentPage, _files)
