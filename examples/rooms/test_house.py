"""What people can do in their rooms, and what a crash in the middle of it changes."""

import asyncio
from collections.abc import AsyncGenerator, Callable
from contextlib import suppress

import pytest
from sapwood import App, NotFound, Refused, Unavailable
from sapwood.testing import World, running
from sapwood.types import Address

import house
from house import Inbox, Listed, Room, shortened, text_of
from small_talk import SmallTalk


@pytest.fixture
async def world(monkeypatch: pytest.MonkeyPatch) -> AsyncGenerator[World, None]:
    monkeypatch.setattr(Room, "model", SmallTalk(pause=0))
    async with running(App(agents=[Inbox]), slow_slices="allow") as world:
        yield world


async def test_a_new_room_is_there_and_one_that_is_empty_is_used_first(
    world: World,
) -> None:
    ann = await world.get_agent(Inbox, "ann")
    first = await ann.create()
    assert await ann.create() == first

    await say(world, first, "Hello")
    second = await ann.create()

    assert [room.id for room in await listed(world)] == [second, first]


async def test_a_room_is_called_what_was_said_first_until_it_is_renamed(
    world: World,
) -> None:
    room = await new_room(world, "How do I make **pancakes**, quickly?\nFor two.")
    assert (await listed(world))[0].title == "How do I make pancakes, quickly? For two."

    ann = await world.get_agent(Inbox, "ann")
    await ann.rename(room, "  Sunday   breakfast ")
    await say(world, room, "Thanks")

    assert (await listed(world))[0].title == "Sunday breakfast"
    with pytest.raises(Refused, match="needs a title"):
        await ann.rename(room, " ")


async def test_a_room_that_begins_without_words_has_a_title_too(world: World) -> None:
    room = await new_room(world, "***")

    assert [one.title for one in await listed(world)] == ["Without words"]
    assert await (await world.get_agent(Inbox, "ann")).create() != room


async def test_the_list_shows_the_latest_first_and_what_was_said_last(
    world: World,
) -> None:
    first = await new_room(world, "Why do trees have rings?")
    second = await new_room(world, "Hello")
    await say(world, first, "Thank you")

    rooms = await listed(world)

    assert [room.id for room in rooms] == [first, second]
    assert rooms[0].preview.startswith("You are welcome. The room stays")
    assert not any(room.busy for room in rooms)


async def test_an_answer_is_news_until_somebody_has_seen_it(world: World) -> None:
    room = await new_room(world, "Hello")
    ann = await world.get_agent(Inbox, "ann")
    assert [one.unread for one in await listed(world)] == [True]

    assert not (await ann.look(room)).unread
    assert [one.unread for one in await listed(world)] == [False]

    await say(world, room, "Thanks")
    assert [one.unread for one in await listed(world)] == [True]


async def test_one_s_own_words_are_no_news_and_an_answer_shows_that_it_is_on_its_way(
    world: World, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(Room, "model", SmallTalk(pause=30))
    ann = await world.get_agent(Inbox, "ann")
    room = await ann.create()

    saying = asyncio.create_task(say(world, room, "Tell me a story"))
    (one,) = await until(world, lambda rooms: rooms[0].busy)

    assert (one.preview, one.unread) == ("You: Tell me a story", False)
    await (await in_room(world, room)).turns.cancel()
    await saying
    assert not (await listed(world))[0].busy


async def test_searching_finds_titles_and_what_was_said_and_wakes_no_room(
    world: World,
) -> None:
    trees = await new_room(world, "Why do trees have rings?")
    books = await new_room(world, "What should I read?")
    ann = await world.get_agent(Inbox, "ann")
    await ann.rename(books, "For the holidays")
    await world.crash()
    ann = await world.get_agent(Inbox, "ann")

    found = await ann.search("sapw")
    assert [(one["id"], one["title"]) for one in found] == [
        (trees, "Why do trees have rings?")
    ]
    assert "\x02sapwood\x03" in found[0]["found"]
    assert [one["id"] for one in await ann.search("holi")] == [books]
    assert [one["id"] for one in await ann.search("a")] == [books, trees]
    assert [one["id"] for one in await ann.search("tree " * 10_000)] == [trees]
    for nothing in (
        "tundra",
        "trees tundra",
        "",
        '"',
        "AND OR NEAR(",
        "said:trees",
        "\0",
    ):
        assert await ann.search(nothing) == []
    awake = {
        str(address) for tree in world.node.trees.values() for address in tree.actors
    }
    assert awake == {"Inbox:ann"}


async def test_a_deleted_room_is_gone_with_all_that_was_said(world: World) -> None:
    room = await new_room(world, "Why do trees have rings?")
    ann = await world.get_agent(Inbox, "ann")

    await ann.delete(room)

    assert not await listed(world)
    assert await ann.search("trees") == []
    with pytest.raises(NotFound):
        await in_room(world, room)
    for gone in (ann.delete(room), ann.look(room), ann.rename(room, "x")):
        with pytest.raises(Refused, match="no such room"):
            await gone


async def test_only_the_latest_are_listed_and_all_are_found(
    world: World, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(house, "LISTED", 2)
    for about in ("trees", "books", "rain"):
        await new_room(world, about)

    ann = await world.get_agent(Inbox, "ann")

    assert [room.title for room in await listed(world)] == ["rain", "books"]
    assert [one["title"] for one in await ann.search("trees")] == ["trees"]


async def test_the_inbox_passes_on_what_a_room_is_saying(
    world: World, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(Room, "model", SmallTalk(pause=0.002))
    ann = await world.get_agent(Inbox, "ann")
    room, other = await new_room(world, "Hello"), await ann.create()

    async def listen() -> str:
        return "".join([delta async for delta in ann.listen(room)])

    listening = asyncio.create_task(listen())
    await asyncio.gather(say(world, room, "Tell me a story"), say(world, other, "Hi"))

    answer = (await (await in_room(world, room)).conversation.messages())[-1]
    assert await listening == text_of(answer)


@pytest.mark.parametrize("nth", range(1, 33))
async def test_wherever_a_crash_comes_a_listed_room_exists_and_no_other(
    world: World, nth: int
) -> None:
    ann = await world.get_agent(Inbox, "ann")
    world.crash_at("committed", nth)
    with suppress(Unavailable):
        for about in ("Hello", "Thanks"):
            room = await new_room(world, about)
        await ann.rename(room, "Later")
        await ann.delete(room)

    await world.crash()
    await world.settled()

    rooms = await until(world, lambda rooms: not any(room.busy for room in rooms))
    made = world.app.node.trees[Address.root_of("Inbox", "ann")].root_registry.count()
    assert len(rooms) == made
    for room in rooms:
        here = await in_room(world, room.id)
        said = [text_of(one) for one in await here.conversation.messages()]
        assert bool(said) == bool(room.preview)
        if said:
            assert shortened(said[-1], 120) in room.preview


async def test_after_a_crash_an_answer_goes_on_and_is_news_once(
    world: World, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(Room, "model", SmallTalk(pause=30))
    ann = await world.get_agent(Inbox, "ann")
    room = await ann.create()
    saying = asyncio.create_task(say(world, room, "Tell me a story"))
    await until(world, lambda rooms: rooms[0].busy)

    monkeypatch.setattr(Room, "model", SmallTalk(pause=0))
    await world.crash()
    with suppress(Unavailable):
        await saying

    (one,) = await until(world, lambda rooms: not rooms[0].busy)
    assert (one.title, one.unread) == ("Tell me a story", True)
    assert one.preview.startswith("In a house at the end of a street")
    assert len(await (await in_room(world, room)).conversation.messages()) == 2


@pytest.mark.parametrize(
    ("said", "heard"),
    [
        (["Hello"], "Say **help**"),
        (["Help"], "Plan a weekend"),
        (["Plan a weekend in Lisbon"], "tram 28"),
        (["My name is Ada"], "Nice to meet you, Ada!"),
        (["What did I say first?"], "Nothing yet"),
        (["Hello", "Thanks", "What did I say first?"], "“Hello”"),
        (["Hello", "Thanks", "Do you remember?"], "- Hello\n- Thanks"),
        (["Quantum gravity"], "“Quantum gravity” is more than I understand"),
    ],
)
async def test_the_offline_model_answers_what_is_said(
    world: World, said: list[str], heard: str
) -> None:
    ann = await world.get_agent(Inbox, "ann")
    room = await ann.create()

    answers = [await say(world, room, text) for text in said]

    assert heard in answers[-1]


async def test_a_failure_is_told_in_words_and_the_room_is_not_busy(
    world: World,
) -> None:
    ann = await world.get_agent(Inbox, "ann")
    room = await in_room(world, await ann.create())

    turn = await room.send("Fail, please")

    assert "when it is told to" in str(turn.error)
    (one,) = await until(world, lambda rooms: not rooms[0].busy)
    assert one.preview == "You: Fail, please"


async def test_a_room_is_called_what_somebody_typed(world: World) -> None:
    room = await new_room(world, "Tell me a story")
    inbox = await world.get_agent(Inbox, "ann")

    for title in ("C# or F#, snake_case", "a -> b", "2 * 3 * 4", "1. <i>p</i> > q"):
        await inbox.rename(room, f"  {title} ")
        (one,) = await until(world, lambda rooms: True)
        assert one.title == title


def test_a_long_text_is_cut_at_a_word() -> None:
    assert shortened("one two, three", 10) == "one two…"
    assert shortened("# One `two`\n\nthree", 20) == "One two three"
    assert shortened("x" * 30, 10) == "x" * 10 + "…"


async def new_room(world: World, first: str) -> str:
    """Make a room for ann, and say something in it; return its name."""
    ann = await world.get_agent(Inbox, "ann")
    room = await ann.create()
    await say(world, room, first)
    return room


async def say(world: World, room: str, text: str) -> str:
    """Say something in a room; return the answer, once the inbox has heard of it."""
    turn = await (await in_room(world, room)).send(text)
    await until(world, lambda rooms: not any(one.busy for one in rooms))
    return turn.text


async def in_room(world: World, room: str) -> Room:
    return await world.get_agent(Inbox, "ann", sub=[(Room, room)])


async def listed(world: World) -> tuple[Listed, ...]:
    return await (await world.get_agent(Inbox, "ann")).rooms()


async def until(
    world: World, is_so: Callable[[tuple[Listed, ...]], bool]
) -> tuple[Listed, ...]:
    """Wait until the list is like this, and return it."""
    async with asyncio.timeout(60):
        while True:
            if is_so(rooms := await listed(world)):
                return rooms
            await asyncio.sleep(0.002)
