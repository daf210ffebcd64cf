"""Settings may be replaced until the app starts, and not after."""

from __future__ import annotations

from pathlib import Path

import pytest

from sapwood import Agent, App, Settings
from sapwood.errors import UsageError


class Thing(Agent):
    pass


async def test_single_settings_are_replaced_before_the_start(tmp_path: Path) -> None:
    app = App(agents=[Thing], settings=Settings(sleep_after=5))

    app.configure(data=tmp_path / "there")

    async with app:
        assert (app.node.settings.sleep_after, app.node.folder) == (5, tmp_path / "there")
        with pytest.raises(UsageError, match="already running"):
            app.configure(data=tmp_path)


def test_a_wrong_value_is_refused() -> None:
    with pytest.raises(UsageError, match="expected an integer"):
        App(agents=[Thing]).configure(threads="many")
