"""A scripted model that needs no API key and no network.

It matches a few words of the prompt, calls the tools as a language model would, and
streams its answers word by word.
"""

import asyncio
import json
import random
import re
from collections.abc import AsyncIterator
from datetime import datetime
from typing import Any

from pydantic_ai.messages import (
    ModelMessage,
    ModelRequest,
    ToolReturnPart,
    UserPromptPart,
)
from pydantic_ai.models.function import AgentInfo, DeltaToolCall, FunctionModel
from sapwood import Refused

CLOCK = "browserClock"
UNITS = {"second": 1, "minute": 60, "hour": 3600, "day": 86400}
SPAN = re.compile(
    r"\bin (?:(\d+)|an?|one) ?(s|m|h|second|minute|hour|day|sec|min)s?\b", re.IGNORECASE
)
HELLO = ("Hello!", "Good to see you!", "Welcome!")
NEXT = ("What shall I remind you of?", "How can I help?", "What is on your mind?")
HELP = """I store reminders for you. Try one of these:

- **Remind me to stretch in 20 seconds**: I write to you when it is due.
- **What do I have to do?** I show my list.
- **Forget everything**: I ask you before I delete anything.
- **What time is it?** I read the clock of your browser.
- **Tell me a story**: a long answer. Press *Stop* during it."""
STORIES = (
    """Under the bark of every tree there is a thin, pale ring that nobody sees. \
It is called the *sapwood*, and it is the part that works: each spring it lifts \
hundreds of litres of water from the roots to the highest leaf, without a pump \
and without a sound.

Once, in a hard winter, frost split an old oak from the crown to the ground. \
People came to look and said that it would die. But the sapwood on the other \
side went on lifting, and in May there were leaves on every branch, also on the \
broken ones.

Years later somebody counted the rings. The year of the frost was there: one \
line, a little darker than the others. After it the rings went on, as if \
nothing had happened.""",
    """A lighthouse keeper had a notebook in which he wrote down every ship. One \
night the lamp went out, and he climbed the stairs in the dark to light it again.

When he came back he did not know which ships had passed meanwhile. So he read \
the last line he had written, looked at the clock, and began from there. *What \
is written has happened*, he used to say. *What is not, I look up again.*

He kept the light for forty years, and no ship was ever written down twice.""",
)
OTHERWISE = """I am only a script, and I do not understand “{prompt}”. Say **help** to \
see what I can do. To talk to a real model, restart the server with its name:

```
MODEL=openai:gpt-5 OPENAI_API_KEY=… sapwood dev
```"""


class OfflineModel(FunctionModel):
    """A model that streams `answer`, one word every `pause` seconds."""

    def __init__(self, pause: float) -> None:
        self._pause = pause
        super().__init__(stream_function=self._stream, model_name="offline")

    async def _stream(
        self, messages: list[ModelMessage], info: AgentInfo
    ) -> AsyncIterator[Any]:
        tools = {tool.name for tool in info.function_tools}
        reply = answer(messages, tools)
        if isinstance(reply, tuple):
            tool, arguments = reply
            await asyncio.sleep(self._pause)
            yield {0: DeltaToolCall(tool, json.dumps(arguments))}
            return
        for word in re.findall(r"\S+\s*", reply):
            await asyncio.sleep(self._pause)
            yield word


def answer(
    messages: list[ModelMessage], tools: set[str]
) -> str | tuple[str, dict[str, Any]]:
    """Return the text of the answer, or a tool and its arguments."""
    last = messages[-1].parts[-1]
    if isinstance(last, ToolReturnPart):
        return report(last)
    prompts = prompts_of(messages)
    prompt = prompts[-1].lower()
    if prompt.startswith("due now:"):
        return f"It is time: **{prompts[-1].partition(':')[2].strip()}**."
    if re.search(r"\b(fail|break|crash)\b", prompt):
        raise Refused(
            "The script fails on request. Try again, or send another message."
        )
    if re.search(r"\b(forget|delete|cancel|remove)\b", prompt):
        return "forget", {"what": what_to_forget(prompts[-1])}
    if "remind" in prompt or (SPAN.search(prompt) and len(prompts) > 1):
        return new_reminder(prompts)
    if re.search(r"\b(time|clock|date|day|time zone)\b", prompt):
        return (CLOCK, {}) if CLOCK in tools else "No browser is connected."
    if re.search(r"\b(list|have to do|to do|todo|show|what's next)\b", prompt):
        return "reminders", {}
    if "story" in prompt:
        return random.choice(STORIES)
    return small_talk(prompts)


def small_talk(prompts: list[str]) -> str:
    prompt = prompts[-1].lower()
    names = [
        match[1]
        for text in prompts
        if (match := re.search(r"\b(?:my name is|i am|i'm) (\w+)", text, re.IGNORECASE))
    ]
    if "my name" in prompt and "?" in prompt:
        return f"You are {names[-1]}." if names else "You have not told me yet."
    if re.search(r"\b(my name is|i am|i'm) \w+", prompt):
        return f"Nice to meet you, {names[-1]}! {random.choice(NEXT)}"
    if re.search(r"\b(hello|hi|hey|good (morning|evening))\b", prompt):
        return f"{random.choice(HELLO)} {random.choice(NEXT)}"
    if re.search(r"\b(thanks|thank you|great|bye)\b", prompt):
        return "You are welcome. I stay here, even if you close the page."
    if re.search(r"\b(help|can you do|who are you)\b", prompt):
        return HELP
    return OTHERWISE.format(prompt=prompts[-1])


def new_reminder(prompts: list[str]) -> str | tuple[str, dict[str, Any]]:
    """Parse "remind me to … in 20 seconds", which may be spread over two messages."""
    span = SPAN.search(prompts[-1])
    if span is None:
        return "When? For example: *in 20 seconds*."
    unit = next(seconds for name, seconds in UNITS.items() if name[0] == span[2][0])
    request = next((text for text in reversed(prompts) if "remind" in text.lower()), "")
    what = re.sub(r"(?i)^.*?\bremind me\b( to| of| about)?|[.!?]+$", "", request)
    what = re.sub(r"(?i)^ *(to|of|about) ", "", SPAN.sub("", what).strip(" ,"))
    if not what:
        return "What shall I remind you of?"
    return "remind", {"what": what, "seconds": int(span[1] or 1) * unit}


def what_to_forget(prompt: str) -> str:
    verb = r"(?i)^.*?\b(forget|delete|cancel|remove)\b"
    what = re.sub(verb, "", prompt).strip(" .!?")
    what = re.sub(r"(?i)^(about )?(the |my )?(reminders? )?(to |of |about )?", "", what)
    return "" if what.lower() in ("everything", "all", "them", "it", "") else what


def report(result: ToolReturnPart) -> str:
    """Return the result of a tool as text."""
    content = result.content
    if result.outcome == "denied":
        return "All right, I leave it as it is."
    if result.outcome != "success":
        return f"That did not work. {content}"
    match result.tool_name:
        case "remind":
            return "Done. I will remind you here, even if the server restarts."
        case "forget":
            return (
                f"Done, {content} deleted."
                if content
                else "There was nothing to delete."
            )
        case "reminders" if isinstance(content, list) and content:
            return "\n".join(
                ["This is on my list:", "", *(f"- {what}" for what in content)]
            )
        case "reminders":
            return "Your list is empty. What shall I remind you of?"
        case _ if isinstance(content, dict) and "now" in content:
            now = datetime.fromisoformat(content["now"])
            return f"It is {now:%H:%M} on {now:%A, %d %B} in {content['zone']}."
        case _:
            return f"Your browser says: {content}"


def prompts_of(messages: list[ModelMessage]) -> list[str]:
    """Return the text of all user messages."""
    return [
        str(part.content)
        for message in messages
        if isinstance(message, ModelRequest)
        for part in message.parts
        if isinstance(part, UserPromptPart)
    ]
