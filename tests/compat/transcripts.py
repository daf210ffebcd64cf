"""What clients and servers of a release say to each other: dialogues, recorded as JSON, and played again.

A dialogue is recorded twice. What differs between the two, such as ids and times, is stored as a mark with its type.
"""

from __future__ import annotations

import json
from collections.abc import Iterator, Sequence
from typing import Any

import msgspec
from starlette.responses import Response
from tests.compat.office_app import app
from tests.conformance.served import Client, Served, served
from tests.unit.admin_requests import ask

ANY = "$any"
"""The key of a mark: a value of this type, which differs each time."""
VARIES = {"bytes", "error", "errorText", "input_tokens", "last_error", "output_tokens"}
"""Fields whose values no release promises: sizes on the disk, estimates and the words of errors."""
JSON = "$json"
"""The key of a text that is JSON."""
OFFICE, TALKER, LEAD, SERVED = (
    "/agents/compat-office/main",
    "/agents/compat-talker",
    "/agents/compat-lead/asking",
    "/agents/compat-served",
)
PROTOCOL = {"sapwood-protocol": "1"}


def chat(id: str, text: str) -> dict[str, Any]:
    """Return the frame that a page sends with a message of its user."""
    message = {"id": f"m-{id}", "role": "user", "parts": [{"type": "text", "text": text}]}
    body = json.dumps({"messages": [message], "trigger": "submit-message"})
    return {"type": "cf_agent_use_chat_request", "id": id, "init": {"method": "POST", "body": body}}


def rpc(id: str, method: str, *args: Any) -> dict[str, Any]:
    return {"type": "rpc", "id": id, "method": method, "args": list(args)}


def send(frame: Any) -> dict[str, Any]:
    return {"send": frame}


def until(**fields: Any) -> dict[str, Any]:
    """A client waits for a frame that has these fields."""
    return {"until": fields}


GREETED = until(type="cf_agent_mcp_servers")
DIALOGUES: list[dict[str, Any]] = [
    {
        "socket": OFFICE,
        "steps": [
            GREETED,
            send(rpc("1", "note", "from a page")),
            until(type="rpc", id="1"),
            send(rpc("2", "notes")),
            until(type="rpc", id="2"),
            send(rpc("3", "count", 2)),
            until(type="rpc", id="3", done=True),
            send(rpc("4", "fill")),
            until(type="rpc", id="4"),
            send(rpc("5", "notes", 1)),
            until(type="rpc", id="5"),
            send({"type": "cf_agent_state", "state": {"books": 5}}),
            send({"type": "cf_agent_state", "state": {"books": "many"}}),
            until(type="cf_agent_state_error"),
        ],
    },
    {
        "socket": f"{TALKER}/finished",
        "steps": [
            GREETED,
            send(chat("a", "go")),
            until(type="cf_agent_use_chat_response", id="a", done=True),
        ],
    },
    {
        "socket": f"{TALKER}/waiting",
        "steps": [
            GREETED,
            send(chat("b", "go")),
            until(type="cf_agent_use_chat_response", id="b", done=True),
            send({"type": "cf_agent_tool_approval", "toolCallId": "p1", "approved": True, "autoContinue": True}),
            until(type="cf_agent_use_chat_response", done=True, continuation=True),
        ],
    },
    {
        "socket": f"{TALKER}/failed",
        "steps": [
            GREETED,
            send(chat("c", "go")),
            until(type="cf_agent_use_chat_response", id="c", done=True),
            send({"type": "cf_agent_chat_clear"}),
            send({"type": "cf_agent_stream_resume_request"}),
            until(type="cf_agent_stream_resume_none"),
        ],
    },
    {
        "socket": LEAD,
        "steps": [
            GREETED,
            send(chat("d", "go")),
            until(type="sapwood_questions"),
            send(
                {
                    "type": "cf_agent_tool_approval",
                    "toolCallId": "b1",
                    "approved": True,
                    "path": [
                        {"type": "CompatPlanner", "name": "agent-tool:t1"},
                        {"type": "CompatBuyer", "name": "agent-tool:m1"},
                    ],
                }
            ),
            until(type="cf_agent_use_chat_response", id="d", done=True),
        ],
    },
    {"http": ["GET", f"{OFFICE}/methods"]},
    {"http": ["PUT", f"{OFFICE}/files?name=a.txt", {"content-type": "text/plain"}, "some text"]},
    {"http": ["GET", f"{OFFICE}/questions"]},
    {"http": ["GET", f"{OFFICE}/nothing"]},
    {"http": ["GET", "/agents/nothing/main"]},
    {"http": ["GET", f"{TALKER}/finished/get-messages"]},
    {
        "http": [
            "POST",
            f"{TALKER}/approved/chat",
            {"content-type": "application/json"},
            json.dumps({"messages": [{"id": "m", "role": "user", "parts": [{"type": "text", "text": "go"}]}]}),
        ]
    },
    {"http": ["POST", f"{SERVED}/one/run", PROTOCOL, json.dumps({"input": "there"})]},
    {"http": ["GET", f"{SERVED}/one/run/stream?from_seq=1&milestones=0", PROTOCOL]},
    {"http": ["GET", f"{SERVED}/one/run", PROTOCOL]},
    {"http": ["POST", f"{SERVED}/two/run/cancel", PROTOCOL, json.dumps({"reason": "not needed"})]},
    {"http": ["GET", f"{SERVED}/one/run"]},
    {"admin": ["agents", {}]},
    {"admin": ["agents", {"address": "CompatLead:asking"}]},
    {"admin": ["tree", {}]},
    {"admin": ["runs", {"address": "CompatLead:asking"}]},
    {"admin": ["transcript", {"address": "CompatTalker:finished"}]},
    {"admin": ["works", {"address": "CompatTalker:finished"}]},
    {"admin": ["questions", {}]},
    {"admin": ["spending", {}]},
    {"admin": ["state", {"address": "CompatOffice:main"}]},
    {"admin": ["methods", {"address": "CompatOffice:main"}]},
    {"admin": ["schema", {"address": "CompatOffice:main"}]},
    {"admin": ["sql", {"address": "CompatOffice:main", "sql": "SELECT text FROM notes"}]},
    {"admin": ["decisions", {"address": "CompatTalker:waiting"}]},
    {"admin": ["agenda", {}]},
    {"admin": ["dead-letters", {}]},
]


async def play(dialogues: Sequence[dict[str, Any]]) -> list[dict[str, Any]]:
    """Play what clients say in these dialogues to a new server; return the dialogues with what it answers now."""
    async with served(app) as one:
        return [await _played(one, dialogue) for dialogue in dialogues]


async def _played(one: Served, dialogue: dict[str, Any]) -> dict[str, Any]:
    if "socket" in dialogue:
        client = await one.connect(dialogue["socket"])
        at = 0
        for step in dialogue["steps"]:
            at = await _step(client, step, at)
        await client.close()
        return {**dialogue, "answer": [_opened(frame) for frame in client.frames]}
    if "http" in dialogue:
        method, target, *more = dialogue["http"]
        headers, body = more[0] if more else {}, more[1] if len(more) > 1 else ""
        reply = await one.site.http(target, method=method, headers=headers, body=body.encode())
        kind = reply.headers.get("content-type", "")
        return {**dialogue, "answer": {"status": reply.status, "type": kind, "body": _body(kind, reply.text)}}
    endpoint, params = dialogue["admin"]
    result = await ask(one.world, endpoint, **params)
    answer = _opened(bytes(result.body).decode()) if isinstance(result, Response) else result
    return {**dialogue, "answer": json.loads(msgspec.json.encode(answer))}


def text_of(body: Any) -> str:
    """Return the text of a recorded body again."""
    if isinstance(body, list):  # of server-sent events
        lines = [f"{one['type']}: {text_of(one['value'])}\n" for one in body]
        return "".join(f"{line}\n" if line.startswith("data:") else line for line in lines)
    return json.dumps(body[JSON]) if isinstance(body, dict) else str(body)


async def _step(client: Client, step: dict[str, Any], at: int) -> int:
    """Take a step. A client waits for frames behind the last one that it waited for."""
    if "send" in step:
        await client.send(step["send"])
        return at
    wanted = step["until"].items()
    found = await client.until(
        lambda frame: (
            any(frame is one for one in client.frames[at:])
            and isinstance(frame, dict)
            and all(key in frame and frame[key] == value for key, value in wanted)
        )
    )
    return next(number for number, one in enumerate(client.frames) if one is found) + 1


def _body(kind: str, text: str) -> Any:
    if kind.startswith("text/event-stream"):
        lines = [line.partition(":") for line in text.splitlines() if line and not line.startswith(":")]
        return [{"type": field, "value": _opened(value.strip())} for field, _, value in lines]
    return _opened(text)


def _opened(value: Any) -> Any:
    """Return a value with the JSON in its texts as values."""
    if isinstance(value, dict):
        return {key: _opened(one) for key, one in value.items()}
    if isinstance(value, list):
        return [_opened(one) for one in value]
    if isinstance(value, str) and value[:1] in "{[" and value[:1]:
        try:
            return {JSON: _opened(json.loads(value))}
        except ValueError:
            return value
    return value


def merged(first: Any, second: Any) -> Any:
    """Return what two recordings have in common, with marks where they differ."""
    if isinstance(first, dict) and isinstance(second, dict) and first.keys() == second.keys():
        return {
            key: _mark(first[key])
            if key in VARIES and type(first[key]) in (str, int)
            else merged(first[key], second[key])
            for key in first
        }
    if isinstance(first, list) and isinstance(second, list) and len(first) == len(second):
        return [merged(one, other) for one, other in zip(first, second, strict=True)]
    if type(first) is type(second) and not isinstance(first, dict | list):
        return first if first == second else _mark(first)
    raise ValueError(f"Two recordings differ in their form: {first!r} and {second!r}.")


def _mark(value: object) -> dict[str, str]:
    return {ANY: type(value).__name__}


def differences(released: Any, now: Any, at: str = "") -> Iterator[str]:
    """Yield what a client of the release would miss. It ignores what it does not know.

    That is fields, types of frames and chunks, and items of lists of named things, such as methods and tables.
    """
    if isinstance(released, dict) and ANY in released:
        if type(now).__name__ != released[ANY]:
            yield f"{at}: expected a {released[ANY]}, got {now!r}"
    elif isinstance(released, dict) and isinstance(now, dict):
        for key, value in released.items():
            if key not in now:
                yield f"{at}.{key} is missing"
            else:
                yield from differences(value, now[key], f"{at}.{key}")
    elif isinstance(released, list) and isinstance(now, list):
        if released and all(isinstance(one, dict) and "name" in one for one in released):
            names = [one["name"] for one in released]
            now = [one for name in names for one in now if isinstance(one, dict) and one.get("name") == name]
        known = {one["type"] for one in released if isinstance(one, dict) and isinstance(one.get("type"), str)}
        if known:
            now = [one for one in now if not isinstance(one, dict) or one.get("type") in known]
        if len(released) != len(now):
            yield f"{at}: expected {len(released)} items, got {len(now)}: {now!r}"
        for number, (one, other) in enumerate(zip(released, now, strict=False)):
            yield from differences(one, other, f"{at}[{number}]")
    elif released != now or type(released) is not type(now):
        yield f"{at}: expected {released!r}, got {now!r}"
