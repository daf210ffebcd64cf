"""Copies: what crosses a stub arrives equal, as the same type, and shares nothing with what was sent."""

from __future__ import annotations

import dataclasses
import datetime as dt
import enum
import re
import uuid
from dataclasses import dataclass, field
from decimal import Decimal
from typing import Any, Literal, NamedTuple, TypedDict, cast

import msgspec
import pydantic
import pytest
from tests.conformance.runtimes import running
from tests.conformance.worlds import Run

from sapwood import Agent, App, Limits, OverLimit, Refused
from sapwood.errors import InvalidArguments, InvalidResult, UsageError


@pytest.fixture
def level() -> str:
    """Return one level of durability; nothing here depends on it."""
    return "process"


@dataclass
class Point:
    x: int
    tags: list[str] = field(default_factory=list[str])


@dataclass(frozen=True, slots=True)
class Frozen:
    inner: Point
    when: dt.datetime


class Shape(msgspec.Struct):
    name: str
    points: list[Point]


class Address(pydantic.BaseModel):
    street: str
    numbers: list[int] = []


class Person(pydantic.BaseModel):
    model_config = pydantic.ConfigDict(extra="forbid")

    name: str = pydantic.Field(alias="fullName")
    born: dt.date
    id: uuid.UUID
    address: Address
    photo: bytes
    roles: set[str]

    @pydantic.computed_field
    @property
    def initial(self) -> str:
        return self.name[0]


class StrictPerson(pydantic.BaseModel):
    model_config = pydantic.ConfigDict(strict=True)

    id: uuid.UUID
    pair: tuple[int, str]
    born: dt.date


class Options(TypedDict):
    depth: int
    names: list[str]


class Pair(NamedTuple):
    left: int
    right: list[str]


class Color(enum.Enum):
    RED = "red"
    BLUE = "blue"


class Level(enum.IntEnum):
    LOW = 1


class Echo(Agent):
    """Returns what it is given, by every annotation; keeps the last value to show that nobody else changes it."""

    async def on_start(self) -> None:
        self.kept: Any = None

    async def kept_as_text(self) -> str:
        return repr(self.kept)

    async def none(self, value: None) -> None:
        return value

    async def bool(self, value: bool) -> bool:
        return value

    async def int(self, value: int) -> int:
        return value

    async def float(self, value: float) -> float:
        return value

    async def str(self, value: str) -> str:
        return value

    async def bytes(self, value: bytes) -> bytes:
        return value

    async def list(self, value: list[Any]) -> list[Any]:
        self.kept = value
        return value

    async def dict(self, value: dict[str, Any]) -> dict[str, Any]:
        self.kept = value
        return value

    async def int_keys(self, value: dict[int, str]) -> dict[int, str]:
        self.kept = value
        return value

    async def tuple(self, value: tuple[int, str]) -> tuple[int, str]:
        return value

    async def many(self, value: tuple[int, ...]) -> tuple[int, ...]:
        return value

    async def set(self, value: set[int]) -> set[int]:
        self.kept = value
        return value

    async def frozenset(self, value: frozenset[str]) -> frozenset[str]:
        return value

    async def dataclass(self, value: Point) -> Point:
        self.kept = value
        return value

    async def frozen(self, value: Frozen) -> Frozen:
        self.kept = value
        return value

    async def struct(self, value: Shape) -> Shape:
        self.kept = value
        return value

    async def model(self, value: Person) -> Person:
        self.kept = value
        return value

    async def strict_model(self, value: StrictPerson) -> StrictPerson:
        return value

    async def models(self, value: dict[str, list[Address]]) -> dict[str, list[Address]]:
        self.kept = value
        return value

    async def typed_dict(self, value: Options) -> Options:
        self.kept = value
        return value

    async def named_tuple(self, value: Pair) -> Pair:
        self.kept = value
        return value

    async def enum(self, value: Color) -> Color:
        return value

    async def int_enum(self, value: Level) -> Level:
        return value

    async def datetime(self, value: dt.datetime) -> dt.datetime:
        return value

    async def date(self, value: dt.date) -> dt.date:
        return value

    async def time(self, value: dt.time) -> dt.time:
        return value

    async def timedelta(self, value: dt.timedelta) -> dt.timedelta:
        return value

    async def uuid(self, value: uuid.UUID) -> uuid.UUID:
        return value

    async def decimal(self, value: Decimal) -> Decimal:
        return value

    async def optional(self, value: Point | None) -> Point | None:
        return value

    async def union(self, value: int | str | list[int]) -> int | str | list[int]:
        return value

    async def literal(self, value: Literal["a", 1]) -> Literal["a", 1]:
        return value

    async def any(self, value: Any) -> Any:
        self.kept = value
        return value

    async def unannotated(self, value):  # pyright: ignore[reportMissingParameterType]
        return value

    async def nested(self, value: dict[str, list[tuple[Frozen, set[Color]]]]) -> dict[str, list[Any]]:
        self.kept = value
        return cast(Any, value)

    async def later(self, value: Later) -> Later:
        return value

    async def spread(self, *points: Point, **named: Point) -> list[Point]:
        return [*points, *named.values()]

    async def wrong_result(self) -> int:
        return cast(Any, "no number")

    async def odd_result(self) -> Any:
        return object()

    async def lie(self) -> list[Point]:
        return [Point(1)]


@dataclass
class Later:
    """Defined below the class whose method names it."""

    n: int


NOW = dt.datetime(2026, 11, 15, 12, 30, 1, 250_000, tzinfo=dt.UTC)
ID = uuid.UUID("12345678-1234-5678-1234-567812345678")
PERSON = Person(
    fullName="Ada",
    born=dt.date(1815, 12, 10),
    id=ID,
    address=Address(street="Main", numbers=[1]),
    photo=b"\xff\x00",
    roles={"author"},
)

VALUES: list[tuple[str, Any]] = [
    ("none", None),
    ("bool", True),
    ("int", -1),
    ("int", 2**200),
    ("float", 1.5),
    ("float", float("inf")),
    ("str", "grüße 🌳 \0"),
    ("bytes", b"\x00\xff"),
    ("list", [1, "a", None, [2.5, {"b": b"c"}]]),
    ("list", []),
    ("dict", {"a": 1, "b": [1, 2], "c": {"d": None}}),
    ("int_keys", {1: "a", -2: "b"}),
    ("tuple", (1, "a")),
    ("many", (1, 2, 3)),
    ("many", ()),
    ("set", {1, 2}),
    ("frozenset", frozenset({"a"})),
    ("dataclass", Point(1, ["a"])),
    ("frozen", Frozen(Point(1), NOW)),
    ("struct", Shape("s", [Point(1), Point(2, ["t"])])),
    ("model", PERSON),
    ("strict_model", StrictPerson(id=ID, pair=(1, "a"), born=dt.date(2000, 1, 1))),
    ("models", {"a": [Address(street="s", numbers=[1])]}),
    ("typed_dict", Options(depth=1, names=["a"])),
    ("named_tuple", Pair(1, ["r"])),
    ("enum", Color.RED),
    ("int_enum", Level.LOW),
    ("datetime", NOW),
    ("datetime", dt.datetime(2026, 11, 15, 12, 30)),  # noqa: DTZ001 - a naive one must stay naive
    ("datetime", NOW.astimezone(dt.timezone(dt.timedelta(hours=5, minutes=30)))),
    ("date", dt.date(2026, 11, 15)),
    ("time", dt.time(1, 2, 3)),
    ("timedelta", dt.timedelta(days=-1, seconds=5, microseconds=7)),
    ("uuid", ID),
    ("decimal", Decimal("1.10")),
    ("optional", None),
    ("optional", Point(1)),
    ("union", 1),
    ("union", "one"),
    ("union", [1]),
    ("literal", "a"),
    ("literal", 1),
    ("any", {"a": [1, "b", None, 2.5, b"c", True]}),
    ("unannotated", [1, {"a": "b"}]),
    ("nested", {"a": [(Frozen(Point(1), NOW), {Color.RED, Color.BLUE})]}),
    ("later", Later(1)),
]


@pytest.mark.parametrize(("method", "value"), VALUES)
async def test_every_supported_value_arrives_equal_and_as_the_same_type(run: Run, method: str, value: Any) -> None:
    async with run(Echo) as world:
        echo = await world.get_agent(Echo, "e")

        arrived = await getattr(echo, method)(value)

        if method != "nested":
            assert arrived == value
            assert type(arrived) is type(value)
        else:  # sorted, because a set shows its members in any order
            assert sorted(await echo.kept_as_text()) == sorted(repr(value))
        if isinstance(value, dt.datetime):
            assert (arrived.tzinfo is None) == (value.tzinfo is None)
        if isinstance(value, Decimal):
            assert str(arrived) == str(value)


def change(value: Any) -> None:
    """Change a value deep inside."""
    match value:
        case list():
            value.append("changed")
        case dict():
            value["changed"] = 1
        case set():
            value.add(99)
        case Point():
            value.tags.append("changed")
        case Frozen():
            value.inner.tags.append("changed")
        case Shape():
            value.points[0].tags.append("changed")
        case Person():
            value.address.numbers.append(99)
        case Pair():
            value.right.append("changed")
        case _:
            raise AssertionError(value)


CHANGEABLE: list[tuple[str, Any]] = [
    ("list", [1]),
    ("dict", {"a": 1}),
    ("set", {1}),
    ("dataclass", Point(1)),
    ("frozen", Frozen(Point(1), NOW)),
    ("struct", Shape("s", [Point(1)])),
    ("model", PERSON),
    ("typed_dict", Options(depth=1, names=[])),
    ("named_tuple", Pair(1, [])),
    ("any", {"a": 1}),
]


@pytest.mark.promise("A-57")
@pytest.mark.parametrize(("method", "value"), CHANGEABLE)
async def test_changing_a_value_afterwards_never_shows_on_the_other_side(run: Run, method: str, value: Any) -> None:
    value = msgspec.convert(value, type(value)) if isinstance(value, dict | list | set) else value
    value = value.model_copy(deep=True) if isinstance(value, Person) else value
    async with run(Echo) as world:
        echo = await world.get_agent(Echo, "e")
        arrived = await getattr(echo, method)(value)
        inside = await echo.kept_as_text()

        change(value)
        assert await echo.kept_as_text() == inside
        assert repr(arrived) == inside
        change(arrived)
        assert await echo.kept_as_text() == inside


@pytest.mark.promise("A-57")
async def test_a_value_changed_by_the_agent_does_not_change_for_the_caller(run: Run) -> None:
    class Changer(Agent):
        async def append(self, items: list[int]) -> int:
            items.append(99)
            return len(items)

        async def append_in_family(self) -> list[int]:
            items = [1]
            await (await self.sub_agent(Changer, "child")).append(items)
            return items

    async with run(Changer) as world:
        changer = await world.get_agent(Changer, "c")
        items = [1]

        assert await changer.append(items) == 2

        assert items == [1]
        assert await changer.append_in_family() == [1]


async def test_each_of_many_arguments_is_copied_by_its_annotation(run: Run) -> None:
    async with run(Echo) as world:
        echo = await world.get_agent(Echo, "e")

        assert await echo.spread(Point(1), Point(2), z=Point(3)) == [Point(1), Point(2), Point(3)]


BAD: list[tuple[str, Any, str]] = [
    ("int", "no number", "Expected `int`, got `str`"),
    ("int", None, "Expected `int`, got `None`"),
    ("str", 3, "Expected `str`, got `int`"),
    ("dataclass", {"tags": []}, "missing required field `x`"),
    ("dataclass", {"x": "one"}, "Expected `int`, got `str` - at `$.x`"),
    ("enum", "green", "Invalid enum value 'green'"),
    ("uuid", "nonsense", "Invalid UUID"),
    ("tuple", (1, "a", 2), "Expected `array` of length 2"),
    ("literal", "b", "Invalid enum value 'b'"),
    ("optional", 3, "Expected `object | null`, got `int`"),
    ("model", {"fullName": 3}, "validation errors? for Person"),
]


@pytest.mark.parametrize(("method", "value", "said"), BAD)
async def test_a_bad_argument_is_refused_naming_method_argument_and_fault(
    run: Run, method: str, value: Any, said: str
) -> None:
    async with run(Echo) as world:
        echo = await world.get_agent(Echo, "e")

        pattern = rf"(?s)Echo\.{method}\(\) argument 'value' does not fit: .*"
        with pytest.raises(Refused, match=pattern + (said if method == "model" else re.escape(said))) as refused:
            await getattr(echo, method)(value)
        assert refused.value.code == "invalid_arguments"


class Handmade:
    pass


@pytest.mark.parametrize("value", [Handmade(), [Handmade()], {"a": Handmade()}, object(), Handmade, 3j, [2**70]])
async def test_what_cannot_be_copied_is_refused_naming_method_and_argument(run: Run, value: Any) -> None:
    async with run(Echo) as world:
        echo = await world.get_agent(Echo, "e")

        with pytest.raises(
            UsageError, match=r"Echo\.any\(\) argument 'value' cannot be copied to another agent"
        ) as bad:
            await echo.any(value)
        assert bad.value.code == "not_copyable"


async def test_a_value_that_contains_itself_is_refused(run: Run) -> None:
    endless: list[Any] = []
    endless.append(endless)
    async with run(Echo) as world:
        echo = await world.get_agent(Echo, "e")

        with pytest.raises(UsageError, match="cannot be copied"):
            await echo.any(endless)


async def test_a_result_that_does_not_fit_is_an_error_naming_the_method(run: Run) -> None:
    async with run(Echo) as world:
        echo = await world.get_agent(Echo, "e")

        with pytest.raises(InvalidResult, match=r"The result of Echo\.wrong_result\(\) does not fit: Expected `int`"):
            await echo.wrong_result()
        with pytest.raises(UsageError, match=r"The result of Echo\.odd_result\(\) cannot be copied"):
            await echo.odd_result()


async def test_an_annotation_that_cannot_be_copied_is_named(run: Run) -> None:
    class Odd(Agent):
        async def take(self, value: Handmade) -> None: ...

    async with run(Odd) as world:
        odd = await world.get_agent(Odd, "o")

        with pytest.raises(UsageError, match=r"Odd\.take\(\) argument 'value'"):
            await odd.take(Handmade())


async def test_an_annotation_that_cannot_be_resolved_is_named(run: Run) -> None:
    class Unresolved(Agent):
        async def take(self, value: Nowhere) -> None: ...  # pyright: ignore[reportUndefinedVariable]  # noqa: F821

    async with run(Unresolved) as world:
        unresolved = await world.get_agent(Unresolved, "u")

        with pytest.raises(UsageError, match=r"annotation of Unresolved\.take\(\) cannot be resolved: .*Nowhere"):
            await unresolved.take(1)


LIMIT = 100


@pytest.mark.parametrize(
    ("method", "fits", "too_large"),
    [
        ("str", "x" * LIMIT, "x" * (LIMIT + 1)),
        ("str", "é" * (LIMIT // 2), "é" * (LIMIT // 2) + "x"),
        ("bytes", b"x" * LIMIT, b"x" * (LIMIT + 1)),
        ("list", [0] * (LIMIT - 3), [0] * (LIMIT - 2)),  # three bytes say how long a list is
    ],
)
async def test_a_payload_may_have_exactly_its_limit(run: Run, method: str, fits: Any, too_large: Any) -> None:
    async with run(Echo, limits=Limits(payload_bytes=LIMIT)) as world:
        echo = await world.get_agent(Echo, "e")

        assert await getattr(echo, method)(fits) == fits
        pattern = rf"Echo\.{method}\(\) argument 'value' has {LIMIT + 1} bytes; the limit is {LIMIT}"
        with pytest.raises(OverLimit, match=pattern) as over:
            await getattr(echo, method)(too_large)
        assert over.value.limit == "payload_bytes"


async def test_a_result_is_held_to_the_limit_too(run: Run) -> None:
    class Talker(Agent):
        limits = Limits(payload_bytes=LIMIT)

        async def talk(self, n: int) -> str:
            return "x" * n

    async with run(Talker) as world:
        talker = await world.get_agent(Talker, "t")

        assert len(await talker.talk(LIMIT)) == LIMIT
        with pytest.raises(OverLimit, match=r"The result of Talker\.talk\(\) has 101 bytes"):
            await talker.talk(LIMIT + 1)


async def test_a_limit_of_zero_bytes_lets_nothing_with_a_size_cross(run: Run) -> None:
    async with run(Echo, limits=Limits(payload_bytes=0)) as world:
        echo = await world.get_agent(Echo, "e")

        assert await echo.none(None) is None
        assert await echo.str("") == ""
        for method, value in [("str", "x"), ("bytes", b"x"), ("list", []), ("dataclass", Point(1))]:
            with pytest.raises(OverLimit):
                await getattr(echo, method)(value)


async def test_a_dataclass_with_fields_that_are_made_is_copied_as_it_is(run: Run) -> None:
    @dataclass
    class Made:
        a: int
        b: int = dataclasses.field(init=False, default=0)

        def __post_init__(self) -> None:
            self.b = self.b or self.a * 2

    class Maker(Agent):
        async def echo(self, value: Made) -> Made:
            return value

    async with run(Maker) as world:
        maker = await world.get_agent(Maker, "m")

        assert await maker.echo(Made(2)) == Made(2)


async def test_an_instance_of_a_subclass_is_refused_rather_than_cut_down() -> None:
    @dataclass
    class Base:
        x: int

    @dataclass
    class Derived(Base):
        y: int

    class Taker(Agent):
        async def take(self, value: Base) -> int:
            return value.x

    async with running(App(agents=[Taker])) as world:
        taker = await world.get_agent(Taker, "t")

        with pytest.raises(InvalidArguments, match="must be a Base, got its subclass Derived"):
            await taker.take(Derived(1, 2))
        assert await taker.take(Base(1)) == 1
