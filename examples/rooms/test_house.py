"""Tests of the inbox and the rooms, including a crash at every commit."""

import asyncio
from collections.abc import AsyncGenerator, Callable
from contextlib import suppress

import pytest
from sapwood import App, NotFound, Refused, Unavailable
from sapwood.testing import World, running
from sapwood.types import Address

import house
from house import Inbox, Room, RoomInfo, plain, text_of
from small_talk import SmallTalk


@pytest.fixture
async def world(monkeypatch: pytest.MonkeyPatch) -> AsyncGenerator[World, None]:
    monkeypatch.setattr(Room, "model", SmallTalk(pause=0))
    async with running(App(agents=[Inbox]), slow_slices="allow") as world:
        yield world


async def test_create_reuses_an_empty_room(
    world: World,
) -> None:
    ann = await world.get_agent(Inbox, "ann")
    first = await ann.create()
    assert await ann.create() == first

    await say(world, first, "Hello")
    second = await ann.create()

    assert [room.id for room in await list_rooms(world)] == [second, first]


async def test_the_first_message_is_the_title_until_a_rename(
    world: World,
) -> None:
    room = await new_room(world, "How do I make **pancakes**, quickly?\nFor two.")
    assert (await list_rooms(world))[
        0
    ].title == "How do I make pancakes, quickly? For two."

    ann = await world.get_agent(Inbox, "ann")
    await ann.rename(room, "  Sunday   breakfast ")
    await say(world, room, "Thanks")

    assert (await list_rooms(world))[0].title == "Sunday breakfast"
    with pytest.raises(Refused, match="title must not be empty"):
        await ann.rename(room, " ")


async def test_a_room_without_text_has_a_title(world: World) -> None:
    room = await new_room(world, "***")

    assert [one.title for one in await list_rooms(world)] == ["Untitled"]
    assert await (await world.get_agent(Inbox, "ann")).create() != room


async def test_the_list_starts_with_the_latest_room_and_shows_the_last_message(
    world: World,
) -> None:
    first = await new_room(world, "Why do trees have rings?")
    second = await new_room(world, "Hello")
    await say(world, first, "Thank you")

    rooms = await list_rooms(world)

    assert [room.id for room in rooms] == [first, second]
    assert rooms[0].preview.startswith("You are welcome. The room stays")
    assert not any(room.busy for room in rooms)


async def test_an_answer_is_unread_until_the_user_has_seen_it(world: World) -> None:
    room = await new_room(world, "Hello")
    ann = await world.get_agent(Inbox, "ann")
    assert [one.unread for one in await list_rooms(world)] == [True]

    assert not (await ann.mark_seen(room)).unread
    assert [one.unread for one in await list_rooms(world)] == [False]

    await say(world, room, "Thanks")
    assert [one.unread for one in await list_rooms(world)] == [True]


async def test_a_users_own_message_is_not_unread_and_a_room_is_busy_during_a_turn(
    world: World, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(Room, "model", SmallTalk(pause=30))
    ann = await world.get_agent(Inbox, "ann")
    room = await ann.create()

    turn_task = asyncio.create_task(say(world, room, "Tell me a story"))
    (one,) = await until(world, lambda rooms: rooms[0].busy)

    assert (one.preview, one.unread) == ("You: Tell me a story", False)
    await (await get_room(world, room)).turns.cancel()
    await turn_task
    assert not (await list_rooms(world))[0].busy


async def test_search_finds_titles_and_messages_and_wakes_no_room(
    world: World,
) -> None:
    trees = await new_room(world, "Why do trees have rings?")
    books = await new_room(world, "What should I read?")
    ann = await world.get_agent(Inbox, "ann")
    await ann.rename(books, "For the holidays")
    await world.crash()
    ann = await world.get_agent(Inbox, "ann")

    results = await ann.search("sapw")
    assert [(one["id"], one["title"]) for one in results] == [
        (trees, "Why do trees have rings?")
    ]
    assert "\x02sapwood\x03" in results[0]["snippet"]
    assert [one["id"] for one in await ann.search("holi")] == [books]
    assert [one["id"] for one in await ann.search("a")] == [books, trees]
    assert [one["id"] for one in await ann.search("tree " * 10_000)] == [trees]
    for query in (
        "tundra",
        "trees tundra",
        "",
        '"',
        "AND OR NEAR(",
        "text:trees",
        "\0",
    ):
        assert await ann.search(query) == []
    awake = {
        str(address) for tree in world.node.trees.values() for address in tree.actors
    }
    assert awake == {"Inbox:ann"}


async def test_a_deleted_room_is_gone_with_its_messages(world: World) -> None:
    room = await new_room(world, "Why do trees have rings?")
    ann = await world.get_agent(Inbox, "ann")

    await ann.delete(room)

    assert not await list_rooms(world)
    assert await ann.search("trees") == []
    with pytest.raises(NotFound):
        await get_room(world, room)
    for gone in (ann.delete(room), ann.mark_seen(room), ann.rename(room, "x")):
        with pytest.raises(Refused, match="no such room"):
            await gone


async def test_the_list_is_limited_and_the_search_is_not(
    world: World, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(house, "MAX_ROOMS", 2)
    for about in ("trees", "books", "rain"):
        await new_room(world, about)

    ann = await world.get_agent(Inbox, "ann")

    assert [room.title for room in await list_rooms(world)] == ["rain", "books"]
    assert [one["title"] for one in await ann.search("trees")] == ["trees"]


async def test_the_inbox_forwards_the_streaming_answer_of_a_room(
    world: World, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(Room, "model", SmallTalk(pause=0.002))
    ann = await world.get_agent(Inbox, "ann")
    room, other = await new_room(world, "Hello"), await ann.create()

    async def listen() -> str:
        return "".join([delta async for delta in ann.listen(room)])

    listening = asyncio.create_task(listen())
    await asyncio.gather(say(world, room, "Tell me a story"), say(world, other, "Hi"))

    answer = (await (await get_room(world, room)).conversation.messages())[-1]
    assert await listening == text_of(answer)


@pytest.mark.parametrize("nth", range(1, 33))
async def test_after_a_crash_at_any_commit_rows_and_rooms_match(
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
    tree = world.app.node.trees[Address.root_of("Inbox", "ann")]
    assert len(rooms) == tree.root_registry.count()
    for room in rooms:
        agent = await get_room(world, room.id)
        texts = [text_of(one) for one in await agent.conversation.messages()]
        assert bool(texts) == bool(room.preview)
        if texts:
            assert plain(texts[-1], 120) in room.preview


async def test_after_a_crash_the_turn_resumes_and_its_answer_is_unread(
    world: World, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(Room, "model", SmallTalk(pause=30))
    ann = await world.get_agent(Inbox, "ann")
    room = await ann.create()
    turn_task = asyncio.create_task(say(world, room, "Tell me a story"))
    await until(world, lambda rooms: rooms[0].busy)

    monkeypatch.setattr(Room, "model", SmallTalk(pause=0))
    await world.crash()
    with suppress(Unavailable):
        await turn_task

    (one,) = await until(world, lambda rooms: not rooms[0].busy)
    assert (one.title, one.unread) == ("Tell me a story", True)
    assert one.preview.startswith("In a house at the end of a street")
    assert len(await (await get_room(world, room)).conversation.messages()) == 2


@pytest.mark.parametrize(
    ("prompts", "answer"),
    [
        (["Hello"], "Say **help**"),
        (["Help"], "Plan a weekend"),
        (["Plan a weekend in Lisbon"], "tram 28"),
        (["My name is Ada"], "Nice to meet you, Ada!"),
        (["What did I say first?"], "Nothing yet"),
        (["Hello", "Thanks", "What did I say first?"], "“Hello”"),
        (["Hello", "Thanks", "Do you remember?"], "- Hello\n- Thanks"),
        (["Quantum gravity"], "I do not understand “Quantum gravity”"),
    ],
)
async def test_the_script_answers_prompts(
    world: World, prompts: list[str], answer: str
) -> None:
    ann = await world.get_agent(Inbox, "ann")
    room = await ann.create()

    answers = [await say(world, room, text) for text in prompts]

    assert answer in answers[-1]


async def test_after_a_failure_the_error_is_reported_and_the_room_is_not_busy(
    world: World,
) -> None:
    ann = await world.get_agent(Inbox, "ann")
    room = await get_room(world, await ann.create())

    turn = await room.send("Fail, please")

    assert "fails on request" in str(turn.error)
    (one,) = await until(world, lambda rooms: not rooms[0].busy)
    assert one.preview == "You: Fail, please"


async def test_rename_keeps_special_characters(world: World) -> None:
    room = await new_room(world, "Tell me a story")
    inbox = await world.get_agent(Inbox, "ann")

    for title in ("C# or F#, snake_case", "a -> b", "2 * 3 * 4", "1. <i>p</i> > q"):
        await inbox.rename(room, f"  {title} ")
        (one,) = await until(world, lambda rooms: True)
        assert one.title == title


def test_a_long_text_is_cut_at_a_word() -> None:
    assert plain("one two, three", 10) == "one two…"
    assert plain("# One `two`\n\nthree", 20) == "One two three"
    assert plain("x" * 30, 10) == "x" * 10 + "…"


async def new_room(world: World, first: str) -> str:
    """Create a room of ann, send a message to it, and return its name."""
    ann = await world.get_agent(Inbox, "ann")
    room = await ann.create()
    await say(world, room, first)
    return room


async def say(world: World, room: str, text: str) -> str:
    """Send a message to a room. Return the answer after the inbox is updated."""
    turn = await (await get_room(world, room)).send(text)
    await until(world, lambda rooms: not any(one.busy for one in rooms))
    return turn.text


async def get_room(world: World, room: str) -> Room:
    return await world.get_agent(Inbox, "ann", sub=[(Room, room)])


async def list_rooms(world: World) -> tuple[RoomInfo, ...]:
    return await (await world.get_agent(Inbox, "ann")).rooms()


async def until(
    world: World, condition: Callable[[tuple[RoomInfo, ...]], bool]
) -> tuple[RoomInfo, ...]:
    """Wait until the list meets the condition, and return it."""
    async with asyncio.timeout(60):
        while True:
            if condition(rooms := await list_rooms(world)):
                return rooms
            await asyncio.sleep(0.002)
