"""Questions of agents as elicitations of MCP: a flat form, and the answer that a client sends back."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, cast

import msgspec

from sapwood.errors import InvalidArguments
from sapwood.protocols.mcp_tools import resolved
from sapwood.runs.tables.question import Answer, Question

APPROVED = "approved"
ANSWER = "answer"
PRIMITIVES = frozenset({"string", "number", "integer", "boolean"})
LIST_KEYWORDS = frozenset({"type", "title", "description", "items", "default", "minItems", "maxItems"})
"""What the schema of a field with several choices may say in MCP."""
FIELD_KEYWORDS = frozenset(
    {"type", "title", "description", "enum", "oneOf", "default", "format"}
    | {"minimum", "maximum", "minLength", "maxLength"}
)
"""What the schema of a field of a form may say in MCP."""
LONGEST = 500
"""Characters that a form shows of the arguments of a tool call."""


def elicitation(question: Question) -> dict[str, Any]:
    """Return the request that asks a question."""
    params = {"mode": "form", "message": message_of(question), "requestedSchema": form_of(question)}
    return {"method": "elicitation/create", "params": params}


def message_of(question: Question) -> str:
    """Return the text of a question, with the agents on the way to the one that asks."""
    way = " → ".join(step.type for step in question.path)
    if question.is_from_code:
        return f"{way}: {question.prompt}" if way else question.prompt
    arguments = msgspec.json.encode(question.arguments).decode()
    shown = arguments if len(arguments) <= LONGEST else f"{arguments[: LONGEST - 1]}…"
    return f"{way} wants to call {question.tool} with {shown}. Allow it?"


def form_of(question: Question) -> dict[str, Any]:
    """Return the schema of the answer, as MCP allows it: an object whose fields are simple values."""
    if not question.is_from_code:
        field: dict[str, Any] = {"type": "boolean", "title": "Allow", "description": "Whether the call may run."}
        return _form(APPROVED, field)
    if question.options is not None:
        return _form(ANSWER, {"type": "string", "enum": list(question.options)})
    if question.schema is None or question.kind == "text":
        return _form(ANSWER, {"type": "string"})
    schema = resolved(question.schema)
    if _is_flat(schema):
        return {key: value for key, value in schema.items() if key in ("type", "properties", "required")}
    if _is_field(schema):
        return _form(ANSWER, schema)
    text = msgspec.json.encode(question.schema).decode()
    return _form(ANSWER, {"type": "string", "title": "JSON", "description": f"JSON that fits this schema: {text}"})


def answer_to(question: Question, response: Any) -> Answer:
    """Return the answer in the response to an elicitation. Raises `InvalidArguments` if it is none."""
    if not isinstance(response, Mapping):
        raise InvalidArguments("The response to an elicitation must be an object with an `action`.")
    given = cast("Mapping[str, Any]", response)
    action, content = given.get("action"), given.get("content")
    if action in ("decline", "cancel"):
        return Answer("denied", "The user declined." if action == "decline" else "The user dismissed the question.")
    if action != "accept":
        raise InvalidArguments(f"`action` must be accept, decline or cancel, got {str(action)[:40]!r}.")
    if not isinstance(content, Mapping):
        raise InvalidArguments("A response with the action `accept` must have `content`, an object.")
    fields = cast("Mapping[str, Any]", content)
    if not question.is_from_code:
        if not isinstance(fields.get(APPROVED), bool):
            raise InvalidArguments(f"The field {APPROVED!r} must be true or false.")
        return Answer("approved", None) if fields[APPROVED] else Answer("denied", "The user declined.")
    value = _value(question, fields)
    if (problem := question.problem_of(value)) is not None:
        raise InvalidArguments(problem)
    return Answer("done", value)


def _value(question: Question, fields: Mapping[str, Any]) -> Any:
    schema = None if question.schema is None or question.kind != "form" else resolved(question.schema)
    if schema is not None and _is_flat(schema):
        return dict(fields)
    if ANSWER not in fields:
        raise InvalidArguments(f"The field {ANSWER!r} is missing.")
    value = fields[ANSWER]
    if schema is None or _is_field(schema):
        return value
    try:
        return msgspec.json.decode(value)
    except (msgspec.DecodeError, TypeError):
        raise InvalidArguments(f"The field {ANSWER!r} must be JSON that fits the schema of the question.") from None


def _form(name: str, field: Mapping[str, Any]) -> dict[str, Any]:
    return {"type": "object", "properties": {name: dict(field)}, "required": [name]}


def _is_flat(schema: Mapping[str, Any]) -> bool:
    properties = schema.get("properties")
    if schema.get("type") != "object" or not isinstance(properties, Mapping):
        return False
    return all(map(_is_field, cast("Mapping[str, Any]", properties).values()))


def _is_field(schema: Any) -> bool:
    """Return whether a form of MCP can have a field with this schema: a simple value, or a choice of several."""
    if not isinstance(schema, Mapping):
        return False
    found = cast("Mapping[str, Any]", schema)
    if found.get("type") == "array":
        return not found.keys() - LIST_KEYWORDS and _is_choice(found.get("items"))
    is_plain = "oneOf" not in found or _are_titled(found["oneOf"])
    return found.get("type") in PRIMITIVES and not found.keys() - FIELD_KEYWORDS and is_plain


def _is_choice(schema: Any) -> bool:
    if not isinstance(schema, Mapping):
        return False
    found = cast("Mapping[str, Any]", schema)
    is_named = found.get("type") == "string" and set(found) == {"type", "enum"}
    return is_named or (set(found) == {"anyOf"} and _are_titled(found["anyOf"]))


def _are_titled(choices: Any) -> bool:
    return isinstance(choices, list) and all(
        isinstance(one, Mapping) and set(cast("Mapping[str, Any]", one)) == {"const", "title"}
        for one in cast("list[Any]", choices)
    )
