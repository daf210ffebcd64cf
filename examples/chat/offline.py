"""A model that needs no key and no network: it looks for a few words, and answers.

It is no language model. It answers what this example is about, uses the tools as a real
one would, and takes its time for each word.
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
HELP = """I keep reminders for you. Try one of these:

- **Remind me to stretch in 20 seconds**: I set an alarm, and ring when it is due.
- **What do I have to do?** I look into my list.
- **Forget everything**: I ask you before I delete anything.
- **What time is it?** I ask your browser for its clock.
- **Tell me a story**: something long, to press *Stop* in."""
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
OTHERWISE = """I am only a script, and “{said}” is more than I understand. Say \
**help** for what I can do. To talk to a real model, start me with its name:

```
MODEL=openai:gpt-5 OPENAI_API_KEY=… sapwood dev
```"""


class OfflineModel(FunctionModel):
    """Answers with `answer`, so many seconds per word."""

    def __init__(self, pause: float) -> None:
        self._pause = pause
        super().__init__(stream_function=self._say, model_name="offline")

    async def _say(
        self, messages: list[ModelMessage], info: AgentInfo
    ) -> AsyncIterator[Any]:
        tools = {tool.name for tool in info.function_tools}
        said = answer(messages, tools)
        if isinstance(said, tuple):
            tool, arguments = said
            await asyncio.sleep(self._pause)
            yield {0: DeltaToolCall(tool, json.dumps(arguments))}
            return
        for word in re.findall(r"\S+\s*", said):
            await asyncio.sleep(self._pause)
            yield word


def answer(
    messages: list[ModelMessage], tools: set[str]
) -> str | tuple[str, dict[str, Any]]:
    """Return what to say next, or the tool to call and its arguments."""
    last = messages[-1].parts[-1]
    if isinstance(last, ToolReturnPart):
        return after(last, prompts(messages)[-1])
    said = prompts(messages)
    asked = said[-1].lower()
    if asked.startswith("due now:"):
        return f"It is time: **{said[-1].partition(':')[2].strip()}**."
    if re.search(r"\b(fail|break|crash)\b", asked):
        raise Refused("The script fails when it is told to. Try again, or go on.")
    if re.search(r"\b(forget|delete|cancel|remove)\b", asked):
        return "forget", {"what": what_to_forget(said[-1])}
    if "remind" in asked or (SPAN.search(asked) and len(said) > 1):
        return new_reminder(said)
    if re.search(r"\b(time|clock|date|day|time zone)\b", asked):
        return (CLOCK, {}) if CLOCK in tools else "There is no browser here to ask."
    if re.search(r"\b(list|have to do|to do|todo|show|what's next)\b", asked):
        return "reminders", {}
    if "story" in asked:
        return random.choice(STORIES)
    return small_talk(said)


def small_talk(said: list[str]) -> str:
    asked = said[-1].lower()
    named = [
        match[1]
        for text in said
        if (match := re.search(r"\b(?:my name is|i am|i'm) (\w+)", text, re.IGNORECASE))
    ]
    if "my name" in asked and "?" in asked:
        return f"You are {named[-1]}." if named else "You have not told me yet."
    if re.search(r"\b(my name is|i am|i'm) \w+", asked):
        return f"Nice to meet you, {named[-1]}! {random.choice(NEXT)}"
    if re.search(r"\b(hello|hi|hey|good (morning|evening))\b", asked):
        return f"{random.choice(HELLO)} {random.choice(NEXT)}"
    if re.search(r"\b(thanks|thank you|great|bye)\b", asked):
        return "You are welcome. I stay here, also if you close the page."
    if re.search(r"\b(help|can you do|who are you)\b", asked):
        return HELP
    return OTHERWISE.format(said=said[-1])


def new_reminder(said: list[str]) -> str | tuple[str, dict[str, Any]]:
    """Take apart "remind me to … in 20 seconds"; some may have been said before."""
    span = SPAN.search(said[-1])
    if span is None:
        return "When? Say for example: *in 20 seconds*."
    unit = next(seconds for name, seconds in UNITS.items() if name[0] == span[2][0])
    about = next((text for text in reversed(said) if "remind" in text.lower()), "")
    what = re.sub(r"(?i)^.*?\bremind me\b( to| of| about)?|[.!?]+$", "", about)
    what = re.sub(r"(?i)^ *(to|of|about) ", "", SPAN.sub("", what).strip(" ,"))
    if not what:
        return "What shall I remind you of?"
    return "remind", {"what": what, "seconds": int(span[1] or 1) * unit}


def what_to_forget(said: str) -> str:
    what = re.sub(r"(?i)^.*?\b(forget|delete|cancel|remove)\b", "", said).strip(" .!?")
    what = re.sub(r"(?i)^(about )?(the |my )?(reminders? )?(to |of |about )?", "", what)
    return "" if what.lower() in ("everything", "all", "them", "it", "") else what


def after(returned: ToolReturnPart, asked: str) -> str:
    """Say what came of a tool."""
    content = returned.content
    if returned.outcome == "denied":
        return "All right, I leave it as it is."
    if returned.outcome != "success":
        return f"That did not work. {content}"
    match returned.tool_name:
        case "remind":
            return "Done. I will tell you here, also if the server is restarted."
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


def prompts(messages: list[ModelMessage]) -> list[str]:
    """Return everything that the user said."""
    return [
        str(part.content)
        for message in messages
        if isinstance(message, ModelRequest)
        for part in message.parts
        if isinstance(part, UserPromptPart)
    ]
