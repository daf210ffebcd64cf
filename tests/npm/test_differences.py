"""The comparison finds what differs, and the table is held to it."""

from __future__ import annotations

from typing import Any

from tests.npm.differences import ABSENT, Row, differences, fits

GREETING = {"type": "hello"}


def transcript(*received: object, seen: object = 1, closed: str = "1000") -> dict[str, Any]:
    socket = {"path": "/", "sent": [], "received": list(received), "closed": closed}
    return {"scene": {"clients": {"ann": [socket]}, "seen": {"what": seen}, "failures": []}}


def test_equal_transcripts_do_not_differ() -> None:
    assert differences(transcript(GREETING), transcript(GREETING)) == {}


def test_a_missing_frame_is_one_difference_whatever_follows_it() -> None:
    theirs, ours = transcript({"type": "extra"}, GREETING, {"n": 1}), transcript(GREETING, {"n": 1})

    assert differences(theirs, ours) == {"scene/ann/0/received/0": ('{"type":"extra"}', ABSENT)}


def test_what_is_seen_and_how_it_ends_is_compared() -> None:
    theirs, ours = transcript(seen=[1], closed="1006"), transcript(seen=[2], closed="1012")

    assert differences(theirs, ours) == {"scene/seen/what": ("[1]", "[2]"), "scene/ann/0/closed": ('"1006"', '"1012"')}


def test_a_client_that_only_one_server_let_in_is_a_difference() -> None:
    alone = transcript(GREETING)
    alone["scene"]["clients"] = {}

    assert differences(transcript(GREETING), alone)["scene/ann/0/received/0"] == ('{"type":"hello"}', ABSENT)


def test_a_row_is_about_a_difference_only_if_place_and_both_values_fit() -> None:
    row = Row("scene/*/closed", '"10*"', '["a?"]', "why")

    assert fits(row, "scene/ann/0/closed", ('"1006"', '["a?"]'))
    assert not fits(row, "scene/ann/0/closed", ('"1006"', '["ab"]'))
    assert not fits(row, "scene/ann/0/closed", ('"4404"', '["a?"]'))
    assert not fits(row, "other/ann/0/closed", ('"1006"', '["a?"]'))
