"""`sapwood temporal worker` from outside: what it needs it says in a sentence, and what is away it waits for."""

from __future__ import annotations

import re
import signal
from collections.abc import Iterator
from pathlib import Path

import pytest
from tests.e2e.command import going_on, sapwood, serving
from tests.temporal.cluster import Temporal

APP = """
import os
from sapwood import App, ChatAgent
from sapwood.drivers.temporal import TemporalDriver
from sapwood.testing import ScriptedModel, text

class Parrot(ChatAgent):
    model = ScriptedModel(text("Hello."))

driver = TemporalDriver(os.environ.get("TEMPORAL", "127.0.0.1:1"), token=os.environ.get("TOKEN", "one"), patience=2.0)
app = App(agents=[Parrot], driver=driver)
"""
WORKER = ("temporal", "worker", "app:app", "--url")
NOWHERE = "http://127.0.0.1:9"
WORKING = re.compile(r"worker polls the queue 'sapwood'")
WAITING = re.compile(r"connecting to Temporal at \S+, namespace 'default' failed, retrying")


@pytest.fixture
def project(tmp_path: Path) -> Path:
    (tmp_path / "app.py").write_text(APP)
    return tmp_path


@pytest.fixture
def temporal(tmp_path: Path) -> Iterator[Temporal]:
    server = Temporal(tmp_path, tmp_path / "temporal")
    yield server
    server.end(signal.SIGKILL)


@pytest.mark.parametrize("url", ["localhost:8000", pytest.param("http://here:eight", marks=pytest.mark.nightly)])
def test_a_url_that_is_none_is_a_sentence(project: Path, url: str) -> None:
    done = sapwood(project, *WORKER, url)

    assert (done.returncode, done.stderr) == (
        1,
        f"error: --url must be the URL of a server, such as http://127.0.0.1:8000, got {url!r}.\n",
    )


def test_an_app_that_nothing_drives_is_a_sentence(project: Path) -> None:
    (project / "plain.py").write_text("from sapwood import App\napp = App(agents=[])")

    done = sapwood(project, "temporal", "worker", "plain:app")

    assert (done.returncode, done.stderr) == (
        1,
        "error: plain:app has no TemporalDriver. Set App(…, driver=TemporalDriver(token=…)).\n",
    )


def test_without_the_extra_app_and_worker_say_which_is_missing(project: Path) -> None:
    # As on a machine where the extra is not installed.
    (project / "temporalio.py").write_text("raise ModuleNotFoundError('No module', name='temporalio')")

    for command in (["serve", "app:app"], ["temporal", "worker", "app:app"]):
        done = sapwood(project, *command)

        assert done.returncode == 1
        assert done.stderr.endswith(
            "error: TemporalDriver needs the Temporal client. Install it with: pip install 'sapwood[temporal]'.\n"
        )
        assert "Traceback" not in done.stderr


def test_a_worker_waits_for_temporal_and_ends_when_told_to(project: Path, temporal: Temporal) -> None:
    temporal.end(signal.SIGTERM)

    with going_on(project, *WORKER, NOWHERE, TEMPORAL=temporal.host) as worker:
        worker.wait_for(WAITING)
        temporal.start()
        worker.wait_for(WORKING)

        assert worker.stop() == 0
    assert "Traceback" not in "".join(worker.said)


def test_a_worker_that_waits_for_temporal_can_be_stopped(project: Path) -> None:
    with going_on(project, *WORKER, NOWHERE) as worker:
        worker.wait_for(WAITING)

        assert worker.stop() == 0
    assert sum(bool(WAITING.search(line)) for line in worker.said) == 1
    assert "Traceback" not in "".join(worker.said)


@pytest.mark.nightly
def test_a_worker_waits_for_a_namespace_and_says_so(project: Path, temporal: Temporal) -> None:
    app = APP.replace("patience=2.0", "namespace='elsewhere'")
    (project / "app.py").write_text(app)

    with going_on(project, *WORKER, NOWHERE, TEMPORAL=temporal.host) as worker:
        worker.wait_for(re.compile(r"namespace 'elsewhere' failed, retrying: .*elsewhere"))

        assert worker.stop() == 0
    assert "Traceback" not in "".join(worker.said)


@pytest.mark.nightly
def test_a_worker_with_another_token_says_so_and_the_turn_goes_on_with_the_right_one(
    project: Path, temporal: Temporal
) -> None:
    with serving(project, "serve", "app:app", TEMPORAL=temporal.host) as server:
        url = f"http://127.0.0.1:{server.port}"
        with going_on(project, "call", "Parrot:a", "send", "Hello?") as call:
            with going_on(project, *WORKER, url, TEMPORAL=temporal.host, TOKEN="another") as worker:
                worker.wait_for(re.compile("server refused the worker's token .*with the same token"))
                assert worker.stop() == 0
            assert call.process.poll() is None

            with going_on(project, *WORKER, url, TEMPORAL=temporal.host) as worker:
                assert call.process.wait(60) == 0
                assert worker.stop() == 0


@pytest.mark.nightly
def test_a_server_that_is_away_is_one_line_and_one_when_it_is_back(project: Path, temporal: Temporal) -> None:
    with serving(project, "serve", "app:app", TEMPORAL=temporal.host) as server:
        url = f"http://127.0.0.1:{server.port}"
        with going_on(project, "call", "Parrot:a", "send", "Hello?"):
            server.wait_for(re.compile("no worker has requested the next step of Parrot:a"))
            server.stop()

    with going_on(project, *WORKER, url, TEMPORAL=temporal.host) as worker:
        worker.wait_for(re.compile("server at .* does not answer"))
        with serving(project, "serve", "app:app", "--port", str(server.port), TEMPORAL=temporal.host):
            worker.wait_for(re.compile("the server at .* answers again"))
        assert worker.stop() == 0
    assert "Traceback" not in "".join(worker.said)
