"""Private chat rooms for users who sign in. Run `sapwood dev` here."""

from pathlib import Path

from sapwood import App

from house import Inbox
from porter import Porter, owns_inbox

porter = Porter()
agents = App(
    agents=[Inbox],
    authenticate=porter,
    authorize=owns_inbox,
    pages=Path(__file__).with_name("page"),
)
app = porter.wrap(agents)
