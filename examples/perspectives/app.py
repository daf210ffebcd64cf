"""Perspectives, with a page. Run `sapwood dev` here, and open what it says."""

from pathlib import Path

from sapwood import App

from panel import Panel

app = App(agents=[Panel], pages=Path(__file__).with_name("page"))
