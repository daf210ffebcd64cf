"""Scripted models that need no API key and no network.

One script plays the specialists, another the chair. They stream reasoning and text word
by word, and call the tool as a language model would.
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
class Conversation:
    """The part of a conversation that a script uses."""

    prompts: list[str]
    """All user messages."""
    answers: list[str]
    """The answers of earlier turns."""
    notes: dict[str, str] | None
    """The tool result since the last user message."""

    @classmethod
    def of(cls, messages: list[ModelMessage]) -> "Conversation":
        prompts: list[str] = []
        answers: list[str] = []
        notes: dict[str, str] | None = None
        for message in messages:
            if isinstance(message, ModelResponse):
                answers += [message.text] if message.text else []
            for part in message.parts if isinstance(message, ModelRequest) else ():
                if isinstance(part, UserPromptPart):
                    prompts.append(str(part.content))
                    notes = None
                elif isinstance(part, ToolReturnPart) and part.outcome == "success":
                    notes = json.loads(part.model_response_str())
        return cls(prompts, answers, notes)

    def has(self, words: str) -> bool:
        """Return whether the last prompt contains one of these words."""
        return re.search(rf"\b({words})\b", self.prompts[-1], re.IGNORECASE) is not None


@dataclass(frozen=True)
class Reply:
    """One response of a model: reasoning, text and a tool call."""

    text: str = ""
    reasoning: str = ""
    look_up: str | None = None
    """The question to look up, if any."""


class Offline(FunctionModel):
    """A model that streams the replies of a script, one word every `PAUSE` seconds."""

    def __init__(self, script: Callable[[Conversation], Reply]) -> None:
        self._script = script
        super().__init__(stream_function=self._stream, model_name="offline")

    async def _stream(
        self, messages: list[ModelMessage], info: AgentInfo
    ) -> AsyncIterator[Any]:
        reply = self._script(Conversation.of(messages))
        for word in re.findall(r"\S+\s*", reply.reasoning):
            await asyncio.sleep(panel_notes.PAUSE)
            yield {-1: DeltaThinkingPart(content=word)}
        for word in re.findall(r"\S+\s*", reply.text):
            await asyncio.sleep(panel_notes.PAUSE)
            yield word
        if reply.look_up is not None:
            arguments = json.dumps({"question": reply.look_up})
            id = f"call-{uuid4().hex[:8]}"
            yield {0: DeltaToolCall("look_up", arguments, tool_call_id=id)}


REASONING = {
    "Engineer": "Can we build this, and who maintains it afterwards? First I want to \
see what we tried last time.",
    "Customer": "What would I get out of this?",
    "Accountant": "What does it cost, and when does it pay off? I will check my books.",
}


def as_specialist(who: str) -> Callable[[Conversation], Reply]:
    """Return the script of a specialist: look up the question, then answer."""

    def script(conversation: Conversation) -> Reply:
        if len(conversation.prompts) > 1:
            return follow_up(who, conversation)
        if conversation.notes is None:
            return Reply(reasoning=REASONING[who], look_up=conversation.prompts[0])
        view = panel_notes.View(**conversation.notes)
        return Reply(
            f"**{view.verdict}** {view.because}\n\n- **Risk:** {view.risk}\n"
            f"- **What would change my mind:** if {view.unless}"
        )

    return script


def follow_up(who: str, conversation: Conversation) -> Reply:
    """Answer a later question of the user."""
    question = conversation.prompts[0].partition("\n")[0]
    if conversation.notes is not None:
        view = panel_notes.View(**conversation.notes)
        return Reply(f"**{view.verdict}** {view.because} But note: {view.risk}")
    answer = conversation.answers[0] if conversation.answers else ""
    verdict, points = parts_of(answer)
    if verdict and conversation.has("sure|certain|really|why"):
        return Reply(f"As sure as my notes make me. But note: {points.get('Risk', '')}")
    if verdict and conversation.has("risk|danger|wrong|worst"):
        return Reply(upper(points.get("Risk", "I see none.")))
    if verdict and conversation.has("mind|convince|unless|otherwise"):
        return Reply(f"{upper(points.get('What would change my mind', ''))}")
    if conversation.has("thanks|thank you|great|bye"):
        return Reply("You are welcome.")
    if conversation.has("hello|hi|hey|who are you|help"):
        return Reply(
            f"I am the {who}. The question was: *{question}* Ask me whether I am sure, "
            "about the risk, what would change my mind, or another question."
        )
    prompt = conversation.prompts[-1]
    return Reply(reasoning="That is another question.", look_up=prompt)


def as_chair(conversation: Conversation) -> Reply:
    """Sum up the answers. Refer later questions to the specialists."""
    if len(conversation.prompts) > 1:
        return Reply("I have only summed up the answers. Ask the specialists.")
    _, *sections = re.split(r"(?m)^#{1,2} ", conversation.prompts[0])[1:]
    answers: dict[str, str] = {}
    for section in sections:
        who, _, answer = section.partition("\n")
        answers[who] = answer
    missing = re.findall(r"(?m)^- (.+)$", answers.pop("Missing", ""))
    views = {who: parts_of(text) for who, text in answers.items()}
    verdicts = [verdict for verdict, _ in views.values()]
    lines = [f"- {one_line(who, text)}" for who, text in answers.items()]
    total = len(answers) + len(missing)
    text = [
        f"**{agreement(verdicts)}** {len(answers)} of {total} have answered.",
        "\n".join(lines),
        f"**Next:** {advice(views)}",
    ]
    if missing:
        reasons = [one.rstrip(".").partition(": ") for one in missing]
        names = [f"the {who} ({lower(why)})" for who, _, why in reasons]
        text.append(f"**Missing:** {', '.join(names)}.")
    return Reply("\n\n".join(text))


def one_line(who: str, answer: str) -> str:
    """Return the answer of a specialist on one line."""
    verdict, _ = parts_of(answer)
    because = (
        answer.partition("\n\n-")[0].strip().removeprefix(f"**{verdict}**").strip()
    )
    return f"**{who}:** {verdict.lower().rstrip('.')}. {because}"


def agreement(verdicts: list[str]) -> str:
    """Return a sentence on whether the specialists agree."""
    if len(verdicts) == 1:
        return f"The first answer is: {verdicts[0].lower()}"
    if len(set(verdicts)) == 1:
        return f"They agree: {verdicts[0].lower()}"
    if panel_notes.NO not in verdicts:
        return "No one is against it, but not everyone is sure."
    return "They disagree."


def advice(views: dict[str, tuple[str, dict[str, str]]]) -> str:
    """Return the next step: address the strongest doubt."""
    order = [panel_notes.NO, panel_notes.DEPENDS, panel_notes.YES]
    who = min(views, key=lambda one: order.index(views[one][0]))
    verdict, points = views[who]
    if verdict == panel_notes.YES:
        return f"start, and watch the risk that the {who} names: {points['Risk']}"
    unless = points["What would change my mind"]
    return f"find out what would convince the {who}: {unless}"


def parts_of(answer: str) -> tuple[str, dict[str, str]]:
    """Return the verdict of an answer, and the items of its list by name."""
    verdict = re.match(r"\*\*(.+?)\*\*", answer.strip())
    points = re.findall(r"(?m)^- \*\*(.+?):\*\* (.+)$", answer)
    return (verdict[1] if verdict else "", dict(points))


def lower(text: str) -> str:
    return text[:1].lower() + text[1:]


def upper(text: str) -> str:
    return text[:1].upper() + text[1:]
