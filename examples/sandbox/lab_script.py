"""A model that needs no key and no network: it looks for a few words, and writes code.

It is no language model. It uses its tool as a real one would, also to mend a mistake.
"""

import asyncio
import json
import os
import re
from collections.abc import AsyncIterator
from typing import Any
from uuid import uuid4

from pydantic_ai.messages import (
    ModelMessage,
    ModelRequest,
    ToolReturnPart,
    UserPromptPart,
)
from pydantic_ai.models.function import AgentInfo, DeltaToolCall, FunctionModel

PAUSE = float(os.environ.get("PAUSE", "0.03"))
"""Seconds per word."""

QUOTE = "'"

PAYS = """\
totals = {}
for city in ["London", "Milan", "Rome"]:
    totals[city] = sum(one["pays"] for one in customers(city))
    print(city, totals[city])
max(totals, key=lambda city: totals[city])"""
PLANS = """\
plans = {}
for city in ["London", "Milan", "Rome"]:
    for one in customers(city):
        plans[one["plan"]] = plans.get(one["plan"], 0) + 1
plans"""
MEDIAN = """\
import statistics
pays = [one["pays"] for one in customers("Rome")]
statistics.median(pays)"""
MENDED = """\
pays = sorted(one["pays"] for one in customers("Rome"))
pays[len(pays) // 2]"""
PASSWORDS = "open('/etc/passwd').read()"
ERASE = """\
found = customers("Rome")
print(len(found), "to delete")
customers.erase()"""
PROGRAMS = (
    (r"password|file|/etc", PASSWORDS),
    (r"delete|erase|remove", ERASE),
    (r"median|average|middle", MEDIAN),
    (r"plan", PLANS),
    (r"pay|city|most|money|euro", PAYS),
)
HELP = """I answer questions about the customers with Python that I write. It runs in \
a sandbox: no files, no network, and one function, `customers(city)`. Try one of these:

- **Which city pays most?** The code asks three times; kill the server meanwhile.
- **How many are on each plan?**
- **What is the median in Rome?** My first try fails, and I mend it.
- **Delete everybody in Rome**, or **Read the password file**: I would, but cannot.

Or try to get out yourself: *Ten ways out*, above."""


class Offline(FunctionModel):
    """Plays the model, `PAUSE` seconds per word."""

    def __init__(self) -> None:
        super().__init__(stream_function=self._say, model_name="offline")

    async def _say(
        self, messages: list[ModelMessage], info: AgentInfo
    ) -> AsyncIterator[Any]:
        text, code = reply(*heard(messages))
        for word in re.findall(r"\S+\s*", text):
            await asyncio.sleep(PAUSE)
            yield word
        if code:
            id, arguments = f"call-{uuid4().hex[:8]}", json.dumps({"code": code})
            yield {0: DeltaToolCall("run_python", arguments, tool_call_id=id)}


def heard(messages: list[ModelMessage]) -> tuple[str, list[str]]:
    """Return what the user said last, and what its code has come to since."""
    said, came_out = "", list[str]()
    for message in messages:
        for part in message.parts if isinstance(message, ModelRequest) else ():
            if isinstance(part, UserPromptPart):
                said, came_out = str(part.content), []
            elif isinstance(part, ToolReturnPart):
                came_out.append(str(part.content))
    return said, came_out


def reply(said: str, came_out: list[str]) -> tuple[str, str]:
    """Return what to say, and the code to run, if any."""
    fitting = (code for words, code in PROGRAMS if re.search(words, said.lower()))
    code = next(fitting, "")
    if not code:
        return HELP, ""
    if not came_out:
        return "", code
    last = came_out[-1]
    if code == MEDIAN and len(came_out) == 1:
        return "There is no such module here. I do without it.", MENDED
    _, arrow, value = last.rpartition("=> ")
    if not arrow:
        return f"I could not, and this is why:\n\n> {last.splitlines()[-1]}", ""
    return f"It came to **{value.strip(QUOTE)}**.", ""
