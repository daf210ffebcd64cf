"""One setting says how long the past is kept, everywhere."""

from __future__ import annotations

import pytest

from sapwood import Agent, App, Settings
from sapwood.cli import server_process
from sapwood.cli.app_loader import LoadedApp
from sapwood.cli.serve_options import ServeOptions


class Kept(Agent):
    """An agent."""


@pytest.mark.parametrize(
    ("settings", "seconds"),
    [
        (Settings(), 0.0),
        (Settings(history=60), 60.0),
        (Settings(durability="replicated", nats="nats://a", archive="s3://b"), 7 * 86400.0),
        (Settings(durability="replicated", nats="nats://a", archive="s3://b", history=0), 0.0),
    ],
)
def test_a_history_is_off_but_in_a_cluster_unless_it_is_set(settings: Settings, seconds: float) -> None:
    assert settings.history_seconds == seconds


@pytest.mark.parametrize(
    ("history", "dev", "seconds"), [(None, True, 86400.0), (0, True, 0.0), (60, True, 60.0), (None, False, 0.0)]
)
def test_dev_keeps_a_day_unless_it_is_set(
    history: float | None, dev: bool, seconds: float, monkeypatch: pytest.MonkeyPatch
) -> None:
    app = App(agents=[Kept], settings=Settings(history=history))
    monkeypatch.setattr(server_process, "load", lambda *target, **given: LoadedApp(app, app))
    monkeypatch.setattr(server_process, "log_server", lambda options: None)
    loaded = server_process._loaded(ServeOptions("app", "127.0.0.1", 0, dev=dev))  # pyright: ignore[reportPrivateUsage]
    assert loaded.app.settings.history_seconds == seconds
