"""Today's code opens what each release has stored, and ends the work that was left unfinished in it."""

from __future__ import annotations

import json
from copy import deepcopy
from datetime import timedelta
from pathlib import Path
from typing import Any

import pytest
from tests.compat import fixture_data
from tests.compat.office_app import LARGE, MODELS, CompatLead, CompatLong, CompatOffice, CompatTalker, app
from tests.conformance import replicated

from sapwood import with_options
from sapwood.cli import deployment_check
from sapwood.testing import ScriptedModel, World, call, running, text

pytestmark = [pytest.mark.parametrize("release", fixture_data.RELEASES)]


def manifest(release: str) -> dict[str, Any]:
    return json.loads((fixture_data.HERE / release / "manifest.json").read_text())


async def use_office(world: World) -> None:
    """Read what plain agents have stored, answer the question, and let the time come for what was planned."""
    office = await world.get_agent(CompatOffice, "main")
    before = await office.notes()
    assert before[0] == "written"
    assert before.count("drew north") == 1
    assert await office.schedules_and_letters() == (3, 1)
    assert await office.file("small.txt") == b"small"
    assert await office.file("large.bin") == LARGE
    assert await office.shelf() == 3

    (question,) = await office.questions.list()
    assert question.prompt == "Which color?"
    assert await office.questions.answer(question, "red")
    await world.clock.advance(timedelta(days=60))

    notes = await office.notes()
    assert {"scheduled", "every month", "every night", "answered red", "toured map of north", "a/b has 3"} <= {*notes}
    assert notes.count("drew north") == 1


async def use_chats(world: World) -> None:
    """Read conversations, approve what waits, and see an interrupted turn to its end."""
    texts: dict[str, list[str]] = {}
    for name in ("finished", "failed", "interrupted", "waiting", "forked", "approved"):
        talker = await world.get_agent(CompatTalker, name)
        if name in ("waiting", "forked"):
            assert await talker.questions.approve("p1")
        await world.settled()
        texts[name] = [_text_of(message) for message in await talker.conversation.messages()]
        if name in ("interrupted", "finished"):
            word = "bark" if name == "interrupted" else "sap"
            assert await talker.acts() == [f"looked up {word}"]
        if name == "waiting":
            assert await talker.acts() == ["paid 5"]
    assert texts["finished"] == ["go", "It is wood."]
    assert texts["failed"][0] == "go"
    assert texts["interrupted"] == ["go", "It is a skin."]
    assert texts["waiting"] == texts["forked"] == texts["approved"] == ["go", "Paid."]

    long = await world.get_agent(CompatLong, "compacted")
    assert [_text_of(message) for message in await long.conversation.messages()][::2] == ["one", "two", "three"]
    assert len(await long.conversation.search("word")) == 3
    assert (await long.send("four")).status == "completed"


async def use_runs(world: World) -> None:
    """Answer the question of the lowest of three levels, and see all of them end."""
    lead = await world.get_agent(CompatLead, "asking")
    (question,) = await lead.questions.list()
    assert [step.type for step in question.path] == ["CompatPlanner", "CompatBuyer"]
    assert await lead.questions.approve(question)
    await world.settled()
    for name in ("asking", "asked"):
        lead = await world.get_agent(CompatLead, name)
        _, answer = await lead.conversation.messages()
        assert _text_of(answer) == "Done."


def _text_of(message: Any) -> str:
    return "".join(part["text"] for part in message["parts"] if part["type"] == "text")


@pytest.fixture
def models(monkeypatch: pytest.MonkeyPatch) -> None:
    """Let the interrupted request come to an end this time."""
    answers = ScriptedModel(call("look_up", {"word": "bark"}, id="l2"), text("It is a skin."), each=True)
    monkeypatch.setitem(MODELS, "interrupted", answers)


@pytest.mark.usefixtures("models")
async def test_a_data_folder_is_read_and_its_work_is_finished(release: str, tmp_path: Path) -> None:
    data = fixture_data.unpack(release, "local", tmp_path / "data")
    assert fixture_data.rows(data) == manifest(release)["rows"]
    report = deployment_check.examine(data, app)
    assert (report.misfits, report.odd) == ([], [])

    async with running(app, data=data, slow_slices="allow") as world:
        office = await world.get_agent(CompatOffice, "main")
        await with_options(office, idempotency_key="once").note("noted once")
        assert (await office.notes()).count("noted once") == 1
        await use_chats(world)
        await use_runs(world)
        await use_office(world)

    assert deployment_check.examine(data, app).misfits == []


@pytest.mark.usefixtures("models")
async def test_the_log_and_the_archive_of_a_cluster_are_read_and_their_work_is_finished(
    release: str, tmp_path: Path
) -> None:
    data = tmp_path / "data"
    replicated.put_storage(data, fixture_data.unpack_cluster(release))

    async with replicated.running_replicated(app, data=data, slow_slices="allow") as world:
        office = await world.get_agent(CompatOffice, "main")
        assert (await office.notes()).count("behind the snapshot") == 1
        await use_chats(world)
        await use_runs(world)
        await use_office(world)


async def test_the_folder_of_workers_is_read_by_one_process(release: str, tmp_path: Path) -> None:
    data = fixture_data.unpack(release, "workers", tmp_path / "data")
    assert (data / "workers").exists()

    async with running(app, data=data, slow_slices="allow") as world:
        await use_office(world)

    assert not (data / "workers").exists()


def test_no_released_script_was_edited_or_removed(release: str) -> None:
    assert fixture_data.edited(manifest(release)["scripts"], fixture_data.scripts()) == []


def test_an_edited_or_removed_script_would_be_noticed(release: str) -> None:
    released = manifest(release)["scripts"]
    edited, removed, added = deepcopy(released), deepcopy(released), deepcopy(released)
    edited["fibers"][0] = "0" * 64
    del removed["runs"][0]
    added["runs"].append("0" * 64)

    assert fixture_data.edited(released, edited) == ["fibers 1"]
    assert fixture_data.edited(released, removed)[0] == "runs 1"
    assert fixture_data.edited(released, added) == []


def test_no_column_that_a_release_has_stored_is_gone(release: str) -> None:
    now = fixture_data.layout()

    gone = {
        table: missing
        for table, columns in manifest(release)["tables"].items()
        if (missing := [column for column in columns if column not in now.get(table, ())])
    }

    assert gone == {}


NOT_STORED = {
    "sapwood_cleared_runs": "of runs that were deleted",
    "sapwood_former_addresses": "of a tree that was moved",
    "sapwood_limit_extensions": "of a budget that a person may extend",
    "sapwood_limit_waits": "as above",
    "sapwood_limit_warnings": "of a class with the hook on_limit_near",
    "sapwood_mcp_sign_ins": "lives for the minutes of a sign-in",
    "sapwood_nested_events": "of remote runs, which need a second server",
    "sapwood_nested_position": "as above",
    "sapwood_remote_secret": "as above",
    "sapwood_remote_sessions": "as above",
    "sapwood_object_folder": "of a cluster: in the cluster's fixture",
    "sapwood_objects": "as above",
    "sapwood_openai_responses": "of requests by the OpenAI API",
    "sapwood_turn_names": "of turns that a protocol began",
    "sapwood_uploads": "lives until an upload is complete",
}


def test_the_fixture_has_rows_of_every_table_but_these(release: str) -> None:
    kept = manifest(release)

    assert {table for table in kept["tables"] if not kept["rows"].get(table)} <= {*NOT_STORED}
