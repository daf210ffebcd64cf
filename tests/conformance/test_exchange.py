"""What protocols hear of a turn, however slowly they read."""

from __future__ import annotations

import asyncio
from contextlib import aclosing
from typing import Any, ClassVar

from starlette.requests import Request
from starlette.responses import JSONResponse, Response
from tests.conformance.openai_client import create
from tests.conformance.served import served
from tests.machine import patience

from sapwood import App, ChatAgent
from sapwood.protocols import OpenAi
from sapwood.protocols.exchange import Exchange
from sapwood.testing import ScriptedModel, call

LOOK = {"type": "function", "name": "look", "parameters": {"type": "object", "properties": {}}}


class SlowlyRead(ChatAgent):
    """Has a reader that stops where its turn waits, and reads on later."""

    model = ScriptedModel(call("look", id="c1"), call("look", id="c2"), each=True)
    has_paused: ClassVar[asyncio.Event]
    goes_on: ClassVar[asyncio.Event]

    async def on_request(self, request: Request) -> Response:
        exchange, last = Exchange(self._actor, request), 0
        turn = exchange.current()
        assert turn is not None
        async with aclosing(exchange.events(turn.id)) as events:
            async for event in events:
                if event is not None and event.kind == "chunk":
                    last = event.seq
                if last == exchange.position(turn.id):
                    if self.goes_on.is_set():
                        break
                    self.has_paused.set()
                    await self.goes_on.wait()
        return JSONResponse(last)


async def test_a_reader_hears_what_a_turn_said_before_it_rested_again() -> None:
    SlowlyRead.has_paused, SlowlyRead.goes_on = asyncio.Event(), asyncio.Event()
    async with asyncio.timeout(patience()), served(App(agents=[SlowlyRead], protocols=[OpenAi()])) as one:
        said: dict[str, Any] = {"model": "slowly-read", "tools": [LOOK]}
        first = await create(one, **said, conversation="c", input="what is there?")
        reading = asyncio.create_task(one.site.http("/agents/slowly-read/c/read"))
        await SlowlyRead.has_paused.wait()
        answer = {"type": "function_call_output", "call_id": first["output"][0]["call_id"], "output": "a tree"}
        await create(one, **said, previous_response_id=first["id"], input=[answer])
        SlowlyRead.goes_on.set()
        assert (await reading).json() > 4
