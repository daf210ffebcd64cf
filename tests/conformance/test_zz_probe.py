from __future__ import annotations
import asyncio, json
import pytest
from typing import Any
from tests.conformance.test_a2a import *  # noqa
from tests.conformance.test_a2a import scripts, TaskWorker, TaskOffice
from dataclasses import dataclass

for _n in [n for n in list(globals()) if n.startswith("test_")]:
    del globals()[_n]

async def raw(one, method, params, path="task-worker", **h):
    body = params if isinstance(params, bytes) else json.dumps({"jsonrpc":"2.0","id":7,"method":method,"params":params}).encode()
    a = await one.site.http(f"/a2a/{path}", method="POST", body=body, headers={"A2A-Version":"1.0", **h})
    return a.status, a.text[:300]

CASES = [
  ("hist", "GetTask", lambda t: {"id": t, "historyLength": 10**30}),
  ("after", "ListTasks", lambda t: {"statusTimestampAfter": "2020-01-01T00:00:00"}),
  ("url1", "CreateTaskPushNotificationConfig", lambda t: {"taskId": t, "url": "http://[::1"}),
  ("url2", "CreateTaskPushNotificationConfig", lambda t: {"taskId": t, "url": "http://a:99999/"}),
  ("url3", "CreateTaskPushNotificationConfig", lambda t: {"taskId": t, "url": "http://[64:ff9b::7f00:1]/"}),
  ("url4", "CreateTaskPushNotificationConfig", lambda t: {"taskId": t, "url": "http://224.0.0.1/"}),
  ("url5", "CreateTaskPushNotificationConfig", lambda t: {"taskId": t, "url": "http://a..b/"}),
  ("url6", "CreateTaskPushNotificationConfig", lambda t: {"taskId": t, "url": "http://8.8.8.8/", "token": "a\r\nX: y"}),
]
async def test_probe():
    async with tasked() as one:
        task = (await rpc(one, "SendMessage", saying("hello", "m1")))["task"]
        for n, m, f in CASES:
            print(n, await raw(one, m, f(task["id"])))

async def test_ctx():
    TaskOffice.model = ScriptedModel(text("first"), each=True)
    async with tasked() as one:
        for ctx in ["x"*600, "a\0b", "a/b:c", "é"*100]:
            try:
                async with asyncio.timeout(5):
                    print(repr(ctx)[:20], await raw(one, "SendMessage", saying("one", "m"+ctx[:5], contextId=ctx), "task-office"))
            except TimeoutError:
                print(repr(ctx)[:20], "TIMEOUT")
        print(await raw(one, "ListTasks", {}, "task-office"))

async def test_deep():
    async with tasked() as one:
        last = None
        for depth in [*range(100, 1000, 50)]:
            v = "["*depth + "]"*depth
            body = ('{"jsonrpc":"2.0","id":7,"method":"SendMessage","params":{"message":{"messageId":"d%d","role":"ROLE_USER","parts":[{"data":%s}]}}}' % (depth, v)).encode()
            try:
                async with asyncio.timeout(8):
                    s, t = await raw(one, "", body)
            except TimeoutError:
                s, t = "TIMEOUT", ""
            if (s, t[:60]) != last: print(depth, s, t[:200]); last = (s, t[:60])
        print(await rpc(one, "ListTasks", {"pageSize": 1}))

@dataclass
class Odd:
    id: int
async def test_users():
    async with tasked(authenticate=lambda r: Odd(int(r.headers["who"]))) as one:
        t = (await rpc(one, "SendMessage", saying("hello", "m1"), who="1"))["task"]
        print("INT", await raw(one, "GetTask", {"id": t["id"]}, who="2"))
    async with tasked(authenticate=who) as one:
        for u in ["x"*600, "a/b", "%00"]:
            print(u[:5], await raw(one, "ListTasks", {}, who=u))
