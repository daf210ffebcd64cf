"""The request for a chat completion: its parameters, and the history that clients send each time."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, cast

from sapwood.protocols.openai_create import OF_THE_CLASS, read_conversation
from sapwood.protocols.openai_errors import ApiError, invalid, unsupported
from sapwood.protocols.openai_history import ChatHistory
from sapwood.protocols.openai_ids import AgentId
from sapwood.protocols.openai_input import parts_of, text_in
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
    tools_of,
)

Json = dict[str, Any]

LENGTHS = {name: Number("max_tokens", 1, LONG, is_whole=True) for name in ("max_tokens", "max_completion_tokens")}
PENALTIES = {name: Number(name, -2, 2) for name in ("presence_penalty", "frequency_penalty")}
NUMBERS = {**SAMPLING, **LENGTHS, **PENALTIES, "seed": Number("seed", -LONG, LONG, is_whole=True)}
USED = frozenset(
    {"model", "messages", "stream", "stream_options", "conversation", "tools", "metadata", "response_format", "stop"}
    | {"parallel_tool_calls", *HINTS, *NUMBERS}
)
NEUTRAL: dict[str, tuple[Any, ...]] = {
    "n": (1,),
    "store": (True,),
    "tool_choice": ("auto",),
    "service_tier": ("auto", "default"),
    "logprobs": (False,),
    "top_logprobs": (0,),
    "logit_bias": ({},),
    "modalities": (["text"],),
}
REFUSED = dict.fromkeys(
    ("reasoning_effort", "verbosity", "moderation", "prompt_cache_options", "prompt_cache_retention"), OF_THE_CLASS
) | {
    "audio": "Only text is returned.",
    "functions": "Send `tools`.",
    "function_call": "Send `tools`.",
    "prediction": OF_THE_CLASS,
    "web_search_options": OF_THE_CLASS,
}


@dataclass(frozen=True, slots=True)
class ChatRequest:
    """A request for a chat completion."""

    model: str
    history: ChatHistory
    conversation: AgentId | None
    """The agent that the request names by `conversation`."""
    called: AgentId | None
    """The agent that has made the last tool call in the history."""
    tools: list[Json]
    hints: Json
    settings: Json
    format: Json
    streams: bool
    with_usage: bool
    digest: str
    repeated: Json

    @classmethod
    def read(cls, body: Json) -> ChatRequest:
        """Return a request; refuse it if a parameter is invalid or not supported."""
        check_known(body, USED, NEUTRAL, REFUSED)
        history = _read_messages(body.get("messages"))
        given = body.get("conversation")
        conversation = None if given is None else read_conversation(given)
        settings = settings_of(body, NUMBERS)
        if (stop := body.get("stop")) is not None:
            settings["stop_sequences"] = _stop(stop)
        format = one_of(body, "response_format", dict, "an object", {"type": "text"})
        return cls(
            model=model_of(body),
            history=history,
            conversation=conversation,
            called=history.called() if conversation is None else None,
            tools=tools_of(body, _function),
            hints=hints_of(body),
            settings=settings,
            format=format,
            streams=flag_of(body, "stream"),
            with_usage=_with_usage(body),
            digest=digest_of(body),
            repeated={"metadata": metadata_of(body)},
        )


def _read_messages(given: Any) -> ChatHistory:
    if not isinstance(given, list) or not given:
        raise invalid("messages", "expected an array with at least one message.")
    history, messages = ChatHistory(), cast("list[Any]", given)
    for at, one in enumerate(messages):
        where = f"messages[{at}]"
        if not isinstance(one, dict):
            raise invalid(where, "expected an object.")
        _read_message(history, cast("Json", one), where)
    last: Json = messages[-1]
    if last["role"] not in ("user", "tool"):
        raise invalid(f"messages[{len(messages) - 1}]", "the last message must be one of the user, or of a tool.")
    return history


def _read_message(history: ChatHistory, one: Json, where: str) -> None:
    content = one.get("content")
    match one.get("role"):
        case "system" | "developer":
            history.instructions.append(text_in(content, f"{where}.content"))
        case "user":
            history.answers.clear()
            history.said(parts_of(content, f"{where}.content"))
        case "assistant":
            history.answers.clear()
            if content:
                history.heard("assistant", text_in(content, f"{where}.content"))
            history.calls += _calls(one.get("tool_calls"), f"{where}.tool_calls")
        case "tool":
            id, text = one.get("tool_call_id"), text_in(content, f"{where}.content")
            if not isinstance(id, str):
                raise invalid(f"{where}.tool_call_id", "expected a string.")
            history.answers.append((id, text, where))
            history.calls.append(id)
            history.heard("tool", text)
        case _:
            raise unsupported(f"{where}.role", "Expected system, developer, user, assistant or tool.")


def _calls(given: Any, where: str) -> list[str]:
    """Return the ids of the tool calls of a message."""
    if given is None:
        return []
    calls = cast("list[Any]", given) if isinstance(given, list) else [given]
    ids: list[Any] = [cast("Json", one).get("id") if isinstance(one, dict) else None for one in calls]
    if not all(isinstance(id, str) for id in ids):
        raise invalid(where, "expected an array of tool calls, each with an `id`.")
    return ids


def _function(tool: Json, where: str) -> Json:
    function = tool.get("function")
    if not isinstance(function, dict):
        raise invalid(f"{where}.function", "expected an object.")
    return cast("Json", function)


def _stop(stop: Any) -> list[str]:
    found = [stop] if isinstance(stop, str) else stop
    if not isinstance(found, list) or not all(isinstance(one, str) for one in cast("list[Any]", found)):
        raise invalid("stop", "expected a text, or an array of texts.")
    return cast("list[str]", found)


def _with_usage(body: Json) -> bool:
    options = one_of(body, "stream_options", dict, "an object", {})
    given = {name: value for name, value in cast("Json", options).items() if value is not None}
    if given and body.get("stream") is not True:
        raise ApiError("`stream_options` needs stream=true.", param="stream_options", code="invalid_value")
    check_known(given, {"include_usage"}, {"include_obfuscation": (False,)}, {})
    return flag_of(given, "include_usage")
