"""A log as JSON has one object per line, says where a record belongs, and tells no more than the text."""

from __future__ import annotations

import json
import logging
import sys
from collections.abc import Iterator
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import pytest

from sapwood import Agent, App, ChatAgent, agent_tool, tool
from sapwood.cli.json_log import JsonFormatter, log_uncaught
from sapwood.cli.serve_options import ServeOptions
from sapwood.cli.server_log import errors_in_log, set_client_levels
from sapwood.errors import UsageError
from sapwood.testing import ScriptedModel, call, running, text
from sapwood.types import Address

log = logging.getLogger("tests.json_log")
HOSTILE = "a\nb\r\u2028\u2029\x85\x7f\x1b]0;\x9b\ud800 \U0001f332"


class Lines(logging.Handler):
    """Collects the lines of a log."""

    def __init__(self) -> None:
        super().__init__()
        self.setFormatter(JsonFormatter(worker=3))
        self.lines: list[str] = []

    def emit(self, record: logging.LogRecord) -> None:
        self.lines.append(self.format(record))

    @property
    def records(self) -> list[dict[str, Any]]:
        return [json.loads(line) for line in self.lines]


@pytest.fixture
def lines() -> Iterator[Lines]:
    handler, root = Lines(), logging.getLogger()
    level = root.level
    root.addHandler(handler)
    root.setLevel(logging.INFO)
    yield handler
    root.removeHandler(handler)
    root.setLevel(level)


def test_a_record_has_time_level_logger_message_and_facts(lines: Lines) -> None:
    log.warning("order %s shipped", 17, extra={"address": "Desk:a", "count": 2})

    (record,) = lines.records
    assert datetime.fromisoformat(record.pop("time")).tzinfo == UTC
    assert record == {
        "level": "warning",
        "logger": "tests.json_log",
        "message": "order 17 shipped",
        "worker": 3,
        "address": "Desk:a",
        "count": 2,
    }


def test_no_text_breaks_a_line_or_controls_a_terminal() -> None:
    error = ValueError(HOSTILE)
    record = logging.LogRecord("app", logging.ERROR, "", 0, "failed: %s", (HOSTILE,), (ValueError, error, None))
    record.__dict__.update({"fact": HOSTILE, HOSTILE: 1})  # formatted here: pytest cannot report such a line
    record.stack_info = f"Stack (most recent call last):\n{HOSTILE}"

    line = JsonFormatter().format(record)

    assert line.isascii()
    assert line.isprintable()
    found = json.loads(line)
    assert found["message"] == f"failed: {HOSTILE}"
    assert found["fact"] == HOSTILE
    assert found[HOSTILE] == 1
    assert HOSTILE in found["exception"]
    assert found["stack"].endswith(HOSTILE)


def test_a_traceback_is_one_string(lines: Lines) -> None:
    try:
        raise ValueError("two\nlines")
    except ValueError:
        log.exception("failed")

    (record,) = lines.records
    assert record["exception"].startswith("Traceback (most recent call last):\n")
    assert record["exception"].endswith("ValueError: two\nlines")


class Secret:
    def __repr__(self) -> str:
        return "token=s3cret"


def test_facts_are_plain_values_and_an_object_shows_only_its_class(lines: Lines) -> None:
    circle: list[Any] = []
    circle.append(circle)
    facts = {
        "path": Path("/data"),
        "agent": Address.root_of("Desk", "a"),
        "nested": {"numbers": (1, 2.5), 3: None},
        "infinite": float("inf"),
        "huge": 10**5000,
        "secret": Secret(),
        "circle": circle,
        "color_message": "again",
    }

    log.info("facts", extra=facts)

    (record,) = lines.records
    assert record["path"] == "/data"
    assert record["agent"] == "Desk:a"
    assert record["nested"] == {"numbers": [1, 2.5], "3": None}
    assert record["infinite"] == "inf"
    assert record["huge"] == "<int>"
    assert record["secret"] == "<Secret>"
    assert record["circle"] == [[["<list>"]]]
    assert "color_message" not in record


def test_a_fact_replaces_no_field_of_the_record(lines: Lines) -> None:
    log.info("hello", extra={"level": "none", "time": 0, "logger": "x", "worker": 9})

    (record,) = lines.records
    assert (record["level"], record["logger"], record["worker"]) == ("info", "tests.json_log", 3)
    assert (record["level_"], record["time_"], record["logger_"], record["worker_"]) == ("none", 0, "x", 9)


def test_a_message_whose_arguments_do_not_fit_is_not_lost() -> None:
    line = JsonFormatter().format(logging.LogRecord("app", logging.INFO, "", 0, "%d apples", ("many",), None))

    assert json.loads(line)["message"] == "%d apples (arguments do not fit the message)"


class LoggedHelper(Agent):
    async def on_run(self, what: str) -> str:
        log.info("helping")
        return what


class LoggedDesk(ChatAgent):
    model = ScriptedModel(call("note"), call("logged_helper", message="x"), text("done"), each=True)
    tools = (agent_tool(LoggedHelper, name="logged_helper", description="Helps."),)

    @tool
    async def note(self) -> str:
        """Note something."""
        log.info("noting")
        return "noted"


async def test_a_line_of_an_agent_has_its_address_and_its_turn_or_run(lines: Lines) -> None:
    async with running(App(agents=[LoggedDesk])) as world:
        turn = await (await world.get_agent(LoggedDesk, "d")).send("go")

    found = {record["message"]: record for record in lines.records}
    assert found["noting"]["address"] == "LoggedDesk:d"
    assert found["noting"]["turn"] == turn.id
    assert found["helping"]["address"].startswith("LoggedDesk:d/LoggedHelper:")
    assert found["helping"]["run"]
    assert "turn" not in found["helping"]


def test_a_line_in_a_span_has_its_trace(lines: Lines) -> None:
    trace = pytest.importorskip("opentelemetry.trace")
    span = trace.NonRecordingSpan(trace.SpanContext(0xABC, 0xDEF, is_remote=False))
    with trace.use_span(span):
        log.info("within")
    log.info("after")

    within, after = lines.records
    assert (within["trace_id"], within["span_id"]) == (f"{0xABC:032x}", f"{0xDEF:016x}")
    assert "trace_id" not in after


def test_warnings_and_uncaught_exceptions_are_records(lines: Lines, monkeypatch: pytest.MonkeyPatch) -> None:
    for name in ("excepthook", "unraisablehook"):
        monkeypatch.setattr(sys, name, getattr(sys, name))
    monkeypatch.setattr("threading.excepthook", None)
    try:
        log_uncaught()
        sys.excepthook(ValueError, ValueError("broken"), None)
        sys.excepthook(KeyboardInterrupt, KeyboardInterrupt(), None)
    finally:
        logging.captureWarnings(False)

    (record,) = lines.records
    assert (record["level"], record["exception"]) == ("critical", "ValueError: broken")


def test_an_error_that_ends_a_server_is_a_record(lines: Lines, capsys: pytest.CaptureFixture[str]) -> None:
    options = ServeOptions("app:app", "127.0.0.1", 0, log="json")

    with pytest.raises(SystemExit) as ended, errors_in_log(options):
        raise UsageError("Two\nlines.")

    assert ended.value.code == 1
    assert lines.records[0]["message"] == "Two\nlines."
    assert capsys.readouterr().err == ""


@pytest.mark.parametrize(("level", "logged"), [("info", []), ("debug", ["HTTP Request: POST"])])
def test_requests_of_the_app_are_logged_at_the_level_debug(level: str, logged: list[str], lines: Lines) -> None:
    client = logging.getLogger("httpx")
    try:
        set_client_levels(level)
        client.info("HTTP Request: POST")
        client.warning("slow")
    finally:
        client.setLevel(logging.NOTSET)

    assert [record["message"] for record in lines.records] == [*logged, "slow"]
