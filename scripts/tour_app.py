"""The agents that `record_tour.py` shows in the studio."""

from __future__ import annotations

from examples.studio_tab import Greenhouse
from tests.browser.studio_app import Desk, Plant

from sapwood import App

app = App(agents=[Desk, Greenhouse, Plant])
