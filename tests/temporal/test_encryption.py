"""With a codec, Temporal keeps nothing that can be read but ids, search attributes and the codes of errors."""

from __future__ import annotations

import asyncio
import json
from base64 import b64decode
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from cryptography.fernet import Fernet
from encryption import ENCODING, encrypting_converter
from temporalio.client import Client, WorkflowHistory
from temporalio.converter import DataConverter
from tests.conformance.serving import serving
from tests.temporal.cluster import TOKEN, Temporal
from tests.temporal.scenes import SCENES, SceneDesk, Stage, histories, until, worked

from sapwood import App, Settings
from sapwood.drivers.temporal import TemporalDriver
from sapwood.drivers.temporal.worker import work

READABLE = ("Scene", "turn-", "agent-tool", "running", "completed", "step", "enough", "out of order", "sapwood/")
"""What would be read in payloads without a codec, or in messages of failures."""


async def kept_of(scenes: list[str], temporal: Temporal, folder: Path, **options: Any) -> list[Any]:
    """Play scenes; return what Temporal keeps of them, as it keeps it."""
    kept: list[Any] = []
    for name in scenes:
        driver = TemporalDriver(temporal.host, token=TOKEN, queue=f"sealed {name}", look=0.3, options=options)
        app = App(agents=[SceneDesk], driver=driver, settings=Settings(data=folder / name))
        async with worked(app):
            stage = Stage(app, await driver.connect(), name)
            await SCENES[name][0](stage)
            bare = await Client.connect(temporal.host)
            kept += [json.loads(one.to_json()) for one in await histories(bare, stage.workflow.id)]
    return kept


def objects(value: Any) -> Iterator[dict[str, Any]]:
    """Give every object of a history; those of search attributes are left out."""
    if isinstance(value, list):
        for one in value:
            yield from objects(one)
    elif isinstance(value, dict):
        yield value
        yield from objects([below for key, below in value.items() if key != "searchAttributes"])


def payloads(kept: Any) -> list[tuple[bytes, bytes]]:
    """Return how each payload is encoded, and its bytes."""
    found = [(one["metadata"], one.get("data", "")) for one in objects(kept) if "metadata" in one]
    return [(b64decode(metadata["encoding"]), b64decode(data)) for metadata, data in found]


def texts(kept: Any, name: str) -> set[str]:
    """Return the texts that stand under a name."""
    return {one[name] for one in objects(kept) if isinstance(one.get(name), str)}


@pytest.mark.nightly
async def test_no_payload_and_no_failure_can_be_read_without_the_key(temporal: Temporal, tmp_path: Path) -> None:
    keys = [Fernet.generate_key().decode()]
    scenes = ["children", "failed", "approved", "interrupted"]

    kept = await kept_of(scenes, temporal, tmp_path, data_converter=encrypting_converter(keys))

    found = payloads(kept)
    assert len(found) > 30
    assert {encoding for encoding, _ in found} == {ENCODING}
    assert [data for _, data in found for text in READABLE if text.encode() in data] == []
    assert texts(kept, "message") == {"Encoded failure"}
    assert texts(kept, "stackTrace") == set()


async def test_ids_search_attributes_and_codes_of_errors_can_be_read_all_the_same(
    temporal: Temporal, tmp_path: Path
) -> None:
    keys = [Fernet.generate_key().decode()]

    kept = await kept_of(["failed"], temporal, tmp_path, data_converter=encrypting_converter(keys))

    assert any(id.startswith("SceneDesk:failed turn-") for id in texts(kept, "workflowId"))
    attributes = kept[0]["events"][0]["workflowExecutionStartedEventAttributes"]["searchAttributes"]["indexedFields"]
    assert json.loads(b64decode(attributes["SapwoodPath"]["data"])) == "SceneDesk:failed"
    assert texts(kept, "type") == {"failed"}


async def test_what_was_sealed_with_an_old_key_or_with_none_is_read_after_a_change() -> None:
    old, new = Fernet.generate_key().decode(), Fernet.generate_key().decode()
    open_, sealed_by_old = await DataConverter.default.encode(["a"]), await encrypting_converter([old]).encode(["b"])

    assert await encrypting_converter([new, old]).decode([*open_, *sealed_by_old]) == ["a", "b"]


async def test_a_turn_waits_while_only_workers_without_the_key_are_there(temporal: Temporal, tmp_path: Path) -> None:
    def driver(**options: Any) -> TemporalDriver:
        return TemporalDriver(temporal.host, token=TOKEN, queue="sealed keys", patience=2.0, options=options)

    app = App(
        agents=[SceneDesk],
        driver=driver(data_converter=encrypting_converter([Fernet.generate_key().decode()])),
        settings=Settings(data=tmp_path / "data"),
    )
    async with app, serving(app) as site:
        stage, without = Stage(app, await Client.connect(temporal.host), "one-step"), asyncio.Event()
        url = f"http://127.0.0.1:{site.port}"
        wrong = asyncio.create_task(work(driver(), url, without))
        asking = asyncio.create_task(stage.ask())
        await until(lambda: bool(stage.driver.paces))
        (stage.turn,) = (id for _, id in stage.driver.paces)
        await stage.until_event(failed_tasks, 1)
        without.set()
        await wrong
        assert not asking.done()

        with_key = asyncio.Event()
        right = asyncio.create_task(work(stage.driver, url, with_key))

        await asking
        assert (await (await stage.desk()).turns.wait(stage.turn)).status == "completed"
        with_key.set()
        await right


def failed_tasks(history: WorkflowHistory) -> int:
    return sum(event.HasField("workflow_task_failed_event_attributes") for event in history.events)
