"""The request that creates a response: its parameters, checked."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, cast

from sapwood.address import checked_name
from sapwood.errors import InvalidName
from sapwood.protocols.openai_errors import ApiError, invalid, unsupported
from sapwood.protocols.openai_ids import CONVERSATION, AgentId, read_conversation_id, read_response_id
from sapwood.protocols.openai_input import KEPT, Input, read_input
from sapwood.protocols.openai_parameters import (
    HINTS,
    LONG,
    SAMPLING,
    Number,
    check_known,
    digest_of,
    flag_of,
    hints_of,
    metadata_of,
    model_of,
    one_of,
    settings_of,
    text_of,
    tools_of,
)

Json = dict[str, Any]

OF_THE_CLASS = "It belongs to the class of the model on the server."
NUMBERS = {**SAMPLING, "max_output_tokens": Number("max_tokens", 1, LONG, is_whole=True)}
USED = frozenset(
    {"model", "input", "stream", "background", "conversation", "previous_response_id", "tools", "metadata", "text"}
    | {"instructions", "parallel_tool_calls", *HINTS, *NUMBERS}
)
NEUTRAL: dict[str, tuple[Any, ...]] = {
    "store": (True,),
    "truncation": ("disabled",),
    "tool_choice": ("auto",),
    "service_tier": ("auto", "default"),
    "top_logprobs": (0,),
    "include": ([],),
    "stream_options": ({"include_obfuscation": False}, {}),
}
"""Parameters that may only say what is done anyway."""
REFUSED = {
    "max_tool_calls": OF_THE_CLASS,
    "reasoning": OF_THE_CLASS,
    "prompt": "Prompts are not stored on this server.",
    "context_management": OF_THE_CLASS,
    "moderation": OF_THE_CLASS,
    "prompt_cache_options": OF_THE_CLASS,
    "prompt_cache_retention": OF_THE_CLASS,
}
"""Why the other parameters of the API are not supported."""


@dataclass(frozen=True, slots=True)
class CreateRequest:
    """A request for a response."""

    model: str
    input: Input
    tools: list[Json]
    conversation: AgentId | None
    """The agent that `conversation` names. Its type is empty if that is a plain name."""
    previous: AgentId | None
    """The response that `previous_response_id` names."""
    previous_id: str | None
    called: AgentId | None
    """The response that has made the last tool call in the input, if neither of the two is given."""
    format: Json
    """`text.format`."""
    streams: bool
    in_background: bool
    hints: Json
    settings: Json
    """The settings of the model."""
    instructions: str | None
    digest: str
    repeated: Json
    """What the response repeats of the request."""

    @classmethod
    def read(cls, body: Json) -> CreateRequest:
        """Return a request; refuse it if a parameter is invalid or not supported."""
        check_known(body, USED, NEUTRAL, REFUSED)
        previous_id, conversation = text_of(body, "previous_response_id"), body.get("conversation")
        if previous_id is not None and conversation is not None:
            raise invalid("conversation", "expected either `conversation` or `previous_response_id`, got both.")
        found = None if conversation is None else read_conversation(conversation)
        previous = None if previous_id is None else read_previous(previous_id)
        if "input" not in body:
            raise ApiError("Missing required parameter: `input`.", param="input", code="missing_required_parameter")
        given = read_input(body["input"])
        is_placed = found is not None or previous is not None
        if is_placed and given.history.has_earlier:
            raise unsupported("input", KEPT)
        called = None if is_placed else given.history.called()
        if given.answers and not is_placed and called is None:
            raise invalid("input", "answers to tool calls need the `previous_response_id` of the response that asked.")
        tools = tools_of(body, lambda tool, _: tool)
        settings = settings_of(body, NUMBERS)
        instructions = "\n\n".join(filter(None, [text_of(body, "instructions"), *given.instructions])) or None
        format = _format(body)
        repeated: Json = {
            "tools": body.get("tools", []),
            "metadata": metadata_of(body),
            "background": flag_of(body, "background"),
            "text": {"format": format},
            "instructions": text_of(body, "instructions"),
            **{name: body[name] for name in (*HINTS, *NUMBERS, "parallel_tool_calls") if name in body},
        }
        return cls(
            model=model_of(body),
            input=given,
            tools=tools,
            conversation=found,
            previous=previous,
            previous_id=previous_id,
            called=called,
            format=format,
            streams=flag_of(body, "stream"),
            in_background=repeated["background"],
            hints=hints_of(body),
            settings=settings,
            instructions=instructions,
            digest=digest_of(body),
            repeated=repeated,
        )


def read_conversation(given: Any) -> AgentId:
    """Return the agent of a conversation: by an id that this server has made, or by its name."""
    id: Any = cast("Json", given).get("id") if isinstance(given, dict) else given
    if not isinstance(id, str) or not id:
        raise invalid("conversation", "expected an id, or an object with an `id`.")
    if not id.startswith(CONVERSATION):
        try:
            return AgentId("", checked_name(id))
        except InvalidName as error:
            raise invalid("conversation", str(error)) from None
    found = read_conversation_id(id)
    if found is None:
        raise no_conversation(id)
    return found


def read_previous(id: str) -> AgentId:
    """Return the agent and the response that `previous_response_id` names."""
    found = read_response_id(id)
    if found is None:
        raise no_previous(id)
    return found


def no_conversation(id: str) -> ApiError:
    """Return the refusal of an unknown conversation."""
    return ApiError(f"Conversation with id '{id[:80]}' not found.", param="conversation", status=404)


def no_previous(id: str) -> ApiError:
    """Return the refusal of an unknown response to continue from."""
    text = f"Previous response with id '{id[:80]}' not found."
    return ApiError(text, param="previous_response_id", code="previous_response_not_found")


def no_response(id: str) -> ApiError:
    """Return the refusal of an unknown response."""
    return ApiError(f"Response with id '{id[:80]}' not found.", param="id", status=404)


def _format(body: Json) -> Json:
    given = one_of(body, "text", dict, "an object", {})
    text = cast("Json", given)
    format: Any = text.get("format") or {"type": "text"}
    if unknown := {name for name, value in text.items() if value is not None} - {"format"}:
        raise invalid("text", f"`{min(unknown)}` is not supported. Leave it out.")
    kinds = ("text", "json_object", "json_schema")
    if not isinstance(format, dict) or cast("Json", format).get("type") not in kinds:
        raise invalid("text.format", "expected an object whose `type` is text, json_object or json_schema.")
    return cast("Json", format)
