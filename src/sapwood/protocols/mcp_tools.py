"""The tools that an MCP server offers: runs of agent classes, and exposed methods of roots."""

from __future__ import annotations

import inspect
import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import Any, TypeAlias, cast

import msgspec

from sapwood.address import kebab
from sapwood.agent import Agent
from sapwood.capabilities.exposed_methods import MethodCodec
from sapwood.chat.store.outputs import Output
from sapwood.chat.tools.agent_tools import AgentTool, agent_tool
from sapwood.errors import InvalidArguments, UsageError
from sapwood.kernel.marshal.agent_class import Method, known
from sapwood.kernel.marshal.copier import to_json
from sapwood.kernel.marshal.method_schemas import callable_methods, described, result_schema, schema_of

NAME = re.compile(r"[A-Za-z0-9_.-]{1,128}")
AGENT = "agent"
"""The argument of a tool that names the root whose method is called."""
TEXTS: tuple[dict[str, Any], ...] = ({"type": "string"}, {"type": "null"}, {})
"""The schemas of results that are told as text only."""
DEFINITION = "#/$defs/"
RESULT = "result"
"""The field of a structured result that holds a value that is no object."""


@dataclass(frozen=True)
class RunTool:
    """A tool whose every call is a run of an agent class."""

    tool: AgentTool

    @property
    def name(self) -> str:
        return self.tool.name

    @property
    def description(self) -> str | None:
        return self.tool.description

    @property
    def cls(self) -> type[Agent[Any]]:
        return self.tool.cls

    @cached_property
    def _method(self) -> Method | None:
        kind = known(self.cls)
        return kind.own("on_run") if kind.overrides("on_run") else None

    @cached_property
    def _parameter(self) -> Any:
        """The parameter of `on_run`; `None` if it has none."""
        return next(iter(() if self._method is None else self._method.signature.parameters), None)

    @cached_property
    def _own_schema(self) -> dict[str, Any]:
        """The schema of the value that `on_run` receives, with `$ref` at its top resolved."""
        if self._method is None or self._parameter is None:
            return {}
        return resolved(schema_of(self._method.signature.hints.get(self._parameter.name, Any)))

    @cached_property
    def _is_spread(self) -> bool:
        """Whether the arguments of the tool are the fields of the value that `on_run` receives."""
        return self._own_schema.get("type") == "object" and "properties" in self._own_schema

    @cached_property
    def input_schema(self) -> dict[str, Any]:
        if self.tool.input is not None or self._method is None:
            return _object(resolved(self.tool.schema()))
        if self._is_spread:
            return _object(self._own_schema)
        if self._parameter is None:
            raise UsageError(f"{self._method.full_name}() has no parameter. Write `async def on_run(self, input)`.")
        name, is_optional = self._parameter.name, self._parameter.default is not inspect.Parameter.empty
        inner = dict(self._own_schema)
        definitions = {"$defs": inner.pop("$defs")} if "$defs" in inner else {}
        required = [] if is_optional else [name]
        return {"type": "object", "properties": {name: inner}, "required": required, **definitions} | _CLOSED

    @cached_property
    def returned_schema(self) -> dict[str, Any] | None:
        if self.tool.output is not None:
            return resolved(_schema_of_output(self.tool.output))
        if self._method is None:
            output: Output | None = getattr(self.cls, "_output", None)
            schema = None if output is None else output.schema()
            return None if schema is None else resolved(schema)
        if self._method.streams or "return" not in self._method.signature.hints:
            return None
        returned = self._method.signature.returned
        return None if returned in (str, Any, None, type(None)) else resolved(result_schema(returned))

    def input(self, arguments: Mapping[str, Any]) -> Any:
        """Return what the run receives for these arguments. Raises `InvalidArguments` if they do not fit."""
        check_names(self.input_schema, arguments)
        if self.tool.input is not None or self._method is None:
            try:
                return self.tool.given(dict(arguments))
            except ValueError as error:
                raise InvalidArguments(f"The arguments do not fit: {error}") from None
        name, default = self._parameter.name, self._parameter.default
        if not self._is_spread and name not in arguments:
            if default is not inspect.Parameter.empty:
                return default
            raise InvalidArguments(f"The argument {name!r} is missing.")
        value = dict(arguments) if self._is_spread else arguments[name]
        return MethodCodec(self._method).arguments([msgspec.Raw(msgspec.json.encode(value))])[0]

    def output(self, output: Any, summary: str) -> Any:
        """Return the output of a completed run as JSON. Raises `ValueError` if it does not fit the declared type."""
        if self.tool.output is not None:
            adapter = _adapter(self.tool.output)
            return adapter.dump_python(adapter.validate_python(output), mode="json")
        return summary if output is None and self.returned_schema is None else msgspec.json.decode(to_json(output))


@dataclass(frozen=True)
class MethodTool:
    """A tool that calls an exposed method of a root, which the argument `agent` names."""

    cls: type[Agent[Any]]
    method: Method

    @property
    def name(self) -> str:
        return f"{kebab(known(self.cls).type).replace('-', '_')}_{self.method.name}"

    @cached_property
    def _described(self) -> Any:
        return described(self.method)

    @property
    def description(self) -> str | None:
        return self._described.doc

    @cached_property
    def input_schema(self) -> dict[str, Any]:
        own = self._described.parameters
        agent = {"type": "string", "description": f"The name of the {known(self.cls).type}."}
        return {**own, "properties": {AGENT: agent, **own["properties"]}, "required": [AGENT, *own["required"]]}

    @cached_property
    def returned_schema(self) -> dict[str, Any] | None:
        result: dict[str, Any] | None = self._described.result
        if self._described.streams:
            return {"type": "array", "items": result or {}}
        return None if result is None or result in TEXTS else resolved(result)

    def arguments(self, arguments: Mapping[str, Any]) -> list[Any]:
        """Return what the method receives for these arguments. Raises `InvalidArguments` if they do not fit."""
        check_names(self.input_schema, arguments)
        names = list[str](self._described.parameters["properties"])
        if missing := [name for name in self._described.parameters["required"] if name not in arguments]:
            raise InvalidArguments(f"The argument {missing[0]!r} is missing.")
        raw: list[msgspec.Raw] = []
        for place, name in enumerate(names):
            if name not in arguments:
                if later := [one for one in names[place:] if one in arguments]:
                    raise InvalidArguments(f"The argument {later[0]!r} needs {name!r} too.")
                break
            values: list[Any] = [arguments[name]]
            if self._described.variadic and place == len(names) - 1:
                values = arguments[name] if isinstance(arguments[name], list) else [arguments[name]]
            raw += [msgspec.Raw(msgspec.json.encode(value)) for value in values]
        return MethodCodec(self.method).arguments(raw)


Tool: TypeAlias = RunTool | MethodTool
_CLOSED: dict[str, Any] = {"additionalProperties": False}


class Catalog:
    """The tools of one server, by name."""

    def __init__(self, tools: Sequence[type[Agent[Any]] | AgentTool], methods: Sequence[type[Agent[Any]]]) -> None:
        self.methods = tuple(methods)
        found: list[Tool] = [RunTool(_as_tool(one)) for one in tools]
        for cls in methods:
            of_class = callable_methods(known(cls))
            if not of_class:
                raise UsageError(
                    f"{cls.__name__} exposes no methods. Decorate those that clients may call with @expose."
                )
            found += [MethodTool(cls, method) for method in of_class]
        self.tools: dict[str, Tool] = {}
        for tool in found:
            if not NAME.fullmatch(tool.name):
                raise UsageError(
                    f"The name of a tool must be 1 to 128 letters, digits, `_`, `-` or `.`, got {tool.name!r}."
                )
            if tool.name in self.tools:
                raise UsageError(f"Two tools are named {tool.name!r}. Write agent_tool(cls, name=…) for one of them.")
            self.tools[tool.name] = tool

    def check(self) -> None:
        """Refuse tools that cannot be called."""
        for tool in self.tools.values():
            _ = tool.input_schema, tool.returned_schema
            if isinstance(tool, MethodTool) and AGENT in tool.method.signature.hints:
                raise UsageError(
                    f"{tool.method.full_name}() has a parameter named {AGENT!r}, which names the root. Rename it."
                )


def _as_tool(tool: type[Agent[Any]] | AgentTool) -> AgentTool:
    if isinstance(tool, AgentTool):
        return tool
    if not (isinstance(cast(object, tool), type) and issubclass(cast("type", tool), Agent)):
        raise UsageError(f"Mcp(tools=…) must be a list of agent classes and agent_tool(…), got {tool!r}.")
    return agent_tool(tool)


def resolved(schema: dict[str, Any]) -> dict[str, Any]:
    """Return a schema whose top is no `$ref`: MCP wants to see that it is an object. Unused `$defs` are left out."""
    reference = schema.get("$ref", "")
    if not reference.startswith(DEFINITION) or len(schema.keys() - {"$ref", "$defs", "title", "description"}):
        return schema
    definitions: dict[str, Any] = schema["$defs"]
    top = {key: value for key, value in schema.items() if key not in ("$ref", "$defs")}
    top = {**definitions[reference.removeprefix(DEFINITION)], **top}
    used, found = set[str](), _references(top)
    while found - used:
        used |= found
        found = set[str]().union(*(_references(definitions.get(name)) for name in used))
    rest = {"$defs": {name: definitions[name] for name in definitions if name in used}} if used else {}
    return resolved({**top, **rest}) if "$ref" in top else {**top, **rest}


def _references(schema: Any) -> set[str]:
    """Return the names of the definitions that a schema refers to."""
    if isinstance(schema, list):
        return set[str]().union(*map(_references, cast("list[Any]", schema)))
    if not isinstance(schema, dict):
        return set()
    known = cast("dict[str, Any]", schema)
    own = {known["$ref"].removeprefix(DEFINITION)} if isinstance(known.get("$ref"), str) else set[str]()
    return own.union(*map(_references, known.values()))


def output_schema(tool: Tool) -> dict[str, Any] | None:
    """Return the schema of structured results: an object, which holds any other value as `result`."""
    schema = tool.returned_schema
    if schema is None or is_object(schema):
        return schema
    inner = dict(schema)
    definitions = {"$defs": inner.pop("$defs")} if "$defs" in inner else {}
    return {"type": "object", "properties": {RESULT: inner}, "required": [RESULT], **definitions}


def is_object(schema: Mapping[str, Any]) -> bool:
    return schema.get("type") == "object"


def check_names(schema: Mapping[str, Any], arguments: Mapping[str, Any]) -> None:
    """Refuse an argument, or a field in one, that a tool does not have: none is ignored."""
    if (found := _unknown_field(schema, schema, arguments)) is not None:
        name, properties = found
        raise InvalidArguments(f"There is no argument {name!r}. Expected: {', '.join(properties) or 'none'}.")


def _unknown_field(root: Mapping[str, Any], schema: Any, value: Any) -> tuple[str, list[str]] | None:
    """Return a field that a schema does not have, with those that it has; `None` if there is none.

    Choices, and objects with further fields, are left to the type itself.
    """
    if not isinstance(schema, Mapping):
        return None
    known = cast("Mapping[str, Any]", schema)
    if str(known.get("$ref", "")).startswith(DEFINITION):
        return _unknown_field(root, root["$defs"][known["$ref"].removeprefix(DEFINITION)], value)
    if isinstance(value, list) and "items" in known:
        inner = (_unknown_field(root, known["items"], one) for one in cast("list[Any]", value))
        return next((one for one in inner if one is not None), None)
    properties: Any = known.get("properties")
    if not isinstance(value, dict) or properties is None or known.get("additionalProperties", False) is not False:
        return None
    fields = cast("dict[str, Any]", value)
    if unknown := [name for name in fields if name not in properties]:
        return unknown[0], list(properties)
    inner = (_unknown_field(root, properties[name], one) for name, one in fields.items())
    return next((one for one in inner if one is not None), None)


def _object(schema: dict[str, Any]) -> dict[str, Any]:
    if not is_object(schema):
        raise UsageError(f"The arguments of a tool must be an object, got the schema {schema!r}.")
    return schema


def _schema_of_output(type_: Any) -> dict[str, Any]:
    return _adapter(type_).json_schema(mode="serialization")


def _adapter(type_: Any) -> Any:
    from pydantic import TypeAdapter

    return TypeAdapter(type_)
