"""What the admin API shows of a process: its log, its slow methods, and its cluster."""

from __future__ import annotations

import logging
from collections.abc import Iterator
from typing import Any

import pytest
from tests.unit.admin_requests import LOOK, ask, stream

from sapwood import Agent, App, Refused, Settings
from sapwood.admin.access import FULL, Access, Scope
from sapwood.admin.log_ring import LONGEST, MOST_BYTES, MOST_RECORDS, LogRing
from sapwood.capabilities.redaction import FAILED
from sapwood.kernel.actors.watchdog import RECENT, RecentSlice, SlowSlice
from sapwood.testing import FakeClock, World, running
from sapwood.types import Address

log = logging.getLogger("tests.admin_process")


class AdminLogger(Agent):
    """Logs what it is told to."""

    async def say(self, text: str) -> None:
        log.info("it says %s", text)

    async def grow(self, name: str, text: str) -> None:
        await (await self.sub_agent(AdminLogger, name)).say(text)


@pytest.fixture
def ring() -> Iterator[LogRing]:
    found = LogRing(Settings(), FakeClock())
    found.attach()
    log.setLevel(logging.DEBUG)
    yield found
    found.detach()


async def records(world: World, access: Access = FULL, **params: Any) -> list[dict[str, Any]]:
    async for _, data in stream(world, "logs", access, **params):
        return data["records"]
    raise AssertionError("The stream ended.")


async def logged(world: World) -> None:
    """Log a few records, of two trees and of none."""
    world.node.shared(LogRing).attach()
    log.setLevel(logging.DEBUG)
    try:
        for name in ("a", "b"):
            root = await world.get_agent(AdminLogger, name)
            await root.say(f"hello-{name}")
            await root.grow("x", f"deep-{name}")
        log.warning("of the process")
        try:
            raise ValueError("no")
        except ValueError:
            log.exception("failed", extra={"address": "AdminLogger:a"})
    finally:
        world.node.shared(LogRing).detach()


def messages(found: list[dict[str, Any]]) -> list[str]:
    return [one["message"] for one in found if one["logger"] == log.name]


def test_a_ring_keeps_the_last_records_in_order(ring: LogRing) -> None:
    for number in range(MOST_RECORDS + 500):
        log.info("record %d", number)

    found = ring.after(0, MOST_RECORDS * 2)
    assert len(found) == MOST_RECORDS
    assert [one.number for one in found] == list(range(501, MOST_RECORDS + 501))
    assert found[-1].message == f"record {MOST_RECORDS + 499}"
    assert [one.number for one in ring.after(ring.last - 2, 10)] == [ring.last - 1, ring.last]
    assert [one.number for one in ring.after(600, 2)] == [601, 602]
    assert ring.after(ring.last, 10) == []


def test_the_token_of_the_link_to_the_studio_is_not_kept(ring: LogRing) -> None:
    log.info("studio: %s/studio/#t=%s", "http://127.0.0.1:8000", "a-token_with.all-scopes")

    assert ring.after(0, 1)[0].message == "studio: http://127.0.0.1:8000/studio/#t=<redacted>"


def test_a_ring_is_bounded_in_bytes_and_cuts_long_records(ring: LogRing) -> None:
    for _ in range(MOST_BYTES // LONGEST * 2):
        log.info("%s", "x" * LONGEST * 2)

    found = ring.after(0, MOST_RECORDS)
    assert max(len(one.message) for one in found) == LONGEST
    assert MOST_BYTES - 2 * LONGEST < sum(one.size for one in found) <= MOST_BYTES


def test_a_record_that_cannot_be_formatted_is_kept(ring: LogRing) -> None:
    ring.emit(logging.LogRecord("x", logging.INFO, "", 1, "%d", ("x",), None))

    assert "do not fit" in ring.after(0, 1)[0].message


async def test_records_name_the_agent_that_logged_and_are_selected_by_it_and_by_level() -> None:
    async with running(App(agents=[AdminLogger])) as world:
        await logged(world)

        whole = await records(world)
        assert messages(whole) == [
            "it says hello-a",
            "it says deep-a",
            "it says hello-b",
            "it says deep-b",
            "of the process",
            "failed",
        ]
        tree = await records(world, address="AdminLogger:a")
        assert messages(tree) == ["it says hello-a", "it says deep-a", "failed"]
        assert messages(await records(world, address="AdminLogger:a/AdminLogger:x")) == ["it says deep-a"]
        assert messages(await records(world, level="warning")) == ["of the process", "failed"]
        assert "ValueError: no" in tree[-1]["exception"]
        assert tree[-1]["level"] == "error"


async def test_a_stream_of_records_goes_on_after_the_last_one_that_was_seen() -> None:
    async with running(App(agents=[AdminLogger])) as world:
        await logged(world)
        whole = await records(world)

        assert await records(world, after=whole[1]["number"]) == whole[2:]
        assert await records(world, after={"": whole[2]["number"], "other": 1}) == whole[3:]
        assert await records(world, after=10_000_000) == whole
        events = stream(world, "logs", FULL, after=whole[-1]["number"])
        assert (await anext(events))[1]["records"] == []
        world.node.shared(LogRing).attach()
        log.info("a new one")
        world.node.shared(LogRing).detach()
        assert messages((await anext(events))[1]["records"]) == ["a new one"]


async def test_a_limited_token_sees_the_records_of_its_agents_only() -> None:
    async with running(App(agents=[AdminLogger])) as world:
        await logged(world)
        access = Access("ann", frozenset[Scope](["look", "content"]), Address.parse("AdminLogger:b"))

        assert messages(await records(world, access)) == ["it says hello-b", "it says deep-b"]
        with pytest.raises(Refused):
            await records(world, access, address="AdminLogger:a")
        with pytest.raises(Refused):
            await ask(world, "slow", access)
        with pytest.raises(Refused):
            await records(world, LOOK)


async def test_a_function_for_redaction_that_fails_does_not_make_the_log_grow_by_being_read() -> None:
    def redact(kind: str, text: str) -> str:
        raise ValueError(text)

    async with running(App(agents=[AdminLogger], redact=redact)) as world:
        await logged(world)
        ring = world.node.shared(LogRing)
        ring.attach()
        events = stream(world, "logs", level="warning")
        try:
            _, first = await anext(events)
            failed = ring.last
            _, second = await anext(events)
        finally:
            ring.detach()

        assert ring.last == failed
        assert [one["message"] for one in first["records"]] == [FAILED] * 2
        assert {(one["message"], one["exception"]) for one in second["records"]} == {
            ("App(redact=…) failed kind=log", None)
        }


async def test_slow_methods_are_listed_newest_first_and_their_stack_is_content() -> None:
    async with running(App(agents=[AdminLogger])) as world:
        where = Address.parse("AdminLogger:a")
        for number in range(RECENT + 5):
            slow = SlowSlice(where, f"method_{number}", 0.2, f"in line {number}")
            world.node.watchdog.recent.append(RecentSlice(slow, float(number), 0.5))

        rows = (await ask(world, "slow"))["rows"]
        assert len(rows) == RECENT
        assert rows[0] == {
            "address": "AdminLogger:a",
            "method": "method_54",
            "seconds": 0.5,
            "at": 54.0,
            "worker": "",
            "stack": "in line 54",
        }
        assert (await ask(world, "slow", LOOK))["rows"][0]["stack"] == {"hidden": "string", "length": 10}


async def test_without_a_cluster_there_is_none() -> None:
    async with running(App(agents=[AdminLogger])) as world:
        assert await ask(world, "cluster", LOOK) == {"cluster": None}
