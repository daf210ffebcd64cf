"""A turn without its secrets, and where they were."""

from __future__ import annotations

from dataclasses import replace
from typing import Any, cast

from sapwood.admin.content import REDACTED, Content
from sapwood.chat.store.turn_copies import CopiedCall, TurnCopy


class RedactedTurn:
    """Takes the secrets out of a turn."""

    def __init__(self, content: Content) -> None:
        self._content = content
        self.changed: list[str] = []
        """What is not as it was, as nouns."""

    def of(self, copy: TurnCopy) -> TurnCopy:
        """Return a turn without secrets."""
        tools = {call.id: call.tool for step in copy.steps for call in step.calls}
        before, asked = [self._message(one) for one in copy.before], [self._message(one) for one in copy.asked]
        steps = [
            replace(
                step,
                text=self._text(step.text, f"the answer of the model in step {step.number}"),
                calls=[self._call(call) for call in step.calls],
            )
            for step in copy.steps
        ]
        results = {
            id: result._replace(value=self.value("message", result.value, f"the result of {tools.get(id)} ({id})"))
            for id, result in copy.results.items()
        }
        text, noted = (
            self._text(copy.text),
            "" if not copy.steps or copy.output == copy.steps[-1].text else "the output",
        )
        output = self.value("message", copy.output, noted)
        return replace(copy, before=before, asked=asked, steps=steps, results=results, text=text, output=output)

    def value(self, kind: str, value: Any, what: str = "") -> Any:
        """Return a JSON value of the same type without secrets, and note what has changed, if it has a name."""
        new = self._content.value(kind, value)
        if type(new) is not type(value):  # the function of the app has left no JSON
            new = _blank(value)
        if what and new != value and what not in self.changed:
            self.changed.append(what)
        return new

    def _text(self, text: str, what: str = "") -> str:
        return self.value("message", text, what) if text else text

    def _call(self, call: CopiedCall) -> CopiedCall:
        what = f"the arguments of {call.tool} ({call.id})"
        return call._replace(arguments=self.value("arguments", call.arguments, what))

    def _message(self, message: dict[str, Any]) -> dict[str, Any]:
        new = self.value("message", message, f"the message {message['id']}")
        parts: Any = new.get("parts")
        if not isinstance(parts, list) or not all(_is_text(part) for part in cast("list[Any]", parts)):
            parts = [{"type": "text", "text": REDACTED}]
        return message | {"parts": parts}


def _is_text(part: Any) -> bool:
    if not isinstance(part, dict):
        return False
    fields = cast("dict[str, Any]", part)
    return fields.get("type") == "text" and isinstance(fields.get("text"), str)


def _blank(value: Any) -> Any:
    """Return a JSON value of the same form without its texts."""
    if isinstance(value, dict):
        return {name: _blank(one) for name, one in cast("dict[str, Any]", value).items()}
    if isinstance(value, list):
        return [_blank(one) for one in cast("list[Any]", value)]
    return REDACTED if isinstance(value, str) else value
