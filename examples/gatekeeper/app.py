"""A database that changes only after a person's approval. Run `sapwood dev` here."""

from pathlib import Path

from sapwood import App

from gate import Gatekeeper

app = App(agents=[Gatekeeper], pages=Path(__file__).with_name("page"))
