"""Models that need no key and no network: they read notes, and say what is in them.

They are no language models. One plays a specialist, one the chair; each thinks aloud,
uses its tool as a real one would, and takes its time for each word.
"""

import asyncio
import json
import re
from collections.abc import AsyncIterator, Callable
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

import panel_notes


@dataclass(frozen=True)
class Heard:
    """A conversation, as a script wants to know it."""

    said: list[str]
    """Everything that was said to it."""
    answered: list[str]
    """Everything that it answered in earlier turns."""
    found: dict[str, str] | None
    """What it has found since somebody spoke last."""

    @classmethod
    def of(cls, messages: list[ModelMessage]) -> "Heard":
        said: list[str] = []
        answered: list[str] = []
        found: dict[str, str] | None = None
        for message in messages:
            if isinstance(message, ModelResponse):
                answered += [message.text] if message.text else []
            for part in message.parts if isinstance(message, ModelRequest) else ():
                if isinstance(part, UserPromptPart):
                    said.append(str(part.content))
                    found = None
                elif isinstance(part, ToolReturnPart) and part.outcome == "success":
                    found = json.loads(part.model_response_str())
        return cls(said, answered, found)

    def has(self, words: str) -> bool:
        """Return whether one of these words was said last."""
        return re.search(rf"\b({words})\b", self.said[-1], re.IGNORECASE) is not None


@dataclass(frozen=True)
class Reply:
    """What a model answers once: it thinks, speaks, and looks something up."""

    text: str = ""
    thought: str = ""
    looks_up: str | None = None


class Offline(FunctionModel):
    """Plays a part, `PAUSE` seconds per word."""

    def __init__(self, part: Callable[[Heard], Reply]) -> None:
        self._part = part
        super().__init__(stream_function=self._say, model_name="offline")

    async def _say(
        self, messages: list[ModelMessage], info: AgentInfo
    ) -> AsyncIterator[Any]:
        reply = self._part(Heard.of(messages))
        for word in re.findall(r"\S+\s*", reply.thought):
            await asyncio.sleep(panel_notes.PAUSE)
            yield {-1: DeltaThinkingPart(content=word)}
        for word in re.findall(r"\S+\s*", reply.text):
            await asyncio.sleep(panel_notes.PAUSE)
            yield word
        if reply.looks_up is not None:
            given = json.dumps({"question": reply.looks_up})
            id = f"call-{uuid4().hex[:8]}"
            yield {0: DeltaToolCall("look_up", given, tool_call_id=id)}


THOUGHTS = {
    "Engineer": "Can this be built, and who keeps it running when it is? Before I say \
anything I want to see what we tried the last time.",
    "Customer": "What would I get out of this?",
    "Accountant": "What does it cost, and when does it come back? My books will know.",
}


def as_specialist(who: str) -> Callable[[Heard], Reply]:
    """Return the part of a specialist: look it up, then say what is in the notes."""

    def part(heard: Heard) -> Reply:
        if len(heard.said) > 1:
            return as_specialist_again(who, heard)
        if heard.found is None:
            return Reply(thought=THOUGHTS[who], looks_up=heard.said[0])
        view = panel_notes.View(**heard.found)
        return Reply(
            f"**{view.verdict}** {view.because}\n\n- **Risk:** {view.risk}\n"
            f"- **What would change my mind:** if {view.unless}"
        )

    return part


def as_specialist_again(who: str, heard: Heard) -> Reply:
    """Answer whoever talks to a specialist afterwards."""
    question = heard.said[0].partition("\n")[0]
    if heard.found is not None:
        view = panel_notes.View(**heard.found)
        return Reply(f"**{view.verdict}** {view.because} But mind: {view.risk}")
    answer = heard.answered[0] if heard.answered else ""
    verdict, points = parts_of(answer)
    if verdict and heard.has("sure|certain|really|why"):
        return Reply(f"As sure as my notes make me. But mind: {points.get('Risk', '')}")
    if verdict and heard.has("risk|danger|wrong|worst"):
        return Reply(upper(points.get("Risk", "I see none.")))
    if verdict and heard.has("mind|convince|unless|otherwise"):
        return Reply(f"{upper(points.get('What would change my mind', ''))}")
    if heard.has("thanks|thank you|great|bye"):
        return Reply("With pleasure. I keep what I said in my notes.")
    if heard.has("hello|hi|hey|who are you|help"):
        return Reply(
            f"I am the {who}, and was asked: *{question}* Ask me whether I am sure, "
            "for the risk, for what would change my mind, or something else."
        )
    return Reply(thought="That is another question.", looks_up=heard.said[-1])


def as_chair(heard: Heard) -> Reply:
    """Sum up the minutes; later, say again what came of it."""
    if len(heard.said) > 1:
        return Reply("I have only summed up what was said. Ask those who said it.")
    _, *sections = re.split(r"(?m)^#{1,2} ", heard.said[0])[1:]
    said: dict[str, str] = {}
    for section in sections:
        who, _, answer = section.partition("\n")
        said[who] = answer
    missing = re.findall(r"(?m)^- (.+)$", said.pop("Not heard", ""))
    views = {who: parts_of(text) for who, text in said.items()}
    verdicts = [verdict for verdict, _ in views.values()]
    lines = [f"- {told(who, text)}" for who, text in said.items()]
    whole = len(said) + len(missing)
    text = [
        f"**{agreement(verdicts)}** {len(said)} of {whole} were heard.",
        "\n".join(lines),
        f"**Next:** {advice(views)}",
    ]
    if missing:
        absent = [one.rstrip(".").partition(": ") for one in missing]
        names = [f"the {who} ({lower(why)})" for who, _, why in absent]
        text.append(f"**Not heard:** {', '.join(names)}.")
    return Reply("\n\n".join(text))


def told(who: str, answer: str) -> str:
    """Return what somebody said, in one line."""
    verdict, _ = parts_of(answer)
    because = (
        answer.partition("\n\n-")[0].strip().removeprefix(f"**{verdict}**").strip()
    )
    return f"**{who}:** {verdict.lower().rstrip('.')}. {because}"


def agreement(verdicts: list[str]) -> str:
    """Return what somebody would say who was asked for the outcome at the door."""
    if len(verdicts) == 1:
        return f"The first answer is: {verdicts[0].lower()}"
    if len(set(verdicts)) == 1:
        return f"They agree: {verdicts[0].lower()}"
    if panel_notes.NO not in verdicts:
        return "Nobody is against it, and not everybody is sure."
    return "They do not agree."


def advice(views: dict[str, tuple[str, dict[str, str]]]) -> str:
    """Return what to do next: ask what would win over who doubts most."""
    order = [panel_notes.NO, panel_notes.DEPENDS, panel_notes.YES]
    who = min(views, key=lambda one: order.index(views[one][0]))
    verdict, points = views[who]
    if verdict == panel_notes.YES:
        return f"begin, and keep an eye on what the {who} fears: {points['Risk']}"
    unless = points["What would change my mind"]
    return f"ask whether the {who} could be won over, {unless}"


def parts_of(answer: str) -> tuple[str, dict[str, str]]:
    """Return the verdict of an answer, and the points of its list by their names."""
    verdict = re.match(r"\*\*(.+?)\*\*", answer.strip())
    points = re.findall(r"(?m)^- \*\*(.+?):\*\* (.+)$", answer)
    return (verdict[1] if verdict else "", dict(points))


def lower(text: str) -> str:
    return text[:1].lower() + text[1:]


def upper(text: str) -> str:
    return text[:1].upper() + text[1:]
