"""Today's server answers a client of each release, and today's node understands one of each release."""

from __future__ import annotations

import json
from copy import deepcopy
from typing import Any

import pytest
from tests.compat import fixture_data, messages, transcripts

from sapwood.errors import Refused
from sapwood.kernel.marshal.failures import unpack_error
from sapwood.runtimes.workers.frames import FrameReader, read_credit

pytestmark = [pytest.mark.parametrize("release", fixture_data.RELEASES)]


def read(release: str, name: str) -> Any:
    return json.loads((fixture_data.HERE / release / name).read_text())


async def test_the_server_answers_a_client_of_the_release(release: str) -> None:
    released: list[dict[str, Any]] = read(release, "wire.json")

    now = await transcripts.play(released)

    found: list[str] = []
    for before, after in zip(released, now, strict=True):
        what = str(before.get("socket") or before.get("http") or before.get("admin"))
        found += [f"{what}: {one}" for one in transcripts.differences(before["answer"], after["answer"])]
    assert found == []


def filled(transcript: Any) -> Any:
    """Return a transcript with values in place of the marks."""
    if isinstance(transcript, dict):
        if transcripts.ANY in transcript:
            return {"str": "a text", "int": 7, "float": 7.5}[transcript[transcripts.ANY]]
        return {key: filled(value) for key, value in transcript.items()}
    return [filled(one) for one in transcript] if isinstance(transcript, list) else transcript


def first_of(transcript: list[dict[str, Any]], kind: str) -> dict[str, Any]:
    return next(frame for one in transcript if "socket" in one for frame in one["answer"] if frame["type"] == kind)


def test_a_changed_frame_would_be_noticed_and_an_addition_would_not(release: str) -> None:
    released = read(release, "wire.json")
    renamed, other, more, removed = (filled(released) for _ in range(4))
    identity = first_of(renamed, "cf_agent_identity")
    identity["title"] = identity.pop("name")
    first_of(other, "cf_agent_use_chat_response")["done"] = "no"
    more[0]["answer"][0]["extra"] = 1
    more[1]["answer"].insert(2, {"type": "cf_agent_new"})
    removed[1]["answer"].pop()

    assert [one for one in transcripts.differences(released, renamed) if "name is missing" in one]
    assert [one for one in transcripts.differences(released, other) if ".done: expected" in one]
    assert [one for one in transcripts.differences(released, removed) if "items, got" in one]
    assert list(transcripts.differences(released, more)) == []


def test_every_message_between_nodes_and_in_the_log_can_be_read_by_the_release(release: str) -> None:
    assert messages.problems(read(release, "messages.json"), messages.forms()) == []


def written_as(released: dict[str, str]) -> list[str]:
    return [released[name] for name in ("opening", "credit", "last")]


def test_frames_between_nodes_are_read_and_written_as_by_the_release(release: str) -> None:
    released = read(release, "frames.json")
    written = [bytes.fromhex(one) for one in written_as(released)]

    reader = FrameReader()
    found = [frame for one in written for frame in reader.read(one)]
    assert [kind for _, kind, _ in found] == [released["kinds"][name] for name in ("OPEN", "CREDIT", "LAST")]
    assert read_credit(found[1][2]) == 5
    error = unpack_error(bytes.fromhex(released["error"]))
    assert (type(error), str(error)) == (Refused, "not now")
    now = messages.frames()
    assert released["kinds"].items() <= now["kinds"].items()
    assert [now[name] for name in ("opening", "credit", "last", "version")] == [
        *written_as(released),
        released["version"],
    ]


def test_a_changed_message_would_be_noticed_and_a_field_at_its_end_would_not(release: str) -> None:
    released = read(release, "messages.json")
    swapped, shorter, longer, required = (deepcopy(released) for _ in range(4))
    swapped["CallRequest"][:2] = reversed(swapped["CallRequest"][:2])
    shorter["Message"].pop()
    longer["Message"].append(["extra", "int", False])
    required["Message"].append(["extra", "int", True])

    assert [one.partition(":")[0] for one in messages.problems(released, swapped)] == ["CallRequest"]
    assert [one.partition(":")[0] for one in messages.problems(released, shorter)] == ["Message"]
    assert messages.problems(released, required) == ["Message.extra has no default"]
    assert messages.problems(released, longer) == []
