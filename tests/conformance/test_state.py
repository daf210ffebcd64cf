"""State: one value for each agent, replaced whole, kept with what else is written."""

from __future__ import annotations

import datetime as dt
import uuid
from dataclasses import dataclass, field, replace
from typing import Any, Generic, TypedDict, TypeVar, cast

import msgspec
import pydantic
import pytest
from tests.conformance.worlds import Run

from sapwood import Agent, agent
from sapwood.errors import StoredDataError, UsageError

pytestmark = pytest.mark.storage

T = TypeVar("T")


@dataclass(frozen=True)
class Stats:
    notes: int = 0
    tags: tuple[str, ...] = ()


class Board(Agent[Stats]):
    initial_state = Stats()

    async def add(self) -> Stats:
        self.set_state(replace(self.state, notes=self.state.notes + 1))
        return self.state

    async def read(self) -> Stats:
        return self.state

    async def add_below(self, name: str) -> Stats:
        return await (await self.sub_agent(Board, name)).add()

    async def set_anything(self, value: Any) -> None:
        self.set_state(value)

    async def add_and_undo(self) -> Stats:
        try:
            with self.transaction():
                self.set_state(replace(self.state, notes=100))
                raise KeyError
        except KeyError:
            return self.state


async def test_a_new_agent_has_the_initial_state(run: Run) -> None:
    async with run(Board) as world:
        assert await (await world.get_agent(Board, "b")).read() == Stats()
        assert list(world.data.rglob("*.db")) == []


async def test_a_state_survives_sleep_restart_and_crash(run: Run) -> None:
    async with run(Board) as world:
        board = await world.get_agent(Board, "b")
        assert await board.add() == Stats(1)

        world.sleep()
        assert await board.add() == Stats(2)
        await world.restart()
        assert await (await world.get_agent(Board, "b")).add() == Stats(3)
        await world.crash()

        assert await (await world.get_agent(Board, "b")).read() == Stats(3)


@pytest.mark.promise("A-54", "A-85")
async def test_parents_children_and_siblings_have_each_their_own(run: Run) -> None:
    async with run(Board) as world:
        board = await world.get_agent(Board, "b")

        await board.add_below("one")
        assert await board.add_below("one") == Stats(2)
        assert await board.add_below("two") == Stats(1)

        assert await board.read() == Stats(0)
        await board.add()
        one = await world.get_agent(Board, "b", sub=[(Board, "one")])
        assert await one.read() == Stats(2)


async def test_what_a_block_undoes_is_undone_in_the_state_too(run: Run) -> None:
    async with run(Board) as world:
        board = await world.get_agent(Board, "b")
        await board.add()

        assert await board.add_and_undo() == Stats(1)

        await world.restart()
        assert await (await world.get_agent(Board, "b")).read() == Stats(1)


async def test_a_state_of_the_wrong_type_is_refused_and_the_old_one_stays(run: Run) -> None:
    async with run(Board) as world:
        board = await world.get_agent(Board, "b")
        await board.add()

        with pytest.raises(UsageError, match=r"state of Board:b must be a Stats, got .*: Expected `int`"):
            await board.set_anything({"notes": "many"})
        with pytest.raises(UsageError, match="Expected `object`"):
            await board.set_anything(None)

        assert await board.read() == Stats(1)


class Model(pydantic.BaseModel):
    model_config = pydantic.ConfigDict(extra="forbid")

    name: str = pydantic.Field(default="", alias="fullName")
    born: dt.date = dt.date(2000, 1, 1)
    raw: bytes = b""
    ids: set[uuid.UUID] = set()


class Shape(msgspec.Struct, frozen=True):
    points: tuple[tuple[int, int], ...] = ()


class Options(TypedDict):
    depth: int


@dataclass
class Open:
    items: list[str] = field(default_factory=list[str])
    when: dt.datetime | None = None


STATES: list[tuple[Any, Any]] = [
    (Stats(1, ("a", "b")), Stats),
    (Model(fullName="Ada", raw=b"abc", ids={uuid.UUID(int=1)}), Model),
    (Shape(((1, 2), (3, 4))), Shape),
    (Options(depth=3), Options),
    (Open(["x"], dt.datetime(2026, 1, 1, tzinfo=dt.UTC)), Open),
    ({"a": [1, None, {"b": 2.5}]}, dict[str, Any]),
    ([1, 2], list[int]),
    ({1: {2, 3}}, dict[int, set[int]]),
    ("text", str),
    (None, Any),
    (3, int | None),
]


@pytest.mark.parametrize(("value", "type_"), STATES)
async def test_a_state_of_any_kind_comes_back_equal_and_as_the_same_type(run: Run, value: Any, type_: Any) -> None:
    class Holder(Agent[type_]):
        initial_state = value
        received: Any = None

        async def keep(self, *, stored: bool) -> bool:
            if stored:
                self.set_state(value)
            return (
                self.state == value and type(self.state) is type(value) and (value is None or self.state is not value)
            )

        async def kept(self) -> bool:
            return self.state == value and type(self.state) is type(value)

    async with run(Holder) as world:
        holder = await world.get_agent(Holder, "h")
        unshared = isinstance(value, str | int)

        assert await holder.keep(stored=False) or unshared
        assert await holder.keep(stored=True) or unshared
        await world.crash()

        assert await (await world.get_agent(Holder, "h")).kept()


async def test_a_value_changed_after_set_state_does_not_change_the_state(run: Run) -> None:
    class Aliased(Agent[dict[str, list[int]]]):
        initial_state: dict[str, list[int]] = {"items": []}  # noqa: RUF012

        async def set_then_change(self) -> dict[str, list[int]]:
            mine = {"items": [1]}
            self.set_state(mine)
            mine["items"].append(2)
            return self.state

        async def read(self) -> dict[str, list[int]]:
            return self.state

    async with run(Aliased) as world:
        aliased = await world.get_agent(Aliased, "a")

        assert await aliased.set_then_change() == {"items": [1]}
        outside = await aliased.read()
        outside["items"].append(99)
        assert await aliased.read() == {"items": [1]}
        assert Aliased.initial_state == {"items": []}


class Careless(Agent[dict[str, int]]):
    initial_state = {"n": 0}  # noqa: RUF012

    async def change_in_place(self) -> None:
        self.state["n"] += 1

    async def change_then_read(self) -> int:
        self.state["n"] += 1
        return self.state["n"]

    async def change_then_set(self) -> None:
        self.state["n"] += 1
        self.set_state({"n": 100})

    async def change_and_set_the_same(self) -> None:
        state = self.state
        state["n"] += 1
        self.set_state(state)

    async def read(self) -> int:
        return self.state["n"]


@dataclass(frozen=True)
class Level:
    height: float = 0.0


class Gauge(Agent[Level]):
    initial_state = Level()

    async def rise(self) -> float:
        self.set_state(Level(1))
        return self.state.height


async def test_a_whole_number_where_the_class_says_a_fraction_is_no_change_in_place(run: Run) -> None:
    async with run(Gauge) as world:
        assert await (await world.get_agent(Gauge, "g")).rise() == 1.0


@pytest.mark.parametrize("how", ["change_in_place", "change_then_read", "change_then_set"])
async def test_changing_the_state_in_place_raises_in_tests_and_changes_nothing(run: Run, how: str) -> None:
    async with run(Careless) as world:
        careless = await world.get_agent(Careless, "c")

        with pytest.raises(UsageError, match=r"Careless:c was changed in place.*set_state\(\)"):
            await getattr(careless, how)()

        assert await careless.read() == 0


async def test_setting_the_changed_state_itself_is_fine(run: Run) -> None:
    async with run(Careless) as world:
        careless = await world.get_agent(Careless, "c")

        await careless.change_and_set_the_same()

        assert await careless.read() == 1


@agent(type="profile")
class ProfileOne(Agent[dict[str, str]]):
    initial_state = {"name": ""}  # noqa: RUF012

    async def rename(self, name: str) -> None:
        self.set_state({"name": name})


@dataclass
class Names:
    first: str
    last: str


@agent(type="profile")
class ProfileTwo(Agent[Names]):
    initial_state = Names("", "")
    state_version = 2

    def upgrade_state(self, old: Any, version: int) -> Names:
        assert version == 1
        first, _, last = old["name"].partition(" ")
        return Names(first, last)

    async def read(self) -> Names:
        return self.state

    async def marry(self, last: str) -> None:
        self.set_state(replace(self.state, last=last))


@agent(type="profile")
class ProfileWithoutUpgrade(Agent[Names]):
    initial_state = Names("", "")
    state_version = 2

    async def read(self) -> Names:
        return self.state


@agent(type="profile")
class ProfileUnversioned(Agent[Names]):
    initial_state = Names("", "")

    async def read(self) -> Names:
        return self.state


async def profile(world: Any, cls: Any) -> Any:
    """Return the stub of one profile, as one version of the program sees it."""
    return await world.get_agent(Registry, "r", sub=[(cls, "p")])


class Registry(Agent):
    async def make(self) -> None:
        await (await self.sub_agent(ProfileOne, "p")).rename("Ada Byron")


async def test_a_state_of_an_older_version_is_upgraded_once_it_is_read(run: Run) -> None:
    async with run(Registry) as world:
        await (await world.get_agent(Registry, "r")).make()
        await world.restart()

        two = await profile(world, ProfileTwo)

        assert await two.read() == Names("Ada", "Byron")
        await two.marry("Lovelace")
        await world.restart()
        assert await (await profile(world, ProfileTwo)).read() == Names("Ada", "Lovelace")


async def test_an_older_state_without_an_upgrade_is_an_error_that_says_what_to_write(run: Run) -> None:
    async with run(Registry) as world:
        await (await world.get_agent(Registry, "r")).make()
        await world.restart()

        with pytest.raises(UsageError, match=r"state_version 1.*Write upgrade_state\(old, version\)"):
            await (await profile(world, ProfileWithoutUpgrade)).read()


async def test_a_state_that_cannot_be_read_is_an_error_and_never_a_reset(run: Run) -> None:
    async with run(Registry) as world:
        await (await world.get_agent(Registry, "r")).make()
        await world.restart()

        with pytest.raises(StoredDataError, match=r"cannot be read: .*`first`") as unreadable:
            await (await profile(world, ProfileUnversioned)).read()

        assert unreadable.value.code == "stored_data"
        assert "changed without a new state_version: increase it to 2 and write upgrade_state()" in str(
            unreadable.value
        )
        await world.restart()
        assert await (await profile(world, ProfileTwo)).read() == Names("Ada", "Byron")


@agent(type="profile")
class ProfileWrongUpgrade(ProfileTwo):
    def upgrade_state(self, old: Any, version: int) -> Names:
        return old


async def test_an_upgrade_that_does_not_fit_the_class_is_an_error_that_names_it(run: Run) -> None:
    async with run(Registry) as world:
        await (await world.get_agent(Registry, "r")).make()

        await world.restart()

        with pytest.raises(StoredDataError, match=r"state_version 1.*`first`.*Correct upgrade_state\(\)"):
            await (await profile(world, ProfileWrongUpgrade)).read()
        await world.restart()
        assert await (await profile(world, ProfileTwo)).read() == Names("Ada", "Byron")


async def test_a_state_of_a_newer_version_is_refused_and_not_given_to_upgrade_state(run: Run) -> None:
    @agent(type="profile")
    class ProfileBack(ProfileTwo):
        state_version = 1

    async with run(Registry) as world:
        await (await world.get_agent(Registry, "r")).make()
        await world.restart()
        await (await profile(world, ProfileTwo)).marry("Lovelace")
        await world.restart()

        with pytest.raises(StoredDataError, match=r"by a newer version of the program.* 2, but the class has 1"):
            await (await profile(world, ProfileBack)).read()

        await world.restart()
        assert await (await profile(world, ProfileTwo)).read() == Names("Ada", "Lovelace")


@dataclass(frozen=True)
class Task:
    text: str
    due: str = ""


@dataclass(frozen=True)
class Plan:
    title: str = "untitled"
    tasks: tuple[Task, ...] = ()


class PlanModel(pydantic.BaseModel):
    title: str = "untitled"
    tasks: list[Task] = []


class PlanStruct(msgspec.Struct):
    title: str = "untitled"
    tasks: frozenset[Task] = frozenset()


class PlanDict(TypedDict, total=False):
    title: str
    tasks: list[Task]


@dataclass(frozen=True)
class PlanRenamed:
    name: str = "untitled"
    tasks: tuple[Task, ...] = ()


class PlanModelRenamed(pydantic.BaseModel):
    name: str = "untitled"
    tasks: list[Task] = []


class PlanStructRenamed(msgspec.Struct):
    name: str = "untitled"
    tasks: frozenset[Task] = frozenset()


class PlanDictRenamed(TypedDict, total=False):
    name: str
    tasks: list[Task]


@dataclass(frozen=True)
class TaskShortened:
    text: str


@dataclass(frozen=True)
class PlanShortened:
    title: str = "untitled"
    tasks: tuple[TaskShortened, ...] = ()


class PlanExtended(msgspec.Struct):
    title: str = "untitled"
    owner: str = "nobody"
    tasks: tuple[Task, ...] = ()


class Loose(pydantic.BaseModel, extra="allow"):
    name: str = "untitled"


class Brief(msgspec.Struct, omit_defaults=True):
    """It leaves out what has its default, and the stored title is the default now."""

    title: str = "Garden"
    tasks: tuple[Task, ...] = ()


TASKS = (Task("dig", "today"), Task("sow", "tomorrow"))
PLAN = Plan("Garden", TASKS)


async def reread(run: Run, written: Any, read_as: type[Any]) -> Any:
    """Have one version of a program store a state, and return what the next reads."""
    before: type[Any] = type(written) if not isinstance(written, dict) else PlanDict

    @agent(type="planner")
    class Before(Agent[before]):
        initial_state = written

        async def keep(self) -> None:
            self.set_state(written)

    @agent(type="planner")
    class After(Agent[read_as]):
        initial_state = read_as()

        async def read(self) -> Any:
            probed.append(self.state)

    class Folder(Agent):
        async def make(self) -> None:
            await (await self.sub_agent(Before, "p")).keep()

    probed: list[Any] = []
    async with run(Folder) as world:
        await (await world.get_agent(Folder, "f")).make()
        await world.restart()
        after = await world.get_agent(Folder, "f", sub=[(After, "p")])
        await after.read()
    return probed[0]


@pytest.mark.parametrize(
    ("written", "read_as", "field"),
    [
        (PLAN, PlanRenamed, "title"),
        (PlanModel(title="Garden", tasks=list(TASKS)), PlanModelRenamed, "title"),
        (PlanStruct("Garden", frozenset(TASKS)), PlanStructRenamed, "title"),
        (PlanDict(title="Garden", tasks=list(TASKS)), PlanDictRenamed, "title"),
        (PLAN, PlanShortened, r"tasks\[...\].due"),
    ],
)
async def test_a_field_that_the_class_no_longer_has_is_an_error_that_names_it_and_never_dropped(
    run: Run, written: Any, read_as: type[Any], field: str
) -> None:
    with pytest.raises(
        StoredDataError,
        match=rf"planner:p has a field that its class does not have: `{field}`.*increase it to 2 and write upgrade",
    ):
        await reread(run, written, read_as)


@pytest.mark.parametrize(
    ("written", "read_as", "found"),
    [
        (PLAN, PlanExtended, PlanExtended("Garden", "nobody", TASKS)),
        (PLAN, Brief, Brief("Garden", TASKS)),
        (PLAN, PlanStruct, PlanStruct("Garden", frozenset(TASKS))),
        (PlanDict(title="Garden"), Loose, Loose.model_validate({"title": "Garden"})),
    ],
)
async def test_a_class_that_has_a_place_for_everything_stored_reads_it_without_a_new_version(
    run: Run, written: Any, read_as: type[Any], found: Any
) -> None:
    assert await reread(run, written, read_as) == found


async def test_the_state_s_type_is_that_of_the_agent_whatever_else_the_class_extends(run: Run) -> None:
    class Logs(Generic[T]):
        pass

    class Base(Agent[T], Generic[T]):
        async def read(self) -> Any:
            return self.state

    class Mixed(Logs[str], Base[Stats]):
        initial_state = Stats(7)

    class Plain(Base[None]):
        pass

    async with run(Mixed, Plain) as world:
        assert await (await world.get_agent(Mixed, "m")).read() == {"notes": 7, "tags": []}
        assert await (await world.get_agent(Plain, "p")).read() is None


async def test_a_typed_state_without_an_initial_one_is_an_error_that_says_so(run: Run) -> None:
    class Forgetful(Agent[Stats]):
        async def read(self) -> Stats:
            return self.state

        async def write(self) -> Stats:
            self.set_state(Stats(1))
            return self.state

    async with run(Forgetful) as world:
        forgetful = await world.get_agent(Forgetful, "f")

        with pytest.raises(UsageError, match=r"state of Forgetful:f must be a Stats, got None.*initial_state"):
            await forgetful.read()
        assert await forgetful.write() == Stats(1)


async def test_a_state_that_json_cannot_hold_is_refused(run: Run) -> None:
    async with run(Board) as world:
        board = await world.get_agent(Board, "b")

        class Odd(Agent[Any]):
            pass

        with pytest.raises(UsageError, match=r"must be a|cannot be stored"):
            await board.set_anything({"notes": 2.5})
        assert cast(Any, Odd).initial_state is None


async def test_parameters_of_a_class_in_between_are_not_taken_for_the_state(run: Run) -> None:
    U = TypeVar("U")

    class Named(Agent[Stats], Generic[T]):
        initial_state = Stats(7)

        async def read(self) -> Any:
            return self.state

    class Turned(Agent[T], Generic[U, T]):
        initial_state = cast("Any", Stats(8))

        async def read(self) -> Any:
            return self.state

    class Text(Named[str]):
        pass

    class Swapped(Turned[str, Stats]):
        pass

    async with run(Text, Swapped) as world:
        assert await (await world.get_agent(Text, "t")).read() == {"notes": 7, "tags": []}
        assert await (await world.get_agent(Swapped, "s")).read() == {"notes": 8, "tags": []}
