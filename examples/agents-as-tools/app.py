"""An assistant that uses other agents as tools. Run `sapwood dev` here."""

from pathlib import Path

from sapwood import App

from crew import Assistant

app = App(agents=[Assistant], pages=Path(__file__).with_name("page"))
