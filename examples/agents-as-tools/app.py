"""Agents as tools, with a page. Run `sapwood dev` here, and open what it says."""

from pathlib import Path

from sapwood import App

from crew import Assistant

app = App(agents=[Assistant], pages=Path(__file__).with_name("page"))
