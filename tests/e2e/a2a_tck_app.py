"""The agent that the test kit of A2A (TCK) is run against: what a message does is said by the beginning of its id.

    sapwood serve a2a_tck_app.py:app --data DATA

`scripts/a2a_tck.py` starts it. The beginnings are those of the scenarios of the kit.
"""

from __future__ import annotations

import asyncio
import os
from base64 import b64encode

from sapwood import Agent, App, Refused
from sapwood.auth import ANY_CLIENT
from sapwood.protocols import A2a, A2aMessage, A2aPart

LONG = 2 * float(os.environ.get("TCK_STREAMING_TIMEOUT", "2"))
"""Seconds of the task to which the kit subscribes again."""
CONTENT = b64encode(b"file content").decode()
FILE = A2aPart(raw=CONTENT, filename="output.txt", media_type="text/plain")
FILE_URL = A2aPart(url="https://example.com/output.txt", filename="output.txt", media_type="text/plain")
PARTS = {
    "tck-artifact-text": A2aPart(text="Generated text content"),
    "tck-artifact-file-url": FILE_URL,
    "tck-artifact-file": FILE,
    "tck-artifact-data": A2aPart(data={"key": "value", "count": 42}),
    "tck-stream-001": A2aPart(text="Stream hello from TCK"),
    "tck-stream-003": A2aPart(text="Stream task lifecycle"),
    "tck-stream-ordering-001": A2aPart(text="Ordered output"),
    "tck-stream-artifact-text": A2aPart(text="Streamed text content"),
    "tck-stream-artifact-file": FILE,
    "tck-stream-artifact-chunked": A2aPart(text="chunk-1 chunk-2"),
}


class TckAgent(Agent):
    """Does what the scenarios of the A2A test kit want."""

    async def on_run(self, input: A2aMessage) -> list[A2aPart] | A2aMessage | str:
        id = input.message_id
        if id.startswith("tck-message-response"):
            return A2aMessage(f"{id}-response", "ROLE_AGENT", [A2aPart(text="Direct message response")])
        if id.startswith("tck-input-required"):
            return await self.questions.ask("What next?", approvers=ANY_CLIENT)
        if id.startswith("tck-reject-task"):
            raise Refused("rejected")
        if id.startswith("test-resubscribe"):
            self.report_progress(0.1, "working")
            await asyncio.sleep(LONG)
        for beginning, part in PARTS.items():
            if id.startswith(beginning):
                return [part]
        return "Hello from TCK"


app = App(agents=[TckAgent], protocols=[A2a([TckAgent], joins_repeated=False, push_hosts=["localhost", "127.0.0.1"])])
