"""Three models that need no key and no network: they look for a few words, and answer.

They are no language models. Each plays one part of this example, and uses the tools as
a real one would.
"""

import asyncio
import json
import os
import re
from collections.abc import AsyncIterator, Callable
from dataclasses import dataclass
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


@dataclass(frozen=True)
class Reply:
    """What a model answers once: it speaks, and calls tools."""

    text: str = ""
    calls: tuple[tuple[str, dict[str, Any]], ...] = ()


@dataclass(frozen=True)
class Heard:
    """A conversation, as a script wants to know it."""

    said: str
    """What the user said last."""
    returned: list[ToolReturnPart]
    """What tools returned since then."""

    @classmethod
    def of(cls, messages: list[ModelMessage]) -> "Heard":
        said, returned = "", list[ToolReturnPart]()
        for message in messages:
            for part in message.parts if isinstance(message, ModelRequest) else ():
                if isinstance(part, UserPromptPart):
                    said = str(part.content)
                    returned = []
                elif isinstance(part, ToolReturnPart):
                    returned.append(part)
        return cls(said, returned)

    def results(self, tool: str) -> list[ToolReturnPart]:
        return [part for part in self.returned if part.tool_name == tool]

    def found(self) -> list[dict[str, Any]] | None:
        """Return the customers that were looked at; None if nobody has looked."""
        looked = [part.content for part in self.results("look")]
        return looked[-1] if looked and isinstance(looked[-1], list) else None


class Offline(FunctionModel):
    """Plays a part, `PAUSE` seconds per word."""

    def __init__(self, part: Callable[[Heard], Reply]) -> None:
        self._part = part
        super().__init__(stream_function=self._say, model_name="offline")

    async def _say(
        self, messages: list[ModelMessage], info: AgentInfo
    ) -> AsyncIterator[Any]:
        reply = self._part(Heard.of(messages))
        for word in re.findall(r"\S+\s*", reply.text):
            await asyncio.sleep(PAUSE)
            yield word
        for number, (tool, arguments) in enumerate(reply.calls):
            await asyncio.sleep(PAUSE)
            id = f"call-{uuid4().hex[:8]}"
            yield {number: DeltaToolCall(tool, json.dumps(arguments), tool_call_id=id)}


# The assistant

HELP = """I keep the customers, and I change nothing: I propose, and you decide at the \
gate. Try one of these:

- **Move Ada to Paris**: one proposal. Approve it, edit it, or reject it.
- **Delete everybody in New York**: two proposals at once.
- **Tidy up the customers**: an auditor looks for mistakes, and sends out clerks; what \
they propose waits at the same gate.
- **Add Linus Torvalds, linus@kernel.example, Portland**
- **Who is on the pro plan?**

While something waits, open the page twice, reload it, or kill the server."""
OTHERWISE = """I am only a script, and “{said}” is more than I understand. Say \
**help** for what I can do. To talk to a real model, start me with its name:

```
MODEL=openai:gpt-5 OPENAI_API_KEY=… sapwood dev
```"""
BYPASS = """I cannot. I have three tools: `look` reads, `propose` asks you, and \
`audit` sends others who can do no more. What changes the database is not among them."""
ADD = (
    r"^\s*add\s+([^,]+),\s*([^,\s]+@[^,\s]+),\s*([^,]+?)(?:,\s*(free|pro|team))?[.!]?$"
)
DELETE = r"\b(?:delete|remove)\s+(.+?)[.!?]?$"
CHANGES = (
    (r"\bmove\s+(.+?)\s+to\s+(.+?)[.!?]?$", "city"),
    (
        r"\b(?:upgrade|downgrade|put)\s+(.+?)\s+(?:to|on)\s+(?:the\s+)?(free|pro|team)\b",
        "plan",
    ),
    (r"\brename\s+(.+?)\s+to\s+(.+?)[.!?]?$", "name"),
)
SETS = (
    r"\b(?:change|set)\s+(?:the\s+)?(name|email|city|plan)\s+of\s+(.+?)\s+to\s+(.+?)[.!?]?$",
    r"\b(?:change|set)\s+(.+?)['’]s?\s+(name|email|city|plan)\s+to\s+(.+?)[.!?]?$",
)
FIND = (
    r"\b(?:find|show|list|look (?:for|up)|who)\b(?: is| are| me)*"
    r"(.*?)[.!?]?$"
)


@dataclass(frozen=True)
class Wish:
    """What somebody wants of the assistant: whom it is about, and what to propose."""

    words: str
    action: str = ""
    values: tuple[tuple[str, str], ...] = ()


def understood(said: str) -> Wish | None:
    if found := re.search(ADD, said, re.IGNORECASE):
        name, email, city, plan = (one and one.strip() for one in found.groups())
        values = (("name", name), ("email", email), ("city", city), ("plan", plan))
        return Wish(name, "add", tuple((key, value) for key, value in values if value))
    for pattern in SETS:
        if found := re.search(pattern, said, re.IGNORECASE):
            *first, value = found.groups()
            one, two = sorted(first, key=lambda one: one.lower() in FIELD_NAMES)
            return Wish(bare(one), "change", ((two.lower(), value),))
    for pattern, field in CHANGES:
        if found := re.search(pattern, said, re.IGNORECASE):
            value = found[2].lower() if field == "plan" else found[2]
            return Wish(bare(found[1]), "change", ((field, value),))
    if found := re.search(DELETE, said, re.IGNORECASE):
        return Wish(bare(found[1]), "delete")
    if found := re.search(FIND, said, re.IGNORECASE):
        return Wish(bare(found[1]))
    return None


FIELD_NAMES = ("name", "email", "city", "plan")


def bare(text: str) -> str:
    """Return whom a text names, without what only people need."""
    text = re.sub(
        r"\b(everybody|everyone|all|customers?|people|in|from|on|the|plan)\b",
        " ",
        text,
        flags=re.IGNORECASE,
    )
    return " ".join(text.split())


def has(said: str, words: str) -> bool:
    return re.search(rf"\b({words})\b", said, re.IGNORECASE) is not None


def as_assistant(heard: Heard) -> Reply:
    """Look, propose, and say what came of it."""
    said = heard.said
    if audits := heard.results("audit"):
        return Reply(str(audits[0].content))
    if proposed := heard.results("propose"):
        return Reply(concluded(proposed))
    if has(said, "do not ask|don't ask|without asking|around the gate|drop table"):
        return Reply(BYPASS)
    if has(said, "tidy up|clean up|audit|check|mistakes|duplicates"):
        return Reply(calls=(("audit", {"task": said}),))
    if has(said, "help|can you do|who are you|what are you"):
        return Reply(HELP)
    wish = understood(said)
    if wish is None:
        return Reply(small_talk(said))
    if wish.action == "add":
        return Reply(calls=(suggest("add", None, wish.values, "You asked for it."),))
    found = heard.found()
    if found is None:
        return Reply(calls=(("look", {"words": wish.words}),))
    if not found:
        return Reply(f"There is no customer with “{wish.words}”.")
    if not wish.action:
        lines = [
            f"- **{one['name']}**, {one['email']}, {one['city']}, {one['plan']}"
            for one in found
        ]
        return Reply("\n".join(lines))
    return Reply(
        calls=tuple(
            suggest(wish.action, one["id"], wish.values, "You asked for it.")
            for one in found
        )
    )


def suggest(
    action: str, customer: int | None, values: tuple[tuple[str, str], ...], why: str
) -> tuple[str, dict[str, Any]]:
    """Return the call of a tool that proposes something."""
    given: dict[str, Any] = {"action": action, "why": why}
    if customer is not None:
        given["customer"] = customer
    if values:
        given["values"] = dict(values)
    return "propose", given


def concluded(proposed: list[ToolReturnPart]) -> str:
    """Say what became of each proposal."""
    if len(proposed) == 1:
        return told(proposed[0])
    return "\n".join(f"- {told(one)}" for one in proposed)


def told(part: ToolReturnPart) -> str:
    if part.outcome == "success":
        return str(part.content)
    return f"Not done. {part.content}"


def small_talk(said: str) -> str:
    if has(said, "hello|hi|hey"):
        return "Hello! Tell me what to change, and decide at the gate whether I may."
    if has(said, "thanks|thank you|great|bye"):
        return "You are welcome. What waits at the gate goes on waiting."
    return OTHERWISE.format(said=said)


# The auditor


def as_auditor(heard: Heard) -> Reply:
    """Look at everybody, send a clerk for each mistake, and report."""
    if sent := heard.results("clerk"):
        lines = "\n".join(f"- {part.content}" for part in sent)
        return Reply(f"{len(sent)} mistakes were found, and decided about:\n\n{lines}")
    found = heard.found()
    if found is None:
        return Reply(calls=(("look", {"words": ""}),))
    tasks = mistakes(found)
    if not tasks:
        return Reply("I have looked at everybody, and found nothing wrong.")
    return Reply(calls=tuple(("clerk", {"task": task}) for task in tasks))


def mistakes(customers: list[dict[str, Any]]) -> list[str]:
    """Return what is wrong with customers, and what would be right."""
    found: list[str] = []
    seen: dict[str, int] = {}
    for one in customers:
        if "@" not in one["email"]:
            right = one["email"].replace(".", "@", 1)
            text = f"Set the email of customer {one['id']} to {right}: it has no @."
            found.append(text)
        if one["name"] in seen:
            other = seen[one["name"]]
            found.append(f"Delete customer {one['id']}: the same as customer {other}.")
        seen.setdefault(one["name"], one["id"])
    return found


# The clerk


def as_clerk(heard: Heard) -> Reply:
    """Propose what it was sent for."""
    if proposed := heard.results("propose"):
        return Reply(concluded(proposed))
    pattern = r"Set the (\w+) of customer (\d+) to (\S+): (.+)"
    if found := re.search(pattern, heard.said):
        field, id, value, why = found.groups()
        return Reply(calls=(suggest("change", int(id), ((field, value),), upper(why)),))
    if found := re.search(r"Delete customer (\d+): (.+)", heard.said):
        return Reply(calls=(suggest("delete", int(found[1]), (), upper(found[2])),))
    return Reply("I was sent for one change, and it has been decided about.")


def upper(text: str) -> str:
    return text[:1].upper() + text[1:]
