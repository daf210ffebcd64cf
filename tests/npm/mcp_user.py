"""What the conformance suite of MCP starts as the client under test: the user of an agent of `mcp_client.py`.

    python mcp_user.py HOST_OF_SAPWOOD URL_OF_THE_SCENARIO

It does what a page and its user do, and needs nothing but Python: the client under test is the agent. It ends with 1 if
the agent could not use the server.
"""

from __future__ import annotations

import http.client
import json
import os
import sys
import time
from typing import Any
from urllib.parse import quote, urlsplit

CIMD = "https://conformance-test.local/client-metadata.json"
SIGN_INS, LOOKS, PAUSE = 3, 400, 0.05
"""Times that the user signs in, looks for a change at most, and seconds between two looks."""


class Person:
    """The user of one agent."""

    def __init__(self, host: str, scenario: str) -> None:
        self._host = host
        self._path = f"/agents/conformance-client/{quote(scenario, safe='')}"
        self._sign_ins = 0
        self._calls = 0

    def _do(self, what: str, **given: Any) -> Any:
        body = json.dumps({"do": what, "with": given})
        told = json.loads(_fetched(f"http://{self._host}{self._path}", body)[1])
        if "error" in told:
            raise SystemExit(told["error"])
        return told["told"]

    def add(self, url: str, **options: Any) -> dict[str, Any]:
        """Have a server added, and sign in as often as it wants it."""
        return self._signed_in(self._do("add", url=url, options=options))

    def refresh(self) -> dict[str, Any]:
        """Have the tools read again."""
        return self._signed_in(self._do("refresh"))

    def _signed_in(self, server: dict[str, Any]) -> dict[str, Any]:
        while server["status"] == "signing_in" and self._sign_ins < SIGN_INS:
            self._sign_ins += 1
            location = str(server["sign_in_url"])
            while not location.startswith(f"http://{self._host}"):
                location = _fetched(location)[0]
            _fetched(location)  # the callback of the agent
            for _ in range(LOOKS):
                server = self._do("look")
                if server["status"] != "connecting" and server["sign_in_url"] is None:
                    break
                if server["status"] == "signing_in":
                    break
                time.sleep(PAUSE)
        return server

    def call(self, tool: str, arguments: dict[str, Any]) -> str:
        """Have a tool called, answer what it asks, and return how it ended. After a sign-in, it is called again."""
        for _ in range(SIGN_INS):
            ended = self._called(tool, arguments)
            before = self._sign_ins
            self._signed_in(self._do("look"))
            if self._sign_ins == before:
                break
        return ended

    def _called(self, tool: str, arguments: dict[str, Any]) -> str:
        self._calls += 1
        key = f"{tool} {self._calls}"
        self._do("call", key=key, tool=tool, arguments=arguments)
        for _ in range(LOOKS):
            told = self._do("result", key=key)
            for question in told["questions"]:
                self._do("answer", id=question["id"], content=sample(question["schema"] or {}))
            if told["status"] in ("completed", "failed", "cancelled"):
                return f"{told['status']} {told['error'] or ''}"
            time.sleep(PAUSE)
        return "it did not end"


def sample(schema: dict[str, Any]) -> dict[str, Any]:
    """Return an object as a user fills in a form: the defaults, and something for each other field that is required."""
    required = schema.get("required", [])
    found: dict[str, Any] = {}
    for name, part in schema.get("properties", {}).items():
        if "default" in part:
            found[name] = part["default"]
        elif name in required:
            found[name] = _value(part)
    return found


def _value(part: dict[str, Any]) -> Any:
    if "enum" in part:
        return part["enum"][0]
    return {"string": "word", "integer": 1, "number": 1.5, "boolean": True, "array": [], "object": {}}.get(
        part.get("type", "string"), "word"
    )


def _fetched(url: str, body: str | None = None) -> tuple[str, bytes]:
    """Return where a response leads to, and its body. No redirect is followed."""
    parts = urlsplit(url)
    connection = http.client.HTTPConnection(parts.netloc, timeout=30)
    path = (parts.path or "/") + (f"?{parts.query}" if parts.query else "")
    connection.request("GET" if body is None else "POST", path, body, {"content-type": "application/json"})
    response = connection.getresponse()
    return response.getheader("location", ""), response.read()


def main(host: str, url: str) -> int:
    scenario = os.environ["MCP_CONFORMANCE_SCENARIO"]
    context = json.loads(os.environ.get("MCP_CONFORMANCE_CONTEXT", "{}"))
    options = {name: context[name] for name in ("client_id", "client_secret") if name in context}
    if scenario == "auth/basic-cimd":
        options["client_id"] = CIMD
    user = Person(host, f"{scenario} {os.getpid()}")
    server = user.add(url, **options)
    print(server["status"], server["error"], *server["tools"])
    if server["status"] != "ready":
        return 1
    calls = context.get("toolCalls") or [
        {"name": name, "arguments": sample(schema)} for name, schema in server["tools"].items()
    ]
    if "json_schema_echo" in server["tools"]:
        (focal,) = [schema for name, schema in server["tools"].items() if name != "json_schema_echo"]
        calls = [{"name": "json_schema_echo", "arguments": {"schema": focal}}]
    for one in calls:
        print(one["name"], user.call(one["name"], one["arguments"]))
    print(user.refresh()["status"])
    return 0


if __name__ == "__main__":
    sys.exit(main(*sys.argv[1:]))
