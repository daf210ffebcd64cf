"""A chat agent with a page. Run `sapwood dev` here."""

from pathlib import Path

from sapwood import App

from assistant import Assistant

app = App(agents=[Assistant], pages=Path(__file__).with_name("page"))
