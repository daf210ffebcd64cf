"""A model answers with Python code that runs in a sandbox. Run `sapwood dev` here."""

from pathlib import Path

from sapwood import App

from lab import Lab

app = App(agents=[Lab], pages=Path(__file__).with_name("page"))
