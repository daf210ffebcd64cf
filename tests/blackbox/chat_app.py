"""A conversation with a model that answers word by word, for `chat_cuts`."""

from sapwood import App, ChatAgent
from sapwood.testing import ScriptedModel, text

ANSWER = "The quick brown fox jumps over the lazy dog, sits down, and thinks about rivers and bread for a while."


class Talk(ChatAgent):
    model = ScriptedModel(text(ANSWER, delay=0.02), each=True)


app = App(agents=[Talk])
