"""A scripted model that needs no API key and no network.

It matches a few words of the prompt, calls its tool as a language model would, and
fixes a mistake in its code.
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
FIXED = """\
pays = sorted(one["pays"] for one in customers("Rome"))
pays[len(pays) // 2]"""
PASSWORDS = "open('/etc/passwd').read()"
ERASE = """\
rows = customers("Rome")
print(len(rows), "to delete")
customers.erase()"""
PROGRAMS = (
    (r"password|file|/etc", PASSWORDS),
    (r"delete|erase|remove", ERASE),
    (r"median|average|middle", MEDIAN),
    (r"plan", PLANS),
    (r"pay|city|most|money|euro", PAYS),
)
HELP = """I answer questions about the customers with Python code. It runs in a \
sandbox: no files, no network, and one function, `customers(city)`. Try one of these:

- **Which city pays most?** The code makes three calls; kill the server during one.
- **How many are on each plan?**
- **What is the median in Rome?** My first attempt fails, and I fix it.
- **Delete all customers in Rome**, or **Read the password file**: the sandbox \
refuses both.

Or try to escape yourself: *Ten ways out*, above."""


class Offline(FunctionModel):
    """A model that streams the replies of a script, one word every `PAUSE` seconds."""

    def __init__(self) -> None:
        super().__init__(stream_function=self._stream, model_name="offline")

    async def _stream(
        self, messages: list[ModelMessage], info: AgentInfo
    ) -> AsyncIterator[Any]:
        text, code = reply(*parse(messages))
        for word in re.findall(r"\S+\s*", text):
            await asyncio.sleep(PAUSE)
            yield word
        if code:
            id, arguments = f"call-{uuid4().hex[:8]}", json.dumps({"code": code})
            yield {0: DeltaToolCall("run_python", arguments, tool_call_id=id)}


def parse(messages: list[ModelMessage]) -> tuple[str, list[str]]:
    """Return the last user message, and the results of the code since then."""
    prompt, results = "", list[str]()
    for message in messages:
        for part in message.parts if isinstance(message, ModelRequest) else ():
            if isinstance(part, UserPromptPart):
                prompt, results = str(part.content), []
            elif isinstance(part, ToolReturnPart):
                results.append(str(part.content))
    return prompt, results


def reply(prompt: str, results: list[str]) -> tuple[str, str]:
    """Return the text to stream, and the code to run, if any."""
    matches = (code for words, code in PROGRAMS if re.search(words, prompt.lower()))
    code = next(matches, "")
    if not code:
        return HELP, ""
    if not results:
        return "", code
    last = results[-1]
    if code == MEDIAN and len(results) == 1:
        return "That module is not available. I will write it without.", FIXED
    _, arrow, value = last.rpartition("=> ")
    if not arrow:
        return f"The sandbox refused it:\n\n> {last.splitlines()[-1]}", ""
    return f"The result is **{value.strip(QUOTE)}**.", ""
