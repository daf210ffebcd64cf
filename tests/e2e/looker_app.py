"""The app of the tests of large frames, for servers in processes of their own."""

from sapwood import App, ChatAgent
from sapwood.testing import ScriptedModel, text


class Looker(ChatAgent):
    model = ScriptedModel(text("nice"))


app = App(agents=[Looker])
