"""Three models that need no key and no network: they look for a few words, and answer.

They are no language models. Each plays one part of this example, uses the tools as a
real one would, thinks aloud, and takes its time for each word.
"""

import asyncio
import json
import random
import re
from collections.abc import AsyncIterator, Callable, Sequence
from dataclasses import dataclass
from typing import Any
from uuid import uuid4

from pydantic_ai.messages import (
    ModelMessage,
    ModelRequest,
    ModelResponse,
    ToolReturnPart,
    UserPromptPart,
)
from pydantic_ai.models.function import (
    AgentInfo,
    DeltaThinkingPart,
    DeltaToolCall,
    FunctionModel,
)
from sapwood import Refused

import crew_sources
from crew_sources import Angle


@dataclass(frozen=True)
class Reply:
    """What a model answers once: it thinks, speaks, and calls tools."""

    text: str = ""
    thought: str = ""
    calls: tuple[tuple[str, dict[str, Any]], ...] = ()


@dataclass(frozen=True)
class Heard:
    """A conversation, as a script wants to know it."""

    said: list[str]
    """Everything that the user said."""
    answered: list[str]
    """Everything that was answered in earlier turns."""
    returned: list[ToolReturnPart]
    """What tools returned since the user spoke last."""

    @classmethod
    def of(cls, messages: list[ModelMessage]) -> "Heard":
        said: list[str] = []
        answered: list[str] = []
        returned: list[ToolReturnPart] = []
        for message in messages:
            if isinstance(message, ModelResponse):
                answered += [message.text] if message.text else []
            for part in message.parts if isinstance(message, ModelRequest) else ():
                if isinstance(part, UserPromptPart):
                    said.append(str(part.content))
                    returned.clear()
                elif isinstance(part, ToolReturnPart):
                    returned.append(part)
        return cls(said, answered, returned)

    def has(self, words: str) -> bool:
        """Return whether one of these words was said last."""
        return re.search(rf"\b({words})\b", self.said[-1], re.IGNORECASE) is not None


class Offline(FunctionModel):
    """Plays a part, `PAUSE` seconds per word."""

    def __init__(self, part: Callable[[Heard], Reply]) -> None:
        self._part = part
        super().__init__(stream_function=self._say, model_name="offline")

    async def _say(
        self, messages: list[ModelMessage], info: AgentInfo
    ) -> AsyncIterator[Any]:
        reply = self._part(Heard.of(messages))
        for word in words(reply.thought):
            await asyncio.sleep(crew_sources.PAUSE)
            yield {-1: DeltaThinkingPart(content=word)}
        for word in words(reply.text):
            await asyncio.sleep(crew_sources.PAUSE)
            yield word
        for number, (tool, arguments) in enumerate(reply.calls):
            await asyncio.sleep(crew_sources.PAUSE)
            id = f"call-{uuid4().hex[:8]}"
            yield {number: DeltaToolCall(tool, json.dumps(arguments), tool_call_id=id)}


def words(text: str) -> list[str]:
    return re.findall(r"\S+\s*", text)


# The assistant

HELP = """I have helpers, and they are what you came to see. Try one of these:

- **Research the actor model**: a Researcher searches, thinks aloud, and reports.
- **Research Rust, Go and Python**: three of them, at once.
- **Compare Rust and Go**: two under one call, side by side.
- **How do I add full-text search?** A Planner reads the code, and asks a Researcher.
- **Compare Rust and something that fails**: one of two breaks down, on purpose.

Open a helper with ↗ and ask it something yourself: it remembers what it was sent for. \
Press *Stop* while they work, reload the page, or kill the server and start it again."""
OTHERWISE = """I am only a script, and “{said}” is more than I understand. Say \
**help** for what I can do. To talk to a real model, start me with its name:

```
MODEL=openai:gpt-5 OPENAI_API_KEY=… sapwood dev
```"""
FAILS = r"fails?|failing|breaks? down|crash(es)?"
COMPARE = (
    r"\b(?:compare|contrast)\s+(.+?)\s+(?:and|with|to|against|vs\.?|versus)\s+(.+)",
    r"\bdifference\s+between\s+(.+?)\s+and\s+(.+)",
    r"^(?:what about |and )?(.+?)\s+(?:vs\.?|versus|or)\s+(.+)",
)
PLAN = (
    r"^\s*(?:please\s+|can you\s+)?plan\s+(?:how to\s+|for\s+)?(.+)",
    r"\bhow\s+(?:do|can|could|should|would)\s+(?:i|we|one)\s+(.+)",
    r"^\s*(?:please\s+)?((?:implement|add|build)\s+.+)",
)
RESEARCH = (
    r"\b(?:research|investigate|look up|look into|search for|google)\s+(.+)",
    r"\bfind out\s+(?:more\s+)?(?:about\s+)?(.+)",
    r"\b(?:tell me|know|learn|explain|more)\s+(?:more\s+)?about\s+(.+)",
    r"^\s*(?:what|who)\s+(?:is|are|was|were)\s+(?!you\b|your\b|my\b)(.+)",
)


def as_assistant(heard: Heard) -> Reply:
    """Choose the helpers, and say what follows from what they found."""
    if heard.returned:
        return Reply(conclusion(heard.returned))
    said = heard.said[-1]
    two = matched(COMPARE, said)
    if two and len(things := several(", ".join(two))) > 2:
        return Reply(calls=tuple(("research", {"query": one}) for one in things))
    if two:
        return Reply(calls=(("compare", {"a": two[0], "b": two[1]}),))
    if goal := matched(PLAN, said):
        return Reply(calls=(("plan", {"goal": goal[0]}),))
    if query := matched(RESEARCH, said):
        things = several(query[0])
        return Reply(calls=tuple(("research", {"query": one}) for one in things))
    return Reply(small_talk(heard))


def conclusion(returned: Sequence[ToolReturnPart]) -> str:
    """Say what follows from what the helpers returned."""
    texts: list[str] = []
    for part in returned:
        if part.outcome != "success":
            texts.append(f"The helper did not get there: {trouble(part.content)}")
        elif part.tool_name == "compare" and isinstance(part.content, dict):
            texts.append(compared(part.content["a"], part.content["b"]))
        elif part.tool_name == "plan":
            steps = len(re.findall(r"(?m)^\d+\. ", str(part.content)))
            overview = section(str(part.content), "Overview")
            texts.append(
                f"{overview}\n\nThe plan above has {steps} steps. Open it \
with ↗ to ask the Planner about any of them."
            )
        else:
            points = labelled(str(part.content))
            about, short = title(str(part.content)), points.get(Angle.ITSELF.label, "")
            texts.append(
                f"**{about}.** {bare(short)} But mind: \
{lower(bare(points.get(Angle.DRAWBACKS.label, '')))}"
            )
    return "\n\n".join(texts)


def compared(a: dict[str, str], b: dict[str, str]) -> str:
    """Put two summaries side by side; if one is missing, say so."""
    good = [half for half in (a, b) if "summary" in half]
    if not good:
        return f"Neither of the two could be researched. {a['error']}"
    if len(good) == 1:
        (known,), missing = good, b if good[0] is a else a
        points = labelled(known["summary"]).items()
        lines = [f"- **{label}:** {bare(point)}" for label, point in points]
        return (
            f"This is only half of a comparison: I know nothing about \
**{missing['query']}**, because its Researcher failed. {missing['error']}\n\n\
What there is to say about **{upper(known['query'])}**:\n\n"
            + "\n".join(lines)
        )
    paragraphs: list[str] = []
    for angle in Angle:
        lines = [
            f"- **{upper(half['query'])}:** {bare(point)}"
            for half in good
            if (point := labelled(half["summary"]).get(angle.label))
        ]
        if lines:
            paragraphs += [f"### {angle.label}", "\n".join(lines)]
    return "\n\n".join(paragraphs)


def small_talk(heard: Heard) -> str:
    if heard.has("help|can you do|who are you|what are you"):
        return HELP
    if heard.has("hello|hi|hey|good (morning|evening)"):
        hello = random.choice(("Hello!", "Good to see you!", "Welcome!"))
        return f"{hello} Give me something to find out, to compare or to plan."
    if heard.has("thanks|thank you|great|nice|bye"):
        return "You are welcome. My helpers stay here, also if you close the page."
    if heard.has("how are you"):
        return "Well rested: others do the work here. What shall they find out?"
    if heard.has(FAILS):
        raise Refused("The script fails when it is told to. Try again, or go on.")
    return OTHERWISE.format(said=heard.said[-1])


# The researcher


def as_researcher(heard: Heard) -> Reply:
    """Search from two or three sides, thinking aloud, and write down what was found."""
    query = heard.said[-1]
    if len(heard.said) > 1:
        return as_researcher_again(heard)
    found = findings(heard.returned)
    known = crew_sources.topic_of(query) is not None
    angles = list(Angle) if known else [Angle.ITSELF, Angle.DRAWBACKS]
    if len(found) < len(angles):
        angle = angles[len(found)]
        if found and re.search(FAILS, query):
            raise Refused("The web did not answer any more.")
        return search(angle.query(query), thought=THOUGHTS[angle].format(query=query))
    lines = [
        f"- **{angle.label}:** {one['text']} *({one['title']})*"
        for angle, one in zip(angles, found, strict=False)
    ]
    sources = "; ".join(f"{one['title']}, {one['url']}" for one in found)
    thought = f"{len(found)} sources, and they do not contradict each other. I write."
    text = "\n\n".join([f"### {upper(query)}", "\n".join(lines), f"Sources: {sources}"])
    return Reply(text, thought)


THOUGHTS = {
    Angle.ITSELF: "I am to find out about “{query}”. First: what is it, in one line?",
    Angle.DRAWBACKS: "What sounds so good has drawbacks. Who names them?",
    Angle.PRACTICE: "Both are theory. What do people say who use it every day?",
}


def as_researcher_again(heard: Heard) -> Reply:
    """Answer whoever asks the researcher itself, knowing what it was sent for."""
    first, asked = heard.said[0], heard.said[-1]
    summary = heard.answered[0] if heard.answered else ""
    points = labelled(summary)
    if heard.returned:
        (one, *_) = findings(heard.returned)
        return Reply(
            f"Seen from “{asked.rstrip('?')}”: {one['text']}\n\n\
I was sent for **{first}**, and found this in *{one['title']}*, {one['url']}."
        )
    if heard.has(FAILS):
        raise Refused("The web did not answer any more.")
    if heard.has("thanks|thank you|great|bye"):
        return Reply(f"With pleasure. If you need more on **{first}**, I am here.")
    if heard.has("hello|hi|hey|who are you|help|can you do"):
        return Reply(
            f"I am the Researcher that was sent for **{first}**. Ask me for \
my sources, for a shorter version, whether I am sure, or about anything near it."
        )
    if heard.has("source|sources|where|links?|read"):
        sources = summary.rpartition("Sources: ")[2] or "none yet"
        return Reply("\n".join(f"- {one}" for one in sources.split("; ")))
    if points and heard.has("short|shorter|brief|briefly|one sentence|tl;?dr|summary"):
        return Reply(bare(points[Angle.ITSELF.label]))
    if points and heard.has("sure|certain|true|really|trust"):
        return Reply(
            f"As sure as {len(points)} sources can make me. I looked for what \
speaks against it, too: {lower(bare(points.get(Angle.DRAWBACKS.label, '')))}"
        )
    return search(
        f"{asked.rstrip('?!. ')} ({first})",
        thought=f"They ask: “{asked}”. I was sent for “{first}”, so one more search.",
    )


def search(query: str, *, thought: str) -> Reply:
    return Reply(thought=thought, calls=(("web_search", {"query": query}),))


def findings(returned: Sequence[ToolReturnPart]) -> list[dict[str, str]]:
    """Return the best result of each search."""
    return [
        part.content[0]
        for part in returned
        if part.tool_name == "web_search" and isinstance(part.content, list)
    ]


# The planner

MATTERS = (
    ("src/page.js", r"page|button|dark|theme|show|display|live|push|websocket|sse"),
    (
        "src/app.py",
        r"sign|log ?in|auth|oauth|user|rate|limit|api|request|cache|caching",
    ),
    ("src/store.py", ""),
)
"""Which file matters for a goal with one of these words."""
WRITTEN = """\
## Overview

**{title}:** one file changes, and its test. {advice}

## Affected files

- `{path}`: the change itself
- `tests/`: a test that shows it
- `README.md`: a sentence that tells of it

## Step-by-step

1. Write a test that fails as long as this is missing: {goal}.
2. Change `{path}` until it passes, and nothing else.
3. Try it with the data of a real user.
4. Say it in `README.md`, and release.

## Open questions

{questions}"""


def as_planner(heard: Heard) -> Reply:
    """Read two files, have somebody research the rest, and write a plan."""
    goal = heard.said[-1]
    if len(heard.said) > 1:
        return as_planner_again(heard)
    path = next(path for path, words in MATTERS if re.search(words, goal.lower()))
    if not heard.returned:
        return inspect("README.md", "I have to know what there is before I change it.")
    if len(heard.returned) == 1:
        return inspect(path, f"Most of this will happen in {path}. How does it look?")
    if len(heard.returned) == 2:
        thought = "The code I understand. How others do this, I do not know: I ask."
        query = {"query": f"{goal}, as others do it"}
        return Reply(thought=thought, calls=(("research", query),))
    return Reply(plan(goal, path, heard.returned[2]))


def inspect(path: str, thought: str) -> Reply:
    return Reply(thought=thought, calls=(("inspect_file", {"path": path}),))


def plan(goal: str, path: str, research: ToolReturnPart) -> str:
    """Write down the four sections."""
    points = labelled(str(research.content)) if research.outcome == "success" else {}
    advice = bare(points.get(Angle.PRACTICE.label, points.get(Angle.ITSELF.label, "")))
    doubt = bare(points.get(Angle.DRAWBACKS.label, ""))
    open_questions = ["Does it have to work for items that exist already?"]
    if points:
        open_questions.append(
            f"The Researcher warns: {lower(doubt)} Is that all right?"
        )
    else:
        failed = trouble(research.content)
        open_questions.append(f"How do others do this? The research failed: {failed}")
    return WRITTEN.format(
        title=upper(goal),
        goal=goal,
        path=path,
        advice=advice or "How others do it is not known yet.",
        questions="\n".join(f"- {one}" for one in open_questions),
    )


def as_planner_again(heard: Heard) -> Reply:
    """Answer whoever asks the planner itself, knowing its plan."""
    goal, written = heard.said[0], next(iter(heard.answered), "")
    if heard.returned:
        part = heard.returned[-1]
        if part.tool_name == "inspect_file":
            return Reply(
                f"```\n{part.content}```\n\nFor **{goal}**, that is where \
I would look first."
            )
        return Reply(conclusion([part]))
    if heard.has(FAILS):
        raise Refused("The script fails when it is told to. Try again, or go on.")
    for path in crew_sources.REPOSITORY:
        if path.lower() in heard.said[-1].lower():
            return inspect(path, f"They want to see {path}.")
    for words, heading in (
        ("files?|change|changes|touch", "Affected files"),
        ("questions?|unclear|risks?|open|unknown", "Open questions"),
        ("steps?|first|begin|start|how|next|long", "Step-by-step"),
        ("why|what|overview|short|goal", "Overview"),
    ):
        if written and heard.has(words):
            return Reply(section(written, heading))
    if query := matched(RESEARCH, heard.said[-1]):
        return Reply(calls=(("research", {"query": query[0]}),))
    return Reply(
        f"I have a plan for **{goal}**. Ask me about its files, its steps or \
its open questions, name a file for me to read, or say *research …*."
    )


# Words and pieces of Markdown


def matched(patterns: Sequence[str], said: str) -> tuple[str, ...] | None:
    """Return what the first pattern that fits leaves open, without politeness."""
    for pattern in patterns:
        if found := re.search(pattern, said, re.IGNORECASE | re.DOTALL):
            return tuple(clean(group) for group in found.groups())
    return None


def clean(text: str) -> str:
    text = re.sub(r"(?i)[,\s]*\b(please|for me)\b[.!?\s]*$", "", text.strip())
    return re.sub(r"\s+", " ", text).strip(" .!?,:")


def several(query: str) -> list[str]:
    """Return the things in "Rust, Go and Python"; without a comma it is one thing."""
    if "," not in query:
        return [query]
    found = [clean(one) for one in re.split(r",\s*(?:and\s+)?|\s+and\s+", query)]
    return [one for one in found if one][:4]


def labelled(text: str) -> dict[str, str]:
    """Return the bullets that begin with a label."""
    return dict(re.findall(r"(?m)^- \*\*([^*]+):\*\* (.+)$", text))


def title(text: str) -> str:
    found = re.search(r"(?m)^#+ (.+)$", text)
    return found[1] if found else "This"


def section(text: str, heading: str) -> str:
    found = re.search(rf"(?ms)^## {heading}\n+(.+?)(?=\n+## |\Z)", text)
    return found[1].strip() if found else text


def bare(point: str) -> str:
    """Return a bullet without its source."""
    return re.sub(r" \*\([^)]*\)\*$", "", point)


def upper(sentence: str) -> str:
    return sentence[:1].upper() + sentence[1:]


def lower(sentence: str) -> str:
    return sentence[:1].lower() + sentence[1:]


def trouble(content: Any) -> str:
    """Return what went wrong with a helper, out of what its caller was told."""
    try:
        told = json.loads(content) if isinstance(content, str) else content
    except ValueError:
        return str(content)
    return str(told.get("error", told)) if isinstance(told, dict) else str(told)
