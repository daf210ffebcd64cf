"""Three scripted models that need no API key and no network.

They match a few words of the prompt, call the tools as a language model would, and
stream reasoning and text word by word.
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
    """One response of a model: reasoning, text and tool calls."""

    text: str = ""
    reasoning: str = ""
    calls: tuple[tuple[str, dict[str, Any]], ...] = ()


@dataclass(frozen=True)
class Conversation:
    """The part of a conversation that a script uses."""

    prompts: list[str]
    """All user messages."""
    answers: list[str]
    """The answers of earlier turns."""
    results: list[ToolReturnPart]
    """The tool results since the last user message."""

    @classmethod
    def of(cls, messages: list[ModelMessage]) -> "Conversation":
        prompts: list[str] = []
        answers: list[str] = []
        results: list[ToolReturnPart] = []
        for message in messages:
            if isinstance(message, ModelResponse):
                answers += [message.text] if message.text else []
            for part in message.parts if isinstance(message, ModelRequest) else ():
                if isinstance(part, UserPromptPart):
                    prompts.append(str(part.content))
                    results.clear()
                elif isinstance(part, ToolReturnPart):
                    results.append(part)
        return cls(prompts, answers, results)

    def has(self, words: str) -> bool:
        """Return whether the last prompt contains one of these words."""
        return re.search(rf"\b({words})\b", self.prompts[-1], re.IGNORECASE) is not None


class Offline(FunctionModel):
    """A model that streams the replies of a script, one word every `PAUSE` seconds."""

    def __init__(self, script: Callable[[Conversation], Reply]) -> None:
        self._script = script
        super().__init__(stream_function=self._stream, model_name="offline")

    async def _stream(
        self, messages: list[ModelMessage], info: AgentInfo
    ) -> AsyncIterator[Any]:
        reply = self._script(Conversation.of(messages))
        for word in words(reply.reasoning):
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

HELP = """I delegate work to helper agents. Try one of these:

- **Research the actor model**: a Researcher reasons, searches and reports.
- **Research Rust, Go and Python**: three Researchers in parallel.
- **Compare Rust and Go**: two Researchers in one call, side by side.
- **How do I add full-text search?** A Planner reads the code, and asks a Researcher.
- **Compare Rust and something that fails**: one of the two fails on purpose.

Open a helper with ↗ and ask it a question yourself: it remembers its task. Press \
*Stop* while they work, reload the page, or kill the server and start it again."""
OTHERWISE = """I am only a script, and I do not understand “{prompt}”. Say **help** to \
see what I can do. To talk to a real model, restart the server with its name:

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


def as_assistant(conversation: Conversation) -> Reply:
    """Choose the helpers, and draw a conclusion from their results."""
    if conversation.results:
        return Reply(conclusion(conversation.results))
    prompt = conversation.prompts[-1]
    pair = match_first(COMPARE, prompt)
    if pair and len(topics := split_list(", ".join(pair))) > 2:
        return Reply(calls=tuple(("research", {"query": topic}) for topic in topics))
    if pair:
        return Reply(calls=(("compare", {"a": pair[0], "b": pair[1]}),))
    if goal := match_first(PLAN, prompt):
        return Reply(calls=(("plan", {"goal": goal[0]}),))
    if query := match_first(RESEARCH, prompt):
        topics = split_list(query[0])
        return Reply(calls=tuple(("research", {"query": topic}) for topic in topics))
    return Reply(small_talk(conversation))


def conclusion(results: Sequence[ToolReturnPart]) -> str:
    """Return a short conclusion from the results of the helpers."""
    texts: list[str] = []
    for part in results:
        if part.outcome != "success":
            texts.append(f"The helper failed: {error_of(part.content)}")
        elif part.tool_name == "compare" and isinstance(part.content, dict):
            texts.append(comparison(part.content["a"], part.content["b"]))
        elif part.tool_name == "plan":
            steps = len(re.findall(r"(?m)^\d+\. ", str(part.content)))
            overview = section(str(part.content), "Overview")
            texts.append(
                f"{overview}\n\nThe plan above has {steps} steps. Open it \
with ↗ to ask the Planner about any of them."
            )
        else:
            points = labeled(str(part.content))
            topic, short = title(str(part.content)), points.get(Angle.ITSELF.label, "")
            texts.append(
                f"**{topic}.** {without_source(short)} But note: \
{lower(without_source(points.get(Angle.DRAWBACKS.label, '')))}"
            )
    return "\n\n".join(texts)


def comparison(a: dict[str, str], b: dict[str, str]) -> str:
    """Return both summaries side by side, or one and the reason why one is missing."""
    complete = [half for half in (a, b) if "summary" in half]
    if not complete:
        return f"Both Researchers failed. {a['error']}"
    if len(complete) == 1:
        (known,), missing = complete, b if complete[0] is a else a
        points = labeled(known["summary"]).items()
        lines = [f"- **{label}:** {without_source(point)}" for label, point in points]
        return (
            f"This is only half of a comparison: the Researcher for \
**{missing['query']}** failed. {missing['error']}\n\n\
The results for **{upper(known['query'])}**:\n\n"
            + "\n".join(lines)
        )
    paragraphs: list[str] = []
    for angle in Angle:
        lines = [
            f"- **{upper(half['query'])}:** {without_source(point)}"
            for half in complete
            if (point := labeled(half["summary"]).get(angle.label))
        ]
        if lines:
            paragraphs += [f"### {angle.label}", "\n".join(lines)]
    return "\n\n".join(paragraphs)


def small_talk(conversation: Conversation) -> str:
    if conversation.has("help|can you do|who are you|what are you"):
        return HELP
    if conversation.has("hello|hi|hey|good (morning|evening)"):
        hello = random.choice(("Hello!", "Good to see you!", "Welcome!"))
        return f"{hello} Give me a topic to research, to compare or to plan."
    if conversation.has("thanks|thank you|great|nice|bye"):
        return "You are welcome. My helpers stay here, even if you close the page."
    if conversation.has("how are you"):
        return "Well rested: my helpers do the work. What shall they find out?"
    if conversation.has(FAILS):
        raise Refused(
            "The script fails on request. Try again, or send another message."
        )
    return OTHERWISE.format(prompt=conversation.prompts[-1])


# The researcher


def as_researcher(conversation: Conversation) -> Reply:
    """Search from two or three angles, with reasoning, and write a summary."""
    query = conversation.prompts[-1]
    if len(conversation.prompts) > 1:
        return researcher_follow_up(conversation)
    pages = best_results(conversation.results)
    known = crew_sources.topic_of(query) is not None
    angles = list(Angle) if known else [Angle.ITSELF, Angle.DRAWBACKS]
    if len(pages) < len(angles):
        angle = angles[len(pages)]
        if pages and re.search(FAILS, query):
            raise Refused("The web search does not respond.")
        reasoning = REASONING[angle].format(query=query)
        return search(angle.query(query), reasoning=reasoning)
    lines = [
        f"- **{angle.label}:** {page['text']} *({page['title']})*"
        for angle, page in zip(angles, pages, strict=False)
    ]
    sources = "; ".join(f"{page['title']}, {page['url']}" for page in pages)
    reasoning = f"{len(pages)} sources, and they agree. Now I write the summary."
    text = "\n\n".join([f"### {upper(query)}", "\n".join(lines), f"Sources: {sources}"])
    return Reply(text, reasoning)


REASONING = {
    Angle.ITSELF: "My topic is “{query}”. First: what is it, in one line?",
    Angle.DRAWBACKS: "It sounds good, so what are the drawbacks?",
    Angle.PRACTICE: "So far this is theory. What do people who use it every day say?",
}


def researcher_follow_up(conversation: Conversation) -> Reply:
    """Answer a later question of the user about the topic."""
    topic, prompt = conversation.prompts[0], conversation.prompts[-1]
    summary = conversation.answers[0] if conversation.answers else ""
    points = labeled(summary)
    if conversation.results:
        (page, *_) = best_results(conversation.results)
        return Reply(
            f"On “{prompt.rstrip('?')}”: {page['text']}\n\n\
My topic is **{topic}**, and I found this in *{page['title']}*, {page['url']}."
        )
    if conversation.has(FAILS):
        raise Refused("The web search does not respond.")
    if conversation.has("thanks|thank you|great|bye"):
        return Reply(f"You are welcome. If you need more on **{topic}**, ask me.")
    if conversation.has("hello|hi|hey|who are you|help|can you do"):
        return Reply(
            f"I am the Researcher for **{topic}**. Ask me for my sources, for a \
shorter version, whether I am sure, or about related topics."
        )
    if conversation.has("source|sources|where|links?|read"):
        sources = summary.rpartition("Sources: ")[2] or "none yet"
        return Reply("\n".join(f"- {one}" for one in sources.split("; ")))
    if points and conversation.has(
        "short|shorter|brief|briefly|one sentence|tl;?dr|summary"
    ):
        return Reply(without_source(points[Angle.ITSELF.label]))
    if points and conversation.has("sure|certain|true|really|trust"):
        return Reply(
            f"As sure as {len(points)} sources can make me. I also looked for \
drawbacks: {lower(without_source(points.get(Angle.DRAWBACKS.label, '')))}"
        )
    return search(
        f"{prompt.rstrip('?!. ')} ({topic})",
        reasoning=f"The user asks: “{prompt}”. I search for it with my topic, {topic}.",
    )


def search(query: str, *, reasoning: str) -> Reply:
    return Reply(reasoning=reasoning, calls=(("web_search", {"query": query}),))


def best_results(results: Sequence[ToolReturnPart]) -> list[dict[str, str]]:
    """Return the best result of each search."""
    return [
        part.content[0]
        for part in results
        if part.tool_name == "web_search" and isinstance(part.content, list)
    ]


# The planner

MAIN_FILES = (
    ("src/page.js", r"page|button|dark|theme|show|display|live|push|websocket|sse"),
    (
        "src/app.py",
        r"sign|log ?in|auth|oauth|user|rate|limit|api|request|cache|caching",
    ),
    ("src/store.py", ""),
)
"""The file to change for a goal with one of these words."""
PLAN_TEMPLATE = """\
## Overview

**{title}:** one file changes, and its test. {advice}

## Affected files

- `{path}`: the change itself
- `tests/`: a test of the new behavior
- `README.md`: a sentence about it

## Step-by-step

1. Write a test that fails until this is done: {goal}.
2. Change `{path}` until the test passes, and nothing else.
3. Try it with the data of a real user.
4. Document it in `README.md`, and release.

## Open questions

{questions}"""


def as_planner(conversation: Conversation) -> Reply:
    """Read two files, research best practices, and write a plan."""
    goal = conversation.prompts[-1]
    if len(conversation.prompts) > 1:
        return planner_follow_up(conversation)
    path = next(path for path, words in MAIN_FILES if re.search(words, goal.lower()))
    if not conversation.results:
        return inspect("README.md", "First I read the current state.")
    if len(conversation.results) == 1:
        return inspect(path, f"Most of the change will be in {path}. I read it.")
    if len(conversation.results) == 2:
        reasoning = "I understand the code, but not how others do this. I ask."
        query = {"query": f"{goal}, as others do it"}
        return Reply(reasoning=reasoning, calls=(("research", query),))
    return Reply(plan(goal, path, conversation.results[2]))


def inspect(path: str, reasoning: str) -> Reply:
    return Reply(reasoning=reasoning, calls=(("inspect_file", {"path": path}),))


def plan(goal: str, path: str, research: ToolReturnPart) -> str:
    """Return the plan, with its four sections."""
    points = labeled(str(research.content)) if research.outcome == "success" else {}
    advice = points.get(Angle.PRACTICE.label, points.get(Angle.ITSELF.label, ""))
    drawback = without_source(points.get(Angle.DRAWBACKS.label, ""))
    open_questions = ["Must it work for existing items?"]
    if points:
        question = f"The Researcher warns: {lower(drawback)} Is that acceptable?"
    else:
        error = error_of(research.content)
        question = f"How do others do this? The research failed: {error}"
    open_questions.append(question)
    return PLAN_TEMPLATE.format(
        title=upper(goal),
        goal=goal,
        path=path,
        advice=without_source(advice) or "How others do it is not known yet.",
        questions="\n".join(f"- {one}" for one in open_questions),
    )


def planner_follow_up(conversation: Conversation) -> Reply:
    """Answer a later question of the user about the plan."""
    goal, plan = conversation.prompts[0], next(iter(conversation.answers), "")
    if conversation.results:
        part = conversation.results[-1]
        if part.tool_name == "inspect_file":
            return Reply(
                f"```\n{part.content}```\n\nFor **{goal}**, I would look here first."
            )
        return Reply(conclusion([part]))
    if conversation.has(FAILS):
        raise Refused(
            "The script fails on request. Try again, or send another message."
        )
    for path in crew_sources.REPOSITORY:
        if path.lower() in conversation.prompts[-1].lower():
            return inspect(path, f"The user wants to see {path}.")
    for words, heading in (
        ("files?|change|changes|touch", "Affected files"),
        ("questions?|unclear|risks?|open|unknown", "Open questions"),
        ("steps?|first|begin|start|how|next|long", "Step-by-step"),
        ("why|what|overview|short|goal", "Overview"),
    ):
        if plan and conversation.has(words):
            return Reply(section(plan, heading))
    if query := match_first(RESEARCH, conversation.prompts[-1]):
        return Reply(calls=(("research", {"query": query[0]}),))
    return Reply(
        f"I have a plan for **{goal}**. Ask me about its files, its steps or \
its open questions, name a file that I should read, or say *research …*."
    )


# Parsing prompts and Markdown


def match_first(patterns: Sequence[str], prompt: str) -> tuple[str, ...] | None:
    """Return the groups of the first pattern that matches, without filler words."""
    for pattern in patterns:
        if match := re.search(pattern, prompt, re.IGNORECASE | re.DOTALL):
            return tuple(clean(group) for group in match.groups())
    return None


def clean(text: str) -> str:
    text = re.sub(r"(?i)[,\s]*\b(please|for me)\b[.!?\s]*$", "", text.strip())
    return re.sub(r"\s+", " ", text).strip(" .!?,:")


def split_list(query: str) -> list[str]:
    """Return the topics in "Rust, Go and Python". Without a comma it is one topic."""
    if "," not in query:
        return [query]
    topics = [clean(one) for one in re.split(r",\s*(?:and\s+)?|\s+and\s+", query)]
    return [topic for topic in topics if topic][:4]


def labeled(text: str) -> dict[str, str]:
    """Return the bullets that start with a label, by label."""
    return dict(re.findall(r"(?m)^- \*\*([^*]+):\*\* (.+)$", text))


def title(text: str) -> str:
    match = re.search(r"(?m)^#+ (.+)$", text)
    return match[1] if match else "This"


def section(text: str, heading: str) -> str:
    match = re.search(rf"(?ms)^## {heading}\n+(.+?)(?=\n+## |\Z)", text)
    return match[1].strip() if match else text


def without_source(point: str) -> str:
    """Return a bullet without its source."""
    return re.sub(r" \*\([^)]*\)\*$", "", point)


def upper(sentence: str) -> str:
    return sentence[:1].upper() + sentence[1:]


def lower(sentence: str) -> str:
    return sentence[:1].lower() + sentence[1:]


def error_of(content: Any) -> str:
    """Return the error text in the result of a failed helper."""
    try:
        result = json.loads(content) if isinstance(content, str) else content
    except ValueError:
        return str(content)
    return str(result.get("error", result)) if isinstance(result, dict) else str(result)
