"""`cluster`: the nodes of the cluster, as the node that answers sees them."""

from __future__ import annotations

from sapwood.admin.endpoint import AdminCall, Answer, Endpoint, Params
from sapwood.web.stats import name_of


async def _cluster(call: AdminCall, _: Params) -> Answer:
    if (cluster := call.node.cluster) is None:
        return {"cluster": None}
    status = cluster.status()
    return {
        "cluster": {
            "node": name_of(call.node),
            "holds_lease": cluster.holds_lease(),
            "refuses_writes": cluster.refuses_writes(),
            **status,
        }
    }


CLUSTER = Endpoint("cluster", "look", Params, _cluster)
