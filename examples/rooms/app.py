"""Rooms to talk in, for everybody who signs in. Run `sapwood dev` here."""

from pathlib import Path

from sapwood import App

from house import Inbox
from porter import Porter, may

porter = Porter()
agents = App(
    agents=[Inbox],
    authenticate=porter,
    authorize=may,
    pages=Path(__file__).with_name("page"),
)
app = porter.around(agents)
