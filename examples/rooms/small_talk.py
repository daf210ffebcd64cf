"""A scripted model that needs no API key and no network.

It answers prompts about a few topics, remembers the prompts in its room, and streams
its answers word by word.
"""

import asyncio
import random
import re
from collections.abc import AsyncIterator

from pydantic_ai.messages import ModelMessage, ModelRequest, UserPromptPart
from pydantic_ai.models.function import AgentInfo, FunctionModel
from sapwood import Refused

HELP = """I am a script, and good for small talk. Try one of these:

- **Plan a weekend in Lisbon**
- **How do I make pancakes?**
- **Why do trees have rings?**
- **What should I read?**
- **Tell me a story**: a long answer. Open another room while it streams: \
the list shows its progress.
- **What did I say first?** I remember everything you said in this room, and \
nothing from the others."""

TOPICS = {
    r"\b(lisbon|weekend|travel|trip|holiday)\b": """\
Two days in Lisbon, without hurry:

1. **Saturday morning**: up to the Castelo before the crowds, then down through \
Alfama on foot. Get lost on purpose.
2. **Saturday afternoon**: tram 28 in the direction nobody takes, and a custard tart \
where it is too full to sit.
3. **Saturday evening**: grilled fish, and fado in a place with ten chairs.
4. **Sunday**: along the river to Belém. The monastery opens at ten; be there at \
half past nine.

Take shoes with a good grip: the pavement is polished by a hundred years of \
visitors.""",
    r"\b(pancakes?|recipe|cook|breakfast|bake)\b": """\
**Pancakes for two**

- 150 g flour, 1 teaspoon baking powder, a pinch of salt
- 1 egg, 200 ml milk, 20 g melted butter

Whisk the wet things, stir them into the dry ones, and stop while there are still \
lumps. Let it rest for *ten minutes*. A spoonful each into a pan that is hot but not \
smoking; turn them when the bubbles on top stay open.

The first one never works. Eat it standing.""",
    r"\b(trees?|rings?|wood|forest)\b": """\
Because a tree does not grow all year.

In **spring** it makes wide, light cells, to lift much water to the new leaves. In \
late **summer** they become narrow and dark, and in winter it rests. One light band \
and one dark band together are a year.

A wide ring was a good year, a narrow one was dry. Only the outermost rings still \
carry water: that part is called the *sapwood*.""",
    r"\b(read|books?|novels?)\b": """\
Three that are hard to put down:

- **The Left Hand of Darkness**, Ursula K. Le Guin: a winter planet, and a \
friendship that has to be learned.
- **The Periodic Table**, Primo Levi: a life, told in chemical elements.
- **Kim**, Rudyard Kipling: a road, a river, and everybody who travels on it.

Which did you like last?""",
    r"\b(poem|rain|weather)\b": """\
The rain has been at it since four,
it knocks, but it has no door.
I said *come in*,
it said *I'm in*,
and stood in a ring on the floor.""",
    r"\b(story|tale)\b": """\
In a house at the end of a street there was a porter who knew everybody. He had a \
board with a hook for each room, and on every hook hung a key and a small slate. \
Whatever was said in a room that its owner should not forget, the porter wrote on \
the slate.

One winter night the lamps went out in the middle of a sentence. People stood in the \
dark on the stairs and asked each other where they had been. *Wait*, said the \
porter. He felt along the board, hook by hook, read each slate with the tips of his \
fingers, and led everybody back to their own door.

When the light came back, they found that in each room the conversation went on with \
the very next word. Nobody had said anything twice. Nobody was in a room that was \
not theirs.

*How did you do it?* they asked him. *I did nothing*, said the porter. *It was all \
written down.*""",
}

OTHERWISE = """I am only a script, and I do not understand “{prompt}”. Say **help** to \
see what I know about. To talk to a real model, restart the server with its name:

```
MODEL=openai:gpt-5 OPENAI_API_KEY=… sapwood dev
```"""


class SmallTalk(FunctionModel):
    """A model that streams `answer`, one word every `pause` seconds."""

    def __init__(self, pause: float) -> None:
        self._pause = pause
        super().__init__(stream_function=self._stream, model_name="small-talk")

    async def _stream(
        self, messages: list[ModelMessage], info: AgentInfo
    ) -> AsyncIterator[str]:
        for word in re.findall(r"\S+\s*", answer(prompts_of(messages))):
            await asyncio.sleep(self._pause)
            yield word


def answer(prompts: list[str]) -> str:
    """Return the answer to the last prompt."""
    prompt = prompts[-1].lower()
    if re.search(r"\b(fail|break|crash)\b", prompt):
        raise Refused(
            "The script fails on request. Try again, or send another message."
        )
    if re.search(r"\b(did i say|i said|remember)\b", prompt):
        return recall(prompts[:-1], is_first="first" in prompt)
    if re.search(r"\b(help|can you do|who are you)\b", prompt):
        return HELP
    for words, text in TOPICS.items():
        if re.search(words, prompt):
            return text
    name = re.search(r"\b(?:my name is|i am|i'm) (\w+)", prompts[-1], re.IGNORECASE)
    if name:
        return f"Nice to meet you, {name[1]}! What shall we talk about?"
    if re.search(r"\b(hello|hi|hey|good (morning|evening))\b", prompt):
        hello = random.choice(("Hello!", "Good to see you!", "Welcome!"))
        return f"{hello} What is on your mind? Say **help** to see what I know about."
    if re.search(r"\b(thanks|thank you|great|bye)\b", prompt):
        return "You are welcome. The room stays as it is until you delete it."
    return OTHERWISE.format(prompt=prompts[-1])


def recall(earlier: list[str], *, is_first: bool) -> str:
    if not earlier:
        return "Nothing yet: this room is new, and I know nothing about the others."
    if is_first:
        return f"The first thing you said here was: “{earlier[0]}”"
    return "\n".join(["In this room you said:", "", *(f"- {text}" for text in earlier)])


def prompts_of(messages: list[ModelMessage]) -> list[str]:
    """Return the text of all user messages."""
    return [
        str(part.content)
        for message in messages
        if isinstance(message, ModelRequest)
        for part in message.parts
        if isinstance(part, UserPromptPart)
    ]
