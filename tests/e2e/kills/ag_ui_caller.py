"""A page that speaks AG-UI: runs by their id, streams that go on after their last event, and a reload at the end.

It reads the events by itself, and checks their order as the verifier of the official client does. That client is tested
in `tests/npm/test_ag_ui.py`; each start of it takes longer than all kills here.
"""

from __future__ import annotations

import json
from typing import Any

import httpx
from tests.conformance.test_ag_ui import words_of
from tests.conformance.test_ag_ui_waiting import verify
from tests.e2e.kills.caller import RESULTS, WORDS, Caller
from tests.machine import patience

LOOK = {
    "name": "look",
    "description": "Look out of the page.",
    "parameters": {"type": "object", "properties": {"operation": {"type": "string"}}},
}
UNAVAILABLE = (502, 503)


class Run:
    """The events of one run so far."""

    def __init__(self) -> None:
        self.frames: list[Any] = []
        self.last = ""
        """The id of the last event that had one."""
        self.parts = 1
        """How many streams told them."""
        self._place, self._next = 0, ""

    @property
    def is_over(self) -> bool:
        return bool(self.frames) and self.frames[-1]["type"] in ("RUN_FINISHED", "RUN_ERROR")

    def take(self, line: str) -> bool:
        """Take a line of the stream; return whether it was an event."""
        if line.startswith("id: "):
            self._next = line[4:].strip()
        elif line.startswith("data: "):
            self.frames.append(json.loads(line[6:]))
            if self._next:
                self.last, self._place, self._next = self._next, len(self.frames), ""
            return True
        return False

    def go_back(self) -> None:
        """Forget what came after the last event with an id: it comes again."""
        del self.frames[self._place :]
        self.parts, self._next = self.parts + 1, ""


def _results(messages: list[Any]) -> set[str]:
    return {one["toolCallId"] for one in messages if one["role"] == "tool"}


def _calls(messages: list[Any]) -> list[str]:
    """Return the calls of the page's tool in messages."""
    calls = [call for one in messages for call in one.get("toolCalls", ())]
    return [call["id"] for call in calls if call["function"]["name"] == LOOK["name"]]


class AgUiCaller(Caller):
    """A page with a tool of its own."""

    name = "ag-ui"
    page_tools = 1

    async def open(self) -> None:
        self._http = httpx.AsyncClient(base_url=self.url, timeout=patience(60))

    async def close(self) -> None:
        await self._http.aclose()

    def expected(self, operation: str) -> str:
        return f"{operation}: {', '.join([*RESULTS, 'a tree'])}. {WORDS}"

    async def operate(self, operation: str) -> str | None:
        messages: list[Any] = [{"id": f"{operation}-u", "role": "user", "content": operation}]
        more: dict[str, Any] = {}
        answered: tuple[str, ...] = ()
        for number in range(10):
            frames = await self._run(operation, f"{operation}-r{number}", messages, more, answered)
            outcome = frames[-1].get("outcome", {"type": frames[-1]})
            asked = [one["id"] for one in outcome.get("interrupts", [])]
            self.asked(operation, *asked)
            called = self._open_calls(frames, messages)
            self.called(operation, *called)
            messages, more, answered = list(messages), {}, (*asked, *called)
            if asked:
                payload = {"approved": True}
                more = {"resume": [{"interruptId": id, "status": "resolved", "payload": payload} for id in asked]}
            for id in called:
                messages.append({"id": f"{operation}-{id}", "role": "tool", "toolCallId": id, "content": "a tree"})
            if not answered:
                await self._reload(operation, words_of(frames))
                return words_of(frames) if outcome["type"] == "success" else str(frames[-1])
        return "It never ends."

    def _open_calls(self, frames: list[Any], messages: list[Any]) -> list[str]:
        """Return the calls of the page's tool that a run leaves open, as a page that keeps its messages sees them.

        A snapshot replaces them: a call of a request to the model that is sent again after a crash is taken back.
        """
        done = _results(messages)
        calls: dict[str, None] = {}
        for one in frames:
            if one["type"] == "MESSAGES_SNAPSHOT":
                calls = dict.fromkeys(_calls(one["messages"]))
                done |= _results(one["messages"])
            elif one["type"] == "TOOL_CALL_START" and one["toolCallName"] == LOOK["name"]:
                calls[one["toolCallId"]] = None
            elif one["type"] == "TOOL_CALL_RESULT":
                done.add(one["toolCallId"])
        return [id for id in calls if id not in done]

    async def _reload(self, operation: str, words: str) -> None:
        """Look at the conversation as a page does that is opened now: nothing is open, and nothing is said twice."""
        frames = await self._run(operation, f"{operation}-c", [], {}, (), path="/connect")
        self.asked(operation, *(one["id"] for one in frames[-1]["outcome"].get("interrupts", [])))
        self.called(operation, *self._open_calls(frames, []))
        if words_of(frames).split() != words.split():
            self.violations.append(f"{operation}: a page that is opened later shows {words_of(frames)!r}")

    def _verify(self, id: str, run: Run) -> None:
        """Check the order of the events."""
        try:
            verify(run.frames, continues=run.parts > 1)
        except (AssertionError, KeyError):
            keys = ("toolCallId", "messageId", "subagentRunId")
            told = [" ".join([one["type"], *(str(one[key]) for key in keys if key in one)]) for one in run.frames]
            self.violations.append(f"{id}: the events of {run.parts} streams are out of order:\n" + "\n".join(told))

    async def _run(
        self,
        operation: str,
        id: str,
        messages: list[Any],
        more: dict[str, Any],
        answered: tuple[str, ...],
        *,
        path: str = "",
    ) -> list[Any]:
        """Run until the end, as often as the connection breaks; return all events, as if it had not."""
        body = {"threadId": operation, "runId": id, "messages": messages, "tools": [LOOK], "state": {}}
        body |= {"context": [], "forwardedProps": {}, **more}
        url, run = f"/agents/kills-desk/{operation}/ag-ui{path}", Run()
        is_continued = False
        while True:
            headers = {"accept": "text/event-stream"}
            if run.last and not is_continued and not path and self.random.random() < 0.5:
                # A second break before the next id would repeat events, so a client that is exact does this once.
                run.go_back()
                headers["last-event-id"], is_continued = run.last, True
            else:
                run, is_continued = Run(), False
            try:
                async with self._http.stream("POST", url, json=body, headers=headers) as response:
                    if response.status_code not in (200, *UNAVAILABLE):
                        text = (await response.aread()).decode()
                        raise AssertionError(f"{id}: {response.status_code} {text}")
                    if response.status_code == 200:
                        async for line in response.aiter_lines():
                            if run.take(line):
                                self.heard()
                                self.accepted(*answered)
                        if run.is_over:
                            self._verify(id, run)
                            return run.frames
            except httpx.HTTPError:
                pass
            await self.cut()
