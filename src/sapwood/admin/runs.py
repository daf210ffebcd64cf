"""`runs`: the runs that an agent has started, the newest first."""

from __future__ import annotations

from sapwood.address import Address
from sapwood.admin.cursors import cut_page, number_in
from sapwood.admin.endpoint import AdminCall, AgentPage, Answer, Endpoint


class Runs(AgentPage):
    status: str | None = None


async def _runs(call: AdminCall, params: Runs) -> Answer:
    _, database = await call.read(Address.parse(params.address))
    before = number_in(params.after)
    found = call.node.read_models.runs(database, params.status, before, params.limit + 1)
    page, following = cut_page(found, params.limit, lambda run: run.number)
    rows = [
        {
            "id": run.id,
            "agent": f"{run.type}:{run.name}",
            "status": run.status,
            "started_at": run.started_at,
            "ended_at": run.ended_at,
            "bytes": run.bytes,
            "pinned": bool(run.pinned),
        }
        for run in page
    ]
    return {"rows": rows, "next": following}


RUNS = Endpoint("runs", "look", Runs, _runs)
