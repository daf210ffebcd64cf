"""Three specialists discuss one question. Run `sapwood dev` here."""

from pathlib import Path

from sapwood import App

from panel import Panel

app = App(agents=[Panel], pages=Path(__file__).with_name("page"))
