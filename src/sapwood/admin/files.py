"""`files`: the files that an agent has stored."""

from __future__ import annotations

from sapwood.address import Address
from sapwood.admin.cursors import cut_page, number_in
from sapwood.admin.endpoint import AdminCall, AgentPage, Answer, Endpoint


async def _files(call: AdminCall, params: AgentPage) -> Answer:
    _, database = await call.read(Address.parse(params.address))
    reads, content = call.node.read_models, call.content
    found = reads.files(database, number_in(params.after), params.limit + 1)
    page, following = cut_page(found, params.limit, lambda file: file.number)
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
        for file in page
    ]
    count, size, uploads = reads.file_totals(database)
    return {"rows": rows, "next": following, "total": count, "bytes": size, "uploads": uploads}


FILES = Endpoint("files", "look", AgentPage, _files)
