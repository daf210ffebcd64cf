"""A client of the OpenAI API that sees every byte, for tests in virtual time."""

from __future__ import annotations

import asyncio
import json
from collections.abc import Sequence
from typing import Any

from tests.conformance.served import Served
from tests.conformance.worlds import until


class Stream:
    """Reads the events of one streamed request, as they come."""

    def __init__(self, one: Served, path: str, body: Any = None, **headers: str) -> None:
        self.events: list[Any] = []
        self.names: list[str] = []
        self.status = 0
        self.text = ""
        self.is_over = False
        self._one = one
        self._reading = asyncio.create_task(self._read(path, body, headers))

    async def _read(self, path: str, body: Any, headers: dict[str, str]) -> None:
        reader, writer = await asyncio.open_connection("127.0.0.1", self._one.site.port)
        text = b"" if body is None else json.dumps(body).encode()
        sent = {"host": f"127.0.0.1:{self._one.site.port}", "connection": "close", "content-length": str(len(text))}
        lines = [f"{name}: {value}" for name, value in (sent | headers).items()]
        method = "GET" if body is None else "POST"
        writer.write("\r\n".join([f"{method} {path} HTTP/1.1", *lines, "", ""]).encode() + text)
        try:
            self.status = int((await reader.readline()).split()[1])
            while line := (await reader.readline()).decode():
                self.text += line
                if line.startswith("event: "):
                    self.names.append(line.removeprefix("event: ").strip())
                if line.startswith("data: {"):
                    self.events.append(json.loads(line.removeprefix("data: ")))
        except (ConnectionError, IndexError):
            pass
        finally:
            self.is_over = True
            writer.close()

    async def over(self) -> list[Any]:
        await until(lambda: self.is_over)
        return self.events

    async def until_said(self, words: str) -> None:
        await until(lambda: words in said(self.events))

    async def leave(self) -> None:
        """End the connection."""
        self._reading.cancel()
        await asyncio.wait({self._reading})


def said(events: Sequence[Any]) -> str:
    """Return what the deltas of a response add up to, for a reader that drops items which are incomplete."""
    texts: dict[str, str] = {}
    for event in events:
        if event["type"] == "response.output_text.delta":
            texts[event["item_id"]] = texts.get(event["item_id"], "") + event["delta"]
        elif event["type"] == "response.output_item.done" and event["item"].get("status") == "incomplete":
            texts.pop(event["item"]["id"], None)
    return "".join(texts.values())


def text_of(response: Any) -> str:
    """Return the text of a response, as the SDKs do."""
    return "".join(part["text"] for item in response["output"] if item["type"] == "message" for part in item["content"])


async def post(one: Served, path: str, body: Any, **headers: str) -> Any:
    return await one.site.http(path, method="POST", body=json.dumps(body).encode(), headers=headers)


async def create(one: Served, **body: Any) -> Any:
    """Create a response, and return it."""
    answer = await post(one, "/v1/responses", body)
    assert answer.status == 200, answer.text
    return answer.json()


async def refused(one: Served, **body: Any) -> tuple[int, str, str | None]:
    """Return the status, the code and the parameter with which a request for a response is refused."""
    answer = await post(one, "/v1/responses", body)
    error = answer.json()["error"]
    assert error["message"]
    return answer.status, error["code"], error["param"]
