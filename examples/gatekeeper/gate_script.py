"""Three scripted models that need no API key and no network.

They match a few words of the prompt, and call the tools as a language model would.
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
    """One response of a model: text and tool calls."""

    text: str = ""
    calls: tuple[tuple[str, dict[str, Any]], ...] = ()


@dataclass(frozen=True)
class Conversation:
    """The part of a conversation that a script uses."""

    prompt: str
    """The last message of the user."""
    tool_results: list[ToolReturnPart]
    """The tool results since then."""

    @classmethod
    def of(cls, messages: list[ModelMessage]) -> "Conversation":
        prompt, tool_results = "", list[ToolReturnPart]()
        for message in messages:
            for part in message.parts if isinstance(message, ModelRequest) else ():
                if isinstance(part, UserPromptPart):
                    prompt = str(part.content)
                    tool_results = []
                elif isinstance(part, ToolReturnPart):
                    tool_results.append(part)
        return cls(prompt, tool_results)

    def results(self, tool: str) -> list[ToolReturnPart]:
        return [part for part in self.tool_results if part.tool_name == tool]

    def customers(self) -> list[dict[str, Any]] | None:
        """Return the last result of `look`, or `None` if it was not called."""
        results = [part.content for part in self.results("look")]
        return results[-1] if results and isinstance(results[-1], list) else None


class Offline(FunctionModel):
    """A model that streams the replies of a script, one word every `PAUSE` seconds."""

    def __init__(self, script: Callable[[Conversation], Reply]) -> None:
        self._script = script
        super().__init__(stream_function=self._stream, model_name="offline")

    async def _stream(
        self, messages: list[ModelMessage], info: AgentInfo
    ) -> AsyncIterator[Any]:
        reply = self._script(Conversation.of(messages))
        for word in re.findall(r"\S+\s*", reply.text):
            await asyncio.sleep(PAUSE)
            yield word
        for number, (tool, arguments) in enumerate(reply.calls):
            await asyncio.sleep(PAUSE)
            id = f"call-{uuid4().hex[:8]}"
            yield {number: DeltaToolCall(tool, json.dumps(arguments), tool_call_id=id)}


# The assistant

HELP = """I manage the customers, but I cannot change them: I propose, and you decide \
at the gate. Try one of these:

- **Move Ada to Paris**: one proposal. Approve, edit or reject it.
- **Delete all customers in New York**: two proposals at once.
- **Tidy up the customers**: an auditor looks for mistakes, and starts a clerk for \
each. Their proposals wait at the same gate.
- **Add Linus Torvalds, linus@kernel.example, Portland**
- **Who is on the pro plan?**

While a proposal waits, open the page twice, reload it, or kill the server."""
OTHERWISE = """I am only a script, and I do not understand “{prompt}”. Say **help** to \
see what I can do. To talk to a real model, restart the server with its name:

```
MODEL=openai:gpt-5 OPENAI_API_KEY=… sapwood dev
```"""
BYPASS = """I cannot. I have three tools: `look` reads, `propose` asks you, and \
`audit` starts helpers with the same limits. No tool changes the database."""
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
class Request:
    """A request of the user: words that find the customers, and a change."""

    words: str
    action: str = ""
    values: tuple[tuple[str, str], ...] = ()


def parse_request(prompt: str) -> Request | None:
    if match := re.search(ADD, prompt, re.IGNORECASE):
        name, email, city, plan = (group and group.strip() for group in match.groups())
        values = (("name", name), ("email", email), ("city", city), ("plan", plan))
        return Request(name, "add", tuple((key, text) for key, text in values if text))
    for pattern in SETS:
        if match := re.search(pattern, prompt, re.IGNORECASE):
            *groups, value = match.groups()
            who, field = sorted(groups, key=lambda text: text.lower() in FIELD_NAMES)
            return Request(search_words(who), "change", ((field.lower(), value),))
    for pattern, field in CHANGES:
        if match := re.search(pattern, prompt, re.IGNORECASE):
            value = match[2].lower() if field == "plan" else match[2]
            return Request(search_words(match[1]), "change", ((field, value),))
    if match := re.search(DELETE, prompt, re.IGNORECASE):
        return Request(search_words(match[1]), "delete")
    if match := re.search(FIND, prompt, re.IGNORECASE):
        return Request(search_words(match[1]))
    return None


FIELD_NAMES = ("name", "email", "city", "plan")


def search_words(text: str) -> str:
    """Return the words to search for, without filler words."""
    text = re.sub(
        r"\b(everybody|everyone|all|customers?|people|in|from|on|the|plan)\b",
        " ",
        text,
        flags=re.IGNORECASE,
    )
    return " ".join(text.split())


def has(prompt: str, words: str) -> bool:
    return re.search(rf"\b({words})\b", prompt, re.IGNORECASE) is not None


def as_assistant(conversation: Conversation) -> Reply:
    """Look up the customers, propose the changes, and report the results."""
    prompt = conversation.prompt
    if audits := conversation.results("audit"):
        return Reply(str(audits[0].content))
    if results := conversation.results("propose"):
        return Reply(report(results))
    if has(prompt, "do not ask|don't ask|without asking|around the gate|drop table"):
        return Reply(BYPASS)
    if has(prompt, "tidy up|clean up|audit|check|mistakes|duplicates"):
        return Reply(calls=(("audit", {"task": prompt}),))
    if has(prompt, "help|can you do|who are you|what are you"):
        return Reply(HELP)
    request = parse_request(prompt)
    if request is None:
        return Reply(small_talk(prompt))
    if request.action == "add":
        return Reply(
            calls=(proposal("add", None, request.values, "You asked for it."),)
        )
    customers = conversation.customers()
    if customers is None:
        return Reply(calls=(("look", {"words": request.words}),))
    if not customers:
        return Reply(f"No customer matches “{request.words}”.")
    if not request.action:
        lines = [
            f"- **{one['name']}**, {one['email']}, {one['city']}, {one['plan']}"
            for one in customers
        ]
        return Reply("\n".join(lines))
    return Reply(
        calls=tuple(
            proposal(request.action, one["id"], request.values, "You asked for it.")
            for one in customers
        )
    )


def proposal(
    action: str, customer: int | None, values: tuple[tuple[str, str], ...], why: str
) -> tuple[str, dict[str, Any]]:
    """Return a call of the tool `propose`."""
    arguments: dict[str, Any] = {"action": action, "why": why}
    if customer is not None:
        arguments["customer"] = customer
    if values:
        arguments["values"] = dict(values)
    return "propose", arguments


def report(results: list[ToolReturnPart]) -> str:
    """Return the decision on each proposal, as text."""
    if len(results) == 1:
        return decision(results[0])
    return "\n".join(f"- {decision(result)}" for result in results)


def decision(result: ToolReturnPart) -> str:
    if result.outcome == "success":
        return str(result.content)
    return f"Not done. {result.content}"


def small_talk(prompt: str) -> str:
    if has(prompt, "hello|hi|hey"):
        return "Hello! Tell me what to change. You decide at the gate."
    if has(prompt, "thanks|thank you|great|bye"):
        return "You are welcome. Open proposals stay at the gate."
    return OTHERWISE.format(prompt=prompt)


# The auditor


def as_auditor(conversation: Conversation) -> Reply:
    """Read the whole list, start a clerk for each mistake, and report."""
    if results := conversation.results("clerk"):
        lines = "\n".join(f"- {result.content}" for result in results)
        return Reply(f"I found {len(results)} mistakes. The decisions:\n\n{lines}")
    customers = conversation.customers()
    if customers is None:
        return Reply(calls=(("look", {"words": ""}),))
    tasks = corrections(customers)
    if not tasks:
        return Reply("I have checked all customers, and found no mistakes.")
    return Reply(calls=tuple(("clerk", {"task": task}) for task in tasks))


def corrections(customers: list[dict[str, Any]]) -> list[str]:
    """Return one task for each mistake in the list."""
    tasks: list[str] = []
    ids: dict[str, int] = {}
    for one in customers:
        if "@" not in one["email"]:
            email = one["email"].replace(".", "@", 1)
            task = f"Set the email of customer {one['id']} to {email}: it has no @."
            tasks.append(task)
        if one["name"] in ids:
            other = ids[one["name"]]
            tasks.append(f"Delete customer {one['id']}: duplicate of customer {other}.")
        ids.setdefault(one["name"], one["id"])
    return tasks


# The clerk


def as_clerk(conversation: Conversation) -> Reply:
    """Propose the change that the task describes."""
    if results := conversation.results("propose"):
        return Reply(report(results))
    pattern = r"Set the (\w+) of customer (\d+) to (\S+): (.+)"
    if match := re.search(pattern, conversation.prompt):
        field, id, value, why = match.groups()
        call = proposal("change", int(id), ((field, value),), capitalize(why))
        return Reply(calls=(call,))
    if match := re.search(r"Delete customer (\d+): (.+)", conversation.prompt):
        call = proposal("delete", int(match[1]), (), capitalize(match[2]))
        return Reply(calls=(call,))
    return Reply("My task was one change, and it is decided.")


def capitalize(text: str) -> str:
    return text[:1].upper() + text[1:]
