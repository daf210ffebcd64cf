"""Today's callers use a server of each release: it is played, and answers what it answered when it was recorded."""

from __future__ import annotations

import json
from typing import Any, ClassVar

import pytest
from starlette.requests import Request
from starlette.responses import Response
from tests.compat import fixture_data
from tests.compat.transcripts import SERVED, text_of
from tests.conformance.serving import serving

from sapwood import Agent, App, RemoteSubAgent
from sapwood.testing import running


class Recorded:
    """Answers requests for runs with what a server of the release has answered to them."""

    def __init__(self, transcript: list[dict[str, Any]]) -> None:
        said = [one for one in transcript if "http" in one and one["http"][1].startswith(f"{SERVED}/one/")]
        with_version = [one for one in said if len(one["http"]) > 2]
        self._answers = {(one["http"][0], one["http"][1].rpartition("/")[2][:6]): one["answer"] for one in with_version}
        self.asked: list[tuple[str, str]] = []

    async def __call__(self, scope: Any, receive: Any, send: Any) -> None:
        request = Request(scope, receive)
        what = request.url.path.rpartition("/")[2]
        self.asked.append((request.method, what))
        method = "GET" if what == "stream" else request.method
        answer = self._answers[method, what]
        headers = {"content-type": answer["type"], "sapwood-protocol": "1"}
        await Response(text_of(answer["body"]), answer["status"], headers)(scope, receive, send)


class RemoteOfRelease(RemoteSubAgent):
    """An agent of a server of the release."""

    url: ClassVar[str] = ""


class CallerOfRelease(Agent):
    """Uses it."""

    async def ask(self, words: str) -> tuple[str, Any]:
        run = await self.run_agent(RemoteOfRelease, words)
        return run.status, run.output


@pytest.mark.parametrize("release", fixture_data.RELEASES)
async def test_a_run_at_a_server_of_the_release_is_started_streamed_and_ends(
    release: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    recorded = Recorded(json.loads((fixture_data.HERE / release / "wire.json").read_text()))
    async with serving(recorded) as site, running(App(agents=[CallerOfRelease]), slow_slices="allow") as world:
        monkeypatch.setattr(RemoteOfRelease, "url", f"http://127.0.0.1:{site.port}{SERVED}")
        caller = await world.get_agent(CallerOfRelease, "c")

        assert await caller.ask("there") == ("completed", "there and back")
        assert ("POST", "run") in recorded.asked
        assert ("POST", "stream") in recorded.asked
