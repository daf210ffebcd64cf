"""The list of exposed methods: what clients may call, with schemas, and nothing else."""

from __future__ import annotations

import json
from collections.abc import AsyncIterator
from dataclasses import dataclass
from typing import Any, Literal

import msgspec
import pytest
from pydantic import BaseModel, Field
from starlette.requests import Request
from starlette.responses import PlainTextResponse, Response
from tests.conformance.served import Served, served

from sapwood import Agent, App, expose
from sapwood.auth import User
from sapwood.kernel.marshal import method_schemas
from sapwood.kernel.marshal.agent_class import known
from sapwood.types import PathSegment

SECRET = "s3cret-value"


@dataclass(frozen=True)
class Place:
    street: str
    key: str = SECRET
    default: int = 7


class Other:
    @dataclass(frozen=True)
    class Place:
        city: str


class Size(BaseModel):
    width: int = 3


class Parcel(BaseModel):
    """Something to send."""

    weight: float = Field(alias="w")
    note: str = SECRET
    size: Size = Size()


class Unknown:
    """No JSON can be read as this."""


class Sender(Agent):
    @expose
    async def ping(self) -> None:
        """Answer.

        Nothing else.
        """

    async def hidden(self, secret: Unknown) -> Unknown:
        """Not for clients."""
        return secret

    @expose
    async def overridden(self) -> int:
        return 1


class Shop(Sender):
    @expose
    async def add(self, points: int, kind: Literal["a", "b"] = "a", token: str = SECRET, *, more: int = 1) -> int:
        """Add points."""
        return points

    @expose
    async def send(self, parcel: Parcel, to: Place | None = None) -> list[Parcel]:
        return [parcel]

    @expose
    async def compare(self, one: Place, other: Other.Place) -> None: ...

    @expose
    async def sum(self, first: int, *others: int) -> float:
        return 0.0

    @expose
    async def count(self, to: int) -> AsyncIterator[Place]:
        yield Place("x")

    @expose
    async def untyped(self, one, two=SECRET):  # type: ignore[no-untyped-def]
        return one

    @expose
    async def odd(self, one: Unknown, more: dict[str, object]) -> object:
        return one

    @expose
    async def by_name(self, *, needed: int) -> None:
        """No client can call this."""

    async def overridden(self) -> int:
        return 2

    async def grow(self, *names: str) -> None:
        first, *below = names
        child = await self.sub_agent(Shop, first)
        if below:
            await child.grow(*below)


async def listed(one: Served, path: str, **headers: str) -> dict[str, Any]:
    answer = await one.site.http(f"{path}/methods", headers=headers)
    assert (answer.status, answer.headers["content-type"]) == (200, "application/json"), answer
    return {method["name"]: method for method in json.loads(answer.body)["methods"]}


@pytest.mark.promise("CF-143")
@pytest.mark.parametrize("path", ["/agents/shop/s", "/agents/shop/s/sub/shop/a/sub/shop/b/sub/shop/c"])
async def test_the_exposed_methods_are_listed_with_their_schemas(path: str) -> None:
    async with served(App(agents=[Shop])) as one:
        await (await one.world.get_agent(Shop, "s")).grow("a", "b", "c")
        methods = await listed(one, path)

    assert sorted(methods) == ["add", "compare", "count", "odd", "ping", "send", "sum", "untyped"]
    nothing = {"type": "object", "properties": {}, "required": [], "additionalProperties": False}
    assert methods["ping"] == {
        "name": "ping",
        "doc": "Answer.\n\nNothing else.",
        "parameters": nothing,
        "variadic": False,
        "streams": False,
        "result": {"type": "null"},
    }
    assert methods["add"]["doc"] == "Add points."
    assert list(methods["add"]["parameters"]["properties"].items()) == [
        ("points", {"type": "integer"}),
        ("kind", {"enum": ["a", "b"]}),
        ("token", {"type": "string"}),
    ]
    assert methods["add"]["parameters"]["required"] == ["points"]
    assert (methods["sum"]["variadic"], methods["sum"]["result"]) == (True, {"type": "number"})
    assert methods["sum"]["parameters"]["properties"]["others"] == {"type": "array", "items": {"type": "integer"}}
    assert methods["sum"]["parameters"]["required"] == ["first"]
    assert (methods["count"]["streams"], methods["count"]["result"]["$ref"]) == (True, "#/$defs/Place")
    assert methods["untyped"]["parameters"]["properties"] == {"one": {}, "two": {}}
    assert (methods["untyped"]["doc"], methods["untyped"]["result"]) == (None, None)
    assert methods["odd"]["parameters"]["properties"]["more"] == {"type": "object"}
    assert methods["odd"]["result"] == {}


@pytest.mark.promise("CF-143")
async def test_schemas_are_complete_and_hold_no_defaults() -> None:
    text = method_schemas.method_list(known(Shop)).decode()
    methods = {method["name"]: method for method in json.loads(text)["methods"]}
    parameters, result = methods["send"]["parameters"], methods["send"]["result"]

    assert SECRET not in text
    assert "hidden" not in text
    assert "by_name" not in text
    assert parameters["$defs"]["Place"]["properties"]["default"] == {"type": "integer"}
    assert parameters["$defs"]["Place"]["required"] == ["street"]
    assert list(parameters["properties"]["parcel"]["properties"]) == ["w", "note", "size"]
    assert list(result["items"]["properties"]) == ["weight", "note", "size"], "results have the names of fields"
    for schema in (parameters, result):
        for name in references(schema):
            assert name in schema["$defs"]
    assert references(result)
    compared = methods["compare"]["parameters"]
    fields = [list(compared["$defs"][name]["properties"]) for name in references(compared["properties"])]
    assert fields == [["street", "key", "default"], ["city"]], "two classes of the same name"


def references(schema: Any) -> list[str]:
    """Return the names that a schema refers to."""
    if isinstance(schema, list):
        return [name for one in schema for name in references(one)]
    if not isinstance(schema, dict):
        return []
    own = [schema["$ref"].removeprefix("#/$defs/")] if "$ref" in schema else []
    return own + [name for one in schema.values() for name in references(one)]


async def test_the_list_is_computed_once_per_class(monkeypatch: pytest.MonkeyPatch) -> None:
    class Once(Sender):
        pass

    described: list[str] = []
    schema_components = msgspec.json.schema_components

    def counted(types: Any, **options: Any) -> Any:
        described.append(str(types))
        return schema_components(types, **options)

    monkeypatch.setattr(msgspec.json, "schema_components", counted)
    async with served(App(agents=[Once])) as one:
        await listed(one, "/agents/once/a")
        first = len(described)
        await listed(one, "/agents/once/b")
        await listed(one, "/agents/once/a")

    assert 0 < first == len(described)


class Guarded(Agent):
    @expose
    async def ping(self) -> None: ...

    async def open(self) -> None:
        await self.sub_agent(Guarded, "child")

    async def on_before_sub_agent(self, request: Any, child: PathSegment) -> Response | None:
        return self._refusal(request, "sub")

    async def on_before_request(self, request: Request) -> Response | None:
        return self._refusal(request, "request")

    async def on_before_watch(self, request: Request) -> Response | None:
        return self._refusal(request, "watch")

    def _refusal(self, request: Any, gate: str) -> Response | None:
        name = f"{gate}-{'root' if self.name == 'g' else 'child'}"
        return PlainTextResponse(name, 403) if request.headers.get("shut") == name else None

    async def on_request(self, request: Request) -> Response:
        return PlainTextResponse("mine")


async def test_the_list_passes_the_gates_of_every_built_in_url() -> None:
    def authenticate(request: Any) -> User | None:
        return User("ann") if request.headers.get("who") == "ann" else None

    def authorize(user: User, address: Any, action: str) -> bool:
        return address.name == "g"

    async with served(App(agents=[Guarded], authenticate=authenticate, authorize=authorize)) as one:
        await (await one.world.get_agent(Guarded, "g")).open()
        root, child = "/agents/guarded/g", "/agents/guarded/g/sub/guarded/child"
        assert list(await listed(one, root, who="ann")) == ["ping"]
        assert list(await listed(one, child, who="ann")) == ["ping"]
        assert (await one.site.http(f"{root}/methods")).status == 401
        assert (await one.site.http("/agents/guarded/other/methods", headers={"who": "ann"})).status == 403
        for path, gates in (
            (root, ("request-root", "watch-root")),
            (child, ("sub-root", "request-child", "watch-child")),
        ):
            for gate in gates:
                answer = await one.site.http(f"{path}/methods", headers={"who": "ann", "shut": gate})
                assert (answer.status, answer.body) == (403, gate.encode())
        missing = await one.site.http("/agents/guarded/g/sub/guarded/none/methods", headers={"who": "ann"})
        posted = await one.site.http(f"{root}/methods", method="POST", headers={"who": "ann"})
        assert (missing.status, posted.body) == (404, b"mine")
