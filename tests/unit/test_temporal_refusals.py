"""What a worker makes of a refusal: only what the agents themselves say ends a workflow."""

from __future__ import annotations

from typing import Any

import pytest

pytest.importorskip("temporalio")

import httpx2

from sapwood.drivers.temporal.worker import refusal


def answered(status: int, body: Any) -> httpx2.Response:
    return httpx2.Response(status, json=body, request=httpx2.Request("POST", "http://app/_driver/step"))


@pytest.mark.parametrize(("status", "code"), [(404, "not_found"), (400, "invalid_arguments")])
def test_what_agents_say_is_final(status: int, code: str) -> None:
    failure = refusal(answered(status, {"error": "no", "code": code}))

    assert failure.non_retryable
    assert failure.type == code


@pytest.mark.parametrize(
    ("status", "body"),
    [
        (400, "a plain request was sent to an HTTPS port"),
        (401, {"error": "This request needs the driver's token.", "code": "unauthorized"}),
        (404, {"code": 404, "message": "no such route"}),
        (408, None),
        (413, []),
        (429, {"error": "It holds too much.", "code": "over_limit"}),
        (503, {"error": "It restarts.", "code": "unavailable"}),
    ],
)
def test_what_may_pass_is_asked_again(status: int, body: Any) -> None:
    assert not refusal(answered(status, body)).non_retryable
