"""Fuzz the HTTP and WebSocket doors of a real `sapwood serve`, with authentication: `just fuzz`.

It prints one line of JSON for each run, and exits with 1 if a promise does not hold: every input is answered in time,
no status 500, no 503 without Retry-After, no close code 1011, no traceback in the log, no process that grows.
"""

from __future__ import annotations

import argparse
import asyncio
import collections
import contextlib
import json
import os
import random
import re
import shutil
import sys
import tempfile
import time
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import websockets
from tests.e2e.command import Server
from tests.machine import patience

HERE = Path(__file__).parent
TOKEN = "fuzz-token"
PATIENCE = patience(30)
SOCKETS, REQUESTS = 6, 6
"""Clients of each kind that are at work at once."""
WARM_UP = 0.1
"""The part of the inputs after which memory is measured for the first time."""
GROWTH = 96 * 1024
"""KiB that a process may grow by, from the first measurement to the last."""
KEPT = 5
"""Examples of each failure that are printed."""

ROOTS = ["room/f1", "room/f2/sub/lot/x", "talk/f3", "worker/f5", "talk/f7", "room/f8"]
TAILS = [
    "/sub/lot/%00",
    "/sub/lot/%ff",
    "/sub/nobody/x",
    "/../x",
    "//",
    "/%2e%2e/",
    "/sub/lot/" + "x" * 600,
    "?_pk=" + "y" * 3000,
    "?token=x",
    "/sub/lot/a%2Fb",
    "/sub//x",
    "/sub/lot/",
]
CHAT = {
    "messages": [{"id": "m1", "role": "user", "parts": [{"type": "text", "text": "hey"}]}],
    "trigger": "submit-message",
}
FILE = {"type": "file", "mediaType": "image/png", "url": "data:image/png;base64,AAAA"}
FILE_CHAT = {
    "messages": [{"id": "m2", "role": "user", "parts": [FILE]}],
    "trigger": "regenerate-message",
    "clientTools": [{"name": "t", "parameters": {"type": "object"}}],
}
OPENAI: list[dict[str, Any]] = [
    {"model": "talk", "input": "hey", "conversation": "h2", "background": True},
    {"model": "talk", "input": "hey", "conversation": {"id": "h9"}, "stream": True, "tools": [{"type": "function"}]},
    {
        "model": "talk",
        "input": [{"type": "function_call_output", "call_id": "c1", "output": "x"}],
        "conversation": "h2",
    },
    {
        "model": "talk",
        "input": [{"type": "mcp_approval_response", "approval_request_id": "c1", "approve": True}],
        "conversation": "h2",
    },
    {"model": "talk", "input": [{"role": "user", "content": [{"type": "input_image", "image_url": "data:,x"}]}]},
    {"model": "talk", "messages": [{"role": "user", "content": "hey"}], "conversation": "h9", "stream": True},
    {
        "model": "talk",
        "messages": [{"role": "user", "content": "a"}, {"role": "tool", "tool_call_id": "call_1", "content": "x"}],
        "stop": ["."],
    },
]
STEPS = [{"type": "Talk", "name": "agent-tool:c7"}]
FRAMES: list[dict[str, Any]] = [
    {"type": "cf_agent_state", "state": {"value": 1, "note": "x", "more": {}}},
    {"type": "cf_agent_state", "id": "s1", "state": {"value": 1, "note": "x", "more": {"a": [1]}}},
    {"type": "rpc", "id": "1", "method": "add", "args": [2]},
    {"type": "rpc", "id": "2", "method": "echo", "args": [{"a": [1, 2, {"b": None}]}]},
    {"type": "rpc", "id": "3", "method": "count", "args": [5]},
    {"type": "rpc", "id": "4", "method": "many", "args": [1, 2, 3]},
    {"type": "rpc", "id": "5", "method": "set_state", "args": [{}]},
    {"type": "rpc", "id": "6", "method": "__init__", "args": []},
    {"type": "rpc", "id": "7", "method": "destroy", "args": []},
    {"type": "sapwood_cancel", "id": "3"},
    {"type": "cf_agent_use_chat_request", "id": "q1", "init": {"method": "POST", "body": json.dumps(CHAT)}},
    {"type": "cf_agent_use_chat_request", "id": "q2", "init": {"method": "POST", "body": json.dumps(FILE_CHAT)}},
    {"type": "cf_agent_chat_messages", "messages": CHAT["messages"]},
    {"type": "cf_agent_chat_request_cancel", "id": "q1"},
    {"type": "cf_agent_chat_clear"},
    {"type": "cf_agent_stream_resume_request", "probeId": "p"},
    {"type": "cf_agent_stream_resume_ack", "id": "q1"},
    {"type": "cf_agent_tool_result", "toolCallId": "c1", "toolName": "t", "output": "12:00", "autoContinue": True},
    {
        "type": "cf_agent_tool_result",
        "toolCallId": "c1",
        "toolName": "t",
        "state": "output-error",
        "errorText": "no",
        "path": STEPS,
    },
    {"type": "cf_agent_tool_approval", "toolCallId": "c1", "approved": True, "autoContinue": True},
    {"type": "cf_agent_tool_approval", "toolCallId": "c1", "approved": True, "path": STEPS},
    {
        "type": "agent-tool-event",
        "sequence": 0,
        "event": {"kind": "started", "runId": "r", "agentType": "Talk", "order": 0},
    },
    {"type": "sapwood_questions", "path": [], "questions": []},
    {"type": "cf_agent_identity", "name": "x", "agent": "y"},
]
METHODS = ["GET", "POST", "PUT", "DELETE", "HEAD", "OPTIONS", "PATCH", "FOO"]
PATHS = [
    "/agents/room/h1",
    "/agents/room/h1/x/y",
    "/agents/talk/h2/questions",
    "/agents/talk/h2/methods",
    "/agents/talk/h2/get-messages",
    "/agents/talk/h2/chat",
    "/agents/worker/h3/run",
    "/agents/worker/h3/run/cancel",
    "/agents/room/h1/sub/lot/z",
    "/agents/talk/h4/messages",
    "/agents/talk/h2/events",
    "/agents/worker/h3/run/stream?from_seq=1&milestones=0",
    "/_sapwood/tree",
    "/_driver/step",
    "/healthz",
    "/readyz",
    "/metrics",
    "/",
    "/index.html",
    "/.env",
    "/..%2f..%2fetc/passwd",
    "/agents/room",
    "/agents//x",
    "/agents/ROOM/x",
    "/agents/room/%00",
    "/agents/room/%2e%2e",
    "/agents/room/" + "n" * 513,
    "/agents/room/é",
    "/%61gents/room/h1",
    "//agents/room/x",
    "/agents/room/h1/sub/lot/%c0%af",
    "/agents/talk/h2/runs",
    "/agents/talk/h2/ag-ui",
    "/agents/talk/h2/ag-ui/connect",
    "/agents/talk/h2/ag-ui/cancel",
    "/agents/room/h1/ag-ui",
    "/ag-ui/talk",
    "/ag-ui/talk/connect",
    "/ag-ui/../talk",
    "/v1/models",
    "/v1/responses",
    "/v1/responses/resp_" + "VGFsawBoMg" + "0" * 32,
    "/v1/responses/resp_" + "VGFsawBoMg" + "0" * 32 + "/cancel",
    "/v1/responses/%00",
    "/v1/chat/completions",
    "/agents/talk/h2/v1/responses",
]
QUERIES = [
    "?from_seq=-1",
    "?from_seq=" + "9" * 5000,
    "?from_seq=%D9%A1",
    "?after=xx",
    "?after=" + "A" * 3000,
    "?follow=1",
    "?%00=1",
    "?a=b&a=c&_pk=%ff",
    "?milestones=" + "9" * 4000,
    "/%0d%0aX-Y:1",
    "/../..",
    "/sub/lot/q",
    "/sub/talk/x",
    "?limit=-1",
    "?depth=%00",
    "?format=x",
    "?after=" + "W1tb" * 700,
]
BODIES = [
    b"",
    b"{}",
    b'{"id":"c1","approved":true,"path":[{"type":"Talk","name":"agent-tool:c1"}]}',
    b'{"id":"c1","output":{"a":1}}',
    b'{"input":"x"}',
    b'{"reason":"no"}',
    b'{"from_seq":1,"milestones":0,"nested":"WzEse31d"}',
    b'{"threadId":"h2","runId":"r1","messages":[{"id":"u1","role":"user","content":"hi"}]}',
    b'{"threadId":"h2","runId":"r2","messages":[],"resume":[{"interruptId":"c1#0","status":"resolved","payload":true}]}',
    b'{"threadId":"h2","runId":"r3","messages":[{"id":"t","role":"tool","toolCallId":"c1","content":[{"text":1}]}]}',
    b'{"threadId":"a/b/../\\u0000","runId":"r3","messages":[]}',
    b'{"threadId":"h2","runId":"r1"}',
    b"\xff\xfe",
    b"[" * 100_000,
    b'{"id":"c1","output":' + b"[" * 5000 + b"]" * 5000 + b"}",
    b'{"input":' + b'{"a":' * 3000 + b"1" + b"}" * 3000 + b"}",
    b'{"input":' + b"9" * 5000 + b"}",
    b'{"id":"c1","approved":true,"arguments":{"euros":1e999}}',
    b"null",
    b'"x"',
    json.dumps(CHAT).encode(),
    json.dumps(FILE_CHAT).encode(),
    *(json.dumps(one).encode() for one in OPENAI),
]
HEADERS = [
    b"sapwood-protocol: 1",
    b"sapwood-protocol: x",
    b"accept: text/event-stream",
    b"accept: \xff",
    b"traceparent: 00-" + b"a" * 32 + b"-b-01",
    b"traceparent: 00-" + b"\xaa" * 32 + b"-b-01",
    b"last-event-id: " + b"9" * 5000,
    b"last-event-id: \xb2",
    b"x-forwarded-for: 1.2.3.4, evil\x01",
    b"transfer-encoding: chunked",
    b"origin: http://evil.example",
    b"expect: 100-continue",
    b"upgrade: websocket\r\nconnection: upgrade",
    b"content-length: 3",
    b"cookie: " + b"x" * 3000,
]
SERVE = """
import sys

from sapwood.cli.serve_options import ServeOptions
from sapwood.cli.server_process import serve
from sapwood.timings import Timings

timings = Timings(request_header_timeout=1.0, request_body_timeout=1.0)
serve(ServeOptions("app:app", "127.0.0.1", 0, workers=eval(sys.argv[1]), timings=timings))
"""
"""As `sapwood serve`, with less patience for requests that were cut short."""
BREAKS = re.compile(r"Traceback \(most recent call last\)")


class FuzzServer(Server):
    """The server."""

    command = (sys.executable, "-c", SERVE)


@dataclass
class Run:
    """One run of the fuzzer, and what it has seen."""

    chance: random.Random
    inputs: int
    port: int
    requests: int = 0
    frames: int = 0
    statuses: collections.Counter[str] = field(default_factory=collections.Counter)
    closes: collections.Counter[int] = field(default_factory=collections.Counter)
    hangs: list[str] = field(default_factory=list)
    failures: list[str] = field(default_factory=list)
    """500s, and 503s without Retry-After."""
    aborts: list[str] = field(default_factory=list)
    """Sockets that were closed with 1011, or without a close frame."""
    lost: collections.Counter[str] = field(default_factory=collections.Counter)
    """Connections that ended otherwise, by the name of the error."""
    warm: dict[int, int] = field(default_factory=dict)

    @property
    def done(self) -> int:
        return self.requests + self.frames

    # What is sent

    def weird(self) -> Any:
        return self.chance.choice(
            [
                None,
                True,
                False,
                0,
                -1,
                2**31,
                2**63,
                2**64,
                10**30,
                -(10**40),
                1e308,
                "",
                "\0",
                "\ufffd",
                "NaN",
                "all",
                3.5,
                "A" * self.chance.choice([1, 200, 600, 5000, 70000]),
                "../../etc/passwd",
                "' OR 1=1 --",
                "\x1b[31m",
                "\u202e\u0000",
                "{}",
                "[]",
                [],
                {},
                [[]] * 50,
                {"__proto__": 1},
                {"type": "rpc"},
                ["a"] * 300,
                {f"k{i}": i for i in range(200)},
                "agent-tool:c1",
                "\u212a",
                "sub",
            ]
        )

    def mutated(self, value: Any, depth: int = 0) -> Any:
        chance = self.chance
        if chance.random() < 0.12:
            return self.weird()
        if isinstance(value, dict):
            out: dict[str, Any] = {}
            for key, one in value.items():
                roll = chance.random()
                if roll < 0.05:
                    continue
                if roll < 0.08:
                    key = chance.choice(
                        ["type", "id", "path", "args", "method", "state", "init", "body", "messages", "\0", "é"]
                    )
                keep = key == "type" and depth == 0 and chance.random() > 0.08
                out[key] = one if keep else self.mutated(one, depth + 1)
            if chance.random() < 0.05:
                out[chance.choice(["x", "path", "id", "autoContinue", "clientTools", "output"])] = self.weird()
            return out
        if isinstance(value, list):
            items = [self.mutated(one, depth + 1) for one in value if chance.random() > 0.05]
            items += [self.weird()] if chance.random() < 0.1 else []
            return items * 50 if chance.random() < 0.03 else items
        if isinstance(value, str):
            return self.mutated_text(value, depth)
        return value

    def mutated_text(self, text: str, depth: int) -> str:
        chance = self.chance
        if text.startswith("{") and chance.random() < 0.9:
            return json.dumps(self.mutated(json.loads(text), depth + 1))
        roll = chance.random()
        if roll < 0.7:
            return text
        if roll < 0.8:
            return text + chance.choice(["\0", "x", "\u2028", "'", "\\", "%00", "\U0001f600"])
        return text[: len(text) // 2] if roll < 0.9 else text * chance.choice([2, 10])

    def damaged(self, data: bytes, times: int) -> bytes:
        found = bytearray(data)
        for _ in range(times):
            roll, at = self.chance.random(), self.chance.randrange(len(found) + 1)
            if roll < 0.6:
                found[at : at + 1] = bytes([self.chance.choice(b'{}[]",:\\u019eE-.')])
            elif roll < 0.8:
                found[at:at] = bytes([self.chance.randrange(256)])
            else:
                del found[at : at + 1]
        return bytes(found)

    def frame(self) -> str | bytes:
        chance, roll = self.chance, self.chance.random()
        if roll < 0.72:
            return json.dumps(self.mutated(chance.choice(FRAMES)), ensure_ascii=chance.random() < 0.5)
        if roll < 0.82:
            return self.damaged(json.dumps(chance.choice(FRAMES)).encode(), chance.randint(1, 4)).decode("latin-1")
        if roll < 0.87:
            return self.deep_frame()
        if roll < 0.89:
            depth = chance.choice([100, 200, 900, 2000, 20000])
            body = '{"messages":[{"id":"m","role":"user","parts":[{"type":"text","text":"x","d":%s}]}]}' % (
                "[" * depth + "]" * depth
            )
            return json.dumps(
                {"type": "cf_agent_use_chat_request", "id": "q", "init": {"method": "POST", "body": body}}
            )
        if roll < 0.91:
            return '{"type":"rpc","id":"n","method":"add","args":[%s]}' % (
                "9" * chance.choice([19, 20, 40, 4000, 5000, 100000])
            )
        if roll < 0.93:
            more = "\\u00e9" * chance.choice([0, 10, 1000])
            return '{"type":"rpc","id":"s\\ud800","method":"echo","args":["\\ud800' + more + '"]}'
        if roll < 0.95:
            return chance.randbytes(chance.choice([0, 1, 10, 1000]))
        if roll < 0.97:
            return chance.choice(
                ["", "null", "1", '"x"', "[", "{", "{}", '{"type":1}', "ping", " " * 100 + "{}", "\ufeff{}"]
            )
        return "".join(chr(chance.randrange(1, 0xD7FF)) for _ in range(chance.choice([1, 50, 500])))

    def deep_frame(self) -> str:
        chance = self.chance
        depth = chance.choice([100, 127, 128, 129, 500, 1000, 3000, 20000])
        key = chance.choice(["args", "state", "output", "messages", "init", "path", "type"])
        begin, middle, end = chance.choice([("[", "", "]"), ('{"a":', "1", "}")])
        deep = begin * depth + middle + end * depth
        return json.dumps({**chance.choice(FRAMES), key: "@"}).replace('"@"', f"[{deep}]" if key == "args" else deep)

    def request(self) -> tuple[str, bytes]:
        """Return a request, and what to call it."""
        chance = self.chance
        method = chance.choice(METHODS)
        path = chance.choice(PATHS) + (chance.choice(QUERIES) if chance.random() < 0.3 else "")
        body = chance.choice(BODIES)
        if chance.random() < 0.3 and body:
            body = self.damaged(body[:4000], 3)
        token = TOKEN if chance.random() < 0.9 else chance.choice(["", "x", "x" * 4000, "\xff"])
        lines = [b"host: 127.0.0.1", b"authorization: Bearer " + token.encode("latin-1"), b"connection: close"]
        if chance.random() < 0.97:
            lines.append(b"content-length: %d" % len(body))
        lines += [line for line in HEADERS if chance.random() < 0.06]
        if "/run" in path and chance.random() < 0.8:
            lines.append(b"sapwood-protocol: 1")
        target = path.encode("latin-1" if chance.random() < 0.9 else "utf-8")
        head = b"%s %s HTTP/1.1\r\n%s\r\n\r\n" % (method.encode(), target, b"\r\n".join(lines))
        if chance.random() < 0.05:
            head = self.damaged(head, 2)
        return f"{method} {path[:100]}", head + body

    # What comes back

    async def use_socket(self) -> None:
        chance, sent = self.chance, ""
        path = f"/agents/{chance.choice(ROOTS)}" + (chance.choice(TAILS) if chance.random() < 0.05 else "")
        token = "" if chance.random() < 0.05 else TOKEN
        try:
            async with websockets.connect(
                f"ws://127.0.0.1:{self.port}{path}",
                max_size=None,
                open_timeout=PATIENCE,
                close_timeout=PATIENCE,
                compression=None,
                proxy=None,
                additional_headers={"authorization": f"Bearer {token}"},
            ) as client:
                for _ in range(6):
                    for _ in range(chance.randint(1, 25)):
                        sent = self.frame()
                        self.frames += 1
                        await client.send(sent)
                    await self.answered(client)
        except websockets.ConnectionClosed as error:
            code = error.rcvd.code if error.rcvd else 1006
            self.closes[code] += 1
            if code in (1006, 1011):
                self.aborts.append(f"{code} {path[:100]} {str(sent)[:200]}")
        except TimeoutError:
            self.hangs.append(f"{path[:100]} {str(sent)[:200]}")
        except (OSError, websockets.WebSocketException) as error:
            self.lost[type(error).__name__] += 1

    async def answered(self, client: Any) -> None:
        """Wait for the answer to a call that can only come after all that was sent before."""
        id = f"last-{self.chance.randrange(10**9)}"
        await client.send(json.dumps({"type": "rpc", "id": id, "method": "nosuch", "args": []}))
        async with asyncio.timeout(PATIENCE):
            while id not in str(await client.recv()):
                pass

    async def use_request(self) -> None:
        name, data = self.request()
        self.requests += 1
        try:
            async with asyncio.timeout(PATIENCE):
                reader, writer = await asyncio.open_connection("127.0.0.1", self.port)
                try:
                    writer.write(data)
                    head = await reader.readuntil(b"\r\n\r\n")
                finally:
                    writer.close()
        except TimeoutError:
            self.hangs.append(f"{name} {data[:300]!r}")
            return
        except (OSError, asyncio.IncompleteReadError, asyncio.LimitOverrunError) as error:
            self.lost[type(error).__name__] += 1
            return
        status = head.split(b" ", 2)[1].decode("latin-1")
        self.statuses[status] += 1
        if status == "500" or (status == "503" and b"retry-after" not in head.lower()):
            self.failures.append(f"{status} {name} {data[-200:]!r}")

    # The whole

    async def go(self, processes: list[int]) -> None:
        async with asyncio.TaskGroup() as group:
            for _ in range(SOCKETS):
                group.create_task(self._sockets())
            for _ in range(REQUESTS):
                group.create_task(self._requests())
            group.create_task(self._warmed(processes))

    async def _sockets(self) -> None:
        while self.done < self.inputs:
            if self.frames > 1.2 * self.requests + 50:  # more than a third are requests
                await asyncio.sleep(0.005)
            else:
                await self.use_socket()

    async def _requests(self) -> None:
        while self.done < self.inputs:
            await self.use_request()

    async def _warmed(self, processes: list[int]) -> None:
        while self.done < WARM_UP * self.inputs:  # noqa: ASYNC110 - a counter tells nothing
            await asyncio.sleep(0.05)
        self.warm = memory(processes)


def memory(processes: list[int]) -> dict[int, int]:
    """Return the KiB of memory that each of these processes has."""
    found: dict[int, int] = {}
    for process in processes:
        text = Path(f"/proc/{process}/status").read_text()
        found[process] = int(next(line.split()[1] for line in text.splitlines() if line.startswith("VmRSS")))
    return found


def processes_below(process: int) -> list[int]:
    """Return a process and all that it has started, which have not ended."""
    children = Path(f"/proc/{process}/task/{process}/children").read_text().split()
    return [process, *(one for child in children for one in processes_below(int(child)))]


def fuzz(inputs: int, seed: int, workers: int | None) -> dict[str, Any]:
    """Run a server, send it so many inputs, and return what happened."""
    with tempfile.TemporaryDirectory(prefix="sapwood-fuzz-") as name:
        folder = Path(name)
        shutil.copy(HERE / "fuzz_app.py", folder / "app.py")
        server = FuzzServer(folder, repr(workers))
        try:
            return _fuzzed(server, Run(random.Random(seed), inputs, server.port), seed, workers)
        finally:
            server.process.terminate()
            with contextlib.suppress(Exception):
                server.process.wait(PATIENCE)
            server.process.kill()


def _fuzzed(server: Server, run: Run, seed: int, workers: int | None) -> dict[str, Any]:
    began, before = time.monotonic(), memory(processes_below(server.process.pid))
    asyncio.run(run.go(list(before)))
    alive = set(processes_below(server.process.pid))
    after = memory([process for process in before if process in alive])
    tracebacks = [at for at, line in enumerate(server.said) if BREAKS.search(line)]
    grown = [after[one] - run.warm.get(one, before[one]) for one in after]
    failed = {
        "hangs": run.hangs,
        "errors": run.failures,
        "aborts": run.aborts,
        "tracebacks": ["".join(server.said[max(0, at - 1) : at + 30])[:3000] for at in tracebacks],
        "died": [process for process in before if process not in alive],
        "grown": [one for one in grown if one > GROWTH],
    }
    return {
        "inputs": run.done,
        "http": run.requests,
        "frames": run.frames,
        "workers": workers,
        "seed": seed,
        "seconds": round(time.monotonic() - began, 1),
        **{name: len(found) for name, found in failed.items()},
        "memory_kib": {str(one): [before[one], run.warm.get(one), after.get(one)] for one in before},
        "statuses": dict(run.statuses.most_common()),
        "closes": dict(run.closes.most_common()),
        "lost": dict(run.lost.most_common()),
        "ok": not any(failed.values()),
        "examples": {name: found[:KEPT] for name, found in failed.items() if found},
    }


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--inputs", type=int, default=100_000, help="inputs of each run")
    parser.add_argument("--seed", type=int, default=int.from_bytes(os.urandom(4), "big"))
    parser.add_argument("--workers", type=int, action="append", help="0 means one process; default: both 0 and 2")
    given = parser.parse_args()
    is_ok = True
    for workers in given.workers or [0, 2]:
        result = fuzz(given.inputs, given.seed, workers or None)
        print(json.dumps(result), flush=True)
        is_ok = is_ok and result["ok"]
    return 0 if is_ok else 1


if __name__ == "__main__":
    sys.exit(main())
