"""What providers of models ask of a conversation: rules that OpenAI and Anthropic answer 400 for if they are broken.

Every tool call is returned exactly once, right after it and before anybody says anything
else; nothing returns that was not called; user and model take turns, the user first.
"""

from __future__ import annotations

import functools
from collections.abc import Sequence
from typing import Any

RETURNS = ("tool-return", "retry-prompt")


def broken(messages: Sequence[Any], *, is_asked: bool) -> list[str]:
    """Return which rules a conversation breaks; if the model `is_asked`, no tool call may be left open."""
    found: list[str] = []
    open_calls: set[str] = set()
    seen: set[str] = set()
    before = ""
    for message in messages:
        if not message.parts:
            found.append(f"a {message.kind} is empty")
        if message.kind == "response":
            if open_calls:
                found.append(f"the model spoke before {_names(open_calls)} returned")
            if before != "request":
                found.append("the model spoke twice in a row" if before else "the model spoke first")
            calls = [part.tool_call_id for part in message.parts if part.part_kind == "tool-call"]
            if len(set(calls)) < len(calls) or seen & set(calls):
                found.append(f"a tool call comes twice: {_names(calls)}")
            open_calls = set(calls)
            seen |= open_calls
        else:
            found += _broken_request(message, open_calls)
        before = message.kind
    if is_asked and (open_calls or before != "request"):
        found.append(f"the model was asked after a {before or 'nothing'}, while {_names(open_calls)} had not returned")
    return found


def _broken_request(message: Any, open_calls: set[str]) -> list[str]:
    """Return what is wrong with a request; take what returns in it out of the open calls."""
    found: list[str] = []
    spoke = False
    for part in message.parts:
        if part.part_kind in RETURNS and (part.part_kind == "tool-return" or part.tool_name):
            if part.tool_call_id not in open_calls:
                found.append(f"{part.tool_call_id} returned, and was not open: not called, or returned before")
            if spoke:
                found.append(f"{part.tool_call_id} returned after the user spoke")
            open_calls.discard(part.tool_call_id)
        elif part.part_kind == "user-prompt":
            spoke = True
            if open_calls:
                found.append(f"the user spoke before {_names(open_calls)} returned")
    return found


def _names(ids: Any) -> str:
    return ", ".join(sorted(ids)) or "nothing"


async def as_sent(messages: Sequence[Any]) -> list[str]:
    """Return which rules are broken by what the adapters of Pydantic AI would send to OpenAI and to Anthropic."""
    from pydantic_ai.models import ModelRequestParameters

    asked, (openai, anthropic) = ModelRequestParameters(), _adapters()
    to_openai: list[Any] = await openai._map_messages(messages, asked)
    _, to_anthropic = await anthropic._map_message(list(messages), asked, {})
    return [*_broken_openai(to_openai), *_broken_anthropic(to_anthropic)]


@functools.cache
def _adapters() -> tuple[Any, Any]:
    """Return the adapters: to make them takes longer than all that they are asked for."""
    from pydantic_ai.models.anthropic import AnthropicModel
    from pydantic_ai.models.openai import OpenAIChatModel
    from pydantic_ai.providers.anthropic import AnthropicProvider
    from pydantic_ai.providers.openai import OpenAIProvider

    openai = OpenAIChatModel("gpt-4o", provider=OpenAIProvider(api_key="none"))
    return openai, AnthropicModel("claude-sonnet-4-5", provider=AnthropicProvider(api_key="none"))


def _broken_openai(messages: Sequence[Any]) -> list[str]:
    found: list[str] = []
    open_calls: set[str] = set()
    for message in messages:
        if message["role"] == "tool":
            if message["tool_call_id"] not in open_calls:
                found.append(f"OpenAI is sent a result of {message['tool_call_id']}, which it does not wait for")
            open_calls.discard(message["tool_call_id"])
            continue
        if open_calls:
            found.append(f"OpenAI is sent something before the results of {_names(open_calls)}")
        open_calls = {call["id"] for call in message.get("tool_calls") or ()}
    return found


def _broken_anthropic(messages: Sequence[Any]) -> list[str]:
    found: list[str] = []
    open_calls: set[str] = set()
    for message in _merged(messages):
        blocks = message["content"]
        returned = [block["tool_use_id"] for block in blocks if block["type"] == "tool_result"]
        if message["role"] == "user":
            if set(returned) != open_calls or len(returned) != len(open_calls):
                found.append(f"Anthropic is sent {_names(returned)} as results of {_names(open_calls)}")
            if any(block["type"] != "tool_result" for block in blocks[: len(returned)]):
                found.append("Anthropic is sent something before results of tools")
            open_calls = set()
        else:
            open_calls = {block["id"] for block in blocks if block["type"] == "tool_use"}
        if not blocks:
            found.append("Anthropic is sent an empty message")
    if messages and messages[0]["role"] != "user":
        found.append("Anthropic is sent a conversation that the model began")
    return found


def _merged(messages: Sequence[Any]) -> list[dict[str, Any]]:
    """Put messages of one role in a row together, as Anthropic does."""
    found: list[dict[str, Any]] = []
    for message in messages:
        content = message["content"]
        blocks = [{"type": "text", "text": content}] if isinstance(content, str) else list(content)
        if found and found[-1]["role"] == message["role"]:
            found[-1]["content"] += blocks
        else:
            found.append({"role": message["role"], "content": blocks})
    return found
