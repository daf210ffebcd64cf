"""The exposed methods of an agent, over HTTP: `GET …/methods`."""

from __future__ import annotations

from typing import Any

from sapwood.capabilities.connections import HttpOnly
from sapwood.kernel.actors.actor import Actor
from sapwood.kernel.marshal.method_schemas import method_list
from sapwood.runs.execution.access_gates import refused_to_watch
from sapwood.wire.methods import PATH


class ListedMethods(HttpOnly):
    """Lists the exposed methods of one agent for its clients."""

    def __init__(self, actor: Actor) -> None:
        self._actor = actor

    async def request(self, request: Any) -> Any:
        """Answer with the list; None if the request is for something else."""
        if request.method != "GET" or request.scope["path"] != PATH:
            return None
        if (refused := await refused_to_watch(self._actor, request)) is not None:
            return refused
        from starlette.responses import Response

        return Response(method_list(self._actor.kind), media_type="application/json")
