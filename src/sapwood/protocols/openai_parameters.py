"""Parameters of requests: each is used, or refused by its name. None is ignored."""

from __future__ import annotations

import hashlib
from collections.abc import Callable, Collection, Mapping
from typing import Any, NamedTuple, TypeVar, cast

import msgspec

from sapwood.protocols.openai_errors import ApiError, invalid, unsupported
from sapwood.wire.frames import read_json

Json = dict[str, Any]
T = TypeVar("T")

MAX_METADATA, MAX_KEY, MAX_VALUE = 16, 64, 512
"""How many pairs `metadata` may have, and how many characters their keys and values."""
HINTS = ("user", "safety_identifier", "prompt_cache_key")
"""Texts that the agent receives with the turn, in `Turn.body["openai"]`."""


class Number(NamedTuple):
    """A numeric parameter, and the setting of the model that it is."""

    setting: str
    low: float
    high: float
    is_whole: bool = False


LONG = 10**9
SAMPLING = {
    "temperature": Number("temperature", 0, 2),
    "top_p": Number("top_p", 0, 1),
}


def settings_of(body: Json, numbers: Mapping[str, Number]) -> Json:
    """Return the settings of the model that a request asks for."""
    found: Json = {}
    for name, number in numbers.items():
        value = body.get(name)
        if value is None:
            continue
        is_number = type(value) is int or (type(value) is float and not number.is_whole)
        if not is_number or not number.low <= value <= number.high:
            kind = "an integer" if number.is_whole else "a number"
            raise invalid(name, f"expected {kind} from {number.low:g} to {number.high:g}.")
        found[number.setting] = value
    if "parallel_tool_calls" in body:
        found["parallel_tool_calls"] = flag_of(body, "parallel_tool_calls")
    return found


def read_body(body: bytes) -> Json:
    """Return the body of a request, without the parameters that are `null`."""
    try:
        found = read_json(body, dict[str, Any])
    except msgspec.DecodeError as error:
        raise ApiError(f"The body must be a JSON object: {error}.", code="invalid_json") from None
    return {name: value for name, value in found.items() if value is not None}


def digest_of(body: Mapping[str, Any]) -> str:
    """Return the digest of a request."""
    return hashlib.sha256(msgspec.json.encode(body, order="sorted")).hexdigest()


def check_known(
    body: Json, used: Collection[str], neutral: Mapping[str, tuple[Any, ...]], refused: Mapping[str, str]
) -> None:
    """Refuse each parameter that is not used, unless its value says what is done anyway.

    `neutral` has these values, and `refused` why other parameters are not supported.
    """
    for name, value in body.items():
        if name in used:
            continue
        if name in neutral:
            if not any(type(one) is type(value) and one == value for one in neutral[name]):
                can = " or ".join(msgspec.json.encode(one).decode() for one in neutral[name])
                raise unsupported(name, f"Only {can} is supported. Leave it out.")
        elif name in refused:
            raise unsupported(name, refused[name])
        else:
            raise ApiError(f"Unknown parameter: `{name[:MAX_KEY]}`.", param=name[:MAX_KEY], code="unknown_parameter")


def one_of(body: Json, name: str, kind: type[T], what: str, default: T) -> T:
    """Return a parameter of a type, or its default."""
    value = body.get(name, default)
    if type(value) is not kind:
        raise invalid(name, f"expected {what}.")
    return value


def text_of(body: Json, name: str) -> str | None:
    """Return a text; `None` without one."""
    return one_of(body, name, str, "a string", "") or None


def flag_of(body: Json, name: str) -> bool:
    """Return a boolean parameter; `False` without one."""
    return one_of(body, name, bool, "true or false", False)


def model_of(body: Json) -> str:
    """Return the model that a request names."""
    model = text_of(body, "model")
    if model is None:
        raise ApiError("Missing required parameter: `model`.", param="model", code="missing_required_parameter")
    return model


def metadata_of(body: Json) -> dict[str, str]:
    """Return the metadata of a request."""
    found = one_of(body, "metadata", dict, "an object", {})
    items = cast("dict[str, Any]", found).items()
    if len(found) > MAX_METADATA or any(
        not isinstance(value, str) or len(value) > MAX_VALUE or len(key) > MAX_KEY for key, value in items
    ):
        raise invalid(
            "metadata",
            f"expected at most {MAX_METADATA} pairs of strings, with keys of at most {MAX_KEY} and values of at most "
            f"{MAX_VALUE} characters.",
        )
    return cast("dict[str, str]", found)


def hints_of(body: Json) -> Json:
    """Return what the agent receives with the turn, as `Turn.body["openai"]`."""
    hints: Json = {name: text for name in HINTS if (text := text_of(body, name)) is not None}
    if metadata := metadata_of(body):
        hints["metadata"] = metadata
    return hints


def tools_of(body: Json, read: Callable[[Json, str], Json]) -> list[Json]:
    """Return the tools that the client executes, in the form of the AI SDK."""
    found: list[Any] = one_of(body, "tools", list, "an array of tools", [])
    tools: list[Json] = []
    for at, one in enumerate(found):
        where = f"tools[{at}]"
        if not isinstance(one, dict):
            raise invalid(where, "expected an object.")
        tool = cast("Json", one)
        if tool.get("type") != "function":
            raise unsupported(where, "Only tools of the type `function` are supported.")
        tools.append(function_tool(read(tool, where), where))
    names = [tool["name"] for tool in tools]
    if twice := next((name for name in names if names.count(name) > 1), None):
        raise invalid("tools", f"the name {twice[:MAX_KEY]!r} comes twice.")
    return tools


def function_tool(tool: Json, where: str) -> Json:
    """Return one function of the client."""
    name, about, schema = tool.get("name"), tool.get("description"), tool.get("parameters")
    if not isinstance(name, str) or not name or len(name) > MAX_KEY:
        raise invalid(f"{where}.name", f"expected a name of at most {MAX_KEY} characters.")
    if not isinstance(about, str | None):
        raise invalid(f"{where}.description", "expected a string.")
    if not isinstance(schema, dict | None):
        raise invalid(f"{where}.parameters", "expected a JSON schema.")
    strict = tool.get("strict")
    if not isinstance(strict, bool | None):
        raise invalid(f"{where}.strict", "expected true or false.")
    if unknown := tool.keys() - {"type", "name", "description", "parameters", "strict"}:
        raise ApiError(f"Unknown parameter: `{where}.{min(unknown)}`.", param=where, code="unknown_parameter")
    found: Json = {"name": name, "description": about, "parameters": schema}
    return found if strict is None else {**found, "strict": strict}
