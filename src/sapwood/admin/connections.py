"""`connections`: the clients that are connected to an agent."""

from __future__ import annotations

from itertools import chain, islice
from typing import Any, Literal

from sapwood.address import Address
from sapwood.admin.cursors import cursor, cut_page, values_in
from sapwood.admin.endpoint import AdminCall, AgentPage, Answer, Endpoint
from sapwood.kernel.actors.sockets import Socket
from sapwood.kernel.marshal.call import id_of
from sapwood.runs.http.events_http import OpenEvents, OpenStreams

Place = tuple[Literal["websocket", "events"], int]
"""Where a page begins: after the socket or the stream of this number."""


async def _connections(call: AdminCall, params: AgentPage) -> Answer:
    _, address, _ = await call.admin.lookup.find(Address.parse(params.address))
    sockets = call.node.sockets.here(address)
    streams = call.node.shared(OpenStreams).events_of(address)
    kind, number = ("websocket", 0) if params.after is None else values_in(params.after, Place)
    found = chain(
        (_socket(call, one) for one in sockets if kind == "websocket" and one.number > number),
        (_stream(call, one) for one in streams if kind == "websocket" or one.number > number),
    )
    one_more = list(islice(found, params.limit + 1))
    rows, following = cut_page(one_more, params.limit, lambda row: cursor(row["protocol"], row["number"]))
    return {"rows": rows, "next": following, "total": len(sockets) + len(streams)}


def _socket(call: AdminCall, socket: Socket) -> dict[str, Any]:
    content = call.content
    return {
        "number": socket.number,
        "protocol": "websocket",
        "id": content.text("connection", socket.id),
        "user": content.text("user", id_of(socket.user)),
        "since": call.node.clock.now() - call.node.sockets.age(socket),
        "path": content.text("path", socket.path),
        "client": content.text("client", socket.headers.get("user-agent")),
        "tags": [content.text("tag", tag) for tag in socket.tags],
        "sent": socket.sent,
        "unread_bytes": socket.writer.unsent,
        "readonly": socket.is_readonly,
        "watch_only": socket.is_watch_only,
    }


def _stream(call: AdminCall, stream: OpenEvents) -> dict[str, Any]:
    content = call.content
    return {
        "number": stream.number,
        "protocol": "events",
        "id": None,
        "user": content.text("user", id_of(stream.user)),
        "since": stream.began_at,
        "path": None,
        "client": content.text("client", stream.client),
        "tags": [],
        "sent": None,
        "unread_bytes": None,
        "readonly": True,
        "watch_only": True,
    }


CONNECTIONS = Endpoint("connections", "look", AgentPage, _connections)
