"""The simulated notes of the specialists, on a few topics.

The same question always gets the same answer. Each specialist searches for a different
time.
"""

import asyncio
import os
import re
import zlib
from dataclasses import asdict, dataclass

PAUSE = float(os.environ.get("PAUSE", "0.04"))
"""Seconds per word of an answer."""
SEARCH_TIME = {"Customer": 6, "Accountant": 24, "Engineer": 56}
"""The time that each specialist searches, in multiples of `PAUSE`."""


@dataclass(frozen=True)
class View:
    """The opinion of a specialist."""

    verdict: str
    because: str
    risk: str
    unless: str


YES, NO, DEPENDS = "Yes.", "No.", "It depends."
TOPICS: tuple[tuple[str, dict[str, View]], ...] = (
    (
        r"four.day|4.day|day week|fewer hours",
        {
            "Engineer": View(
                YES,
                "Half of what we do on Fridays is undone on Mondays.",
                "whoever is on call has nobody to ask on the fifth day.",
                "a release had to go out on every day of the week.",
            ),
            "Customer": View(
                DEPENDS,
                "I do not mind, as long as somebody answers when it breaks.",
                "a question on a Thursday evening waits until Monday.",
                "there was a number to call on Fridays.",
            ),
            "Accountant": View(
                YES,
                "Nobody has given notice in the trial, and hiring is what costs.",
                "two of our contracts are paid by the day.",
                "what we sell in a month fell by more than a twentieth.",
            ),
        },
    ),
    (
        r"rewrit|rust\b|from scratch|migrat",
        {
            "Engineer": View(
                NO,
                "What is slow is the database, and that would stay.",
                "for a year every bug has to be mended twice.",
                "a part with clear edges could be replaced first, to learn from it.",
            ),
            "Customer": View(
                NO,
                "I would wait a year to get what I have now.",
                "the small things that I rely on are in nobody's list.",
                "it started in half the time, and lost nothing.",
            ),
            "Accountant": View(
                NO,
                "It costs two years of three people, and brings in nothing new.",
                "while we rebuild, others build.",
                "the present one could not be kept running for the same money.",
            ),
        },
    ),
    (
        r"bakery|shop|store|branch|caf|open a",
        {
            "Engineer": View(
                YES,
                "The ovens, the tills and the plan are there; we build it once more.",
                "the dough has to be driven across the town at four in the morning.",
                "the power line of the new place were too weak for two ovens.",
            ),
            "Customer": View(
                YES,
                "I pass by there every morning, and there is no good bread.",
                "if the bread is not as good as here, I will tell everybody.",
                "it opened after eight.",
            ),
            "Accountant": View(
                DEPENDS,
                "It pays for itself in three years at two hundred loaves a day.",
                "the rent is fixed for ten years, and the loaves are not.",
                "the first shop could lend the money without a bank.",
            ),
        },
    ),
    (
        r"chatbot|assistant|\bai\b|support|answers back",
        {
            "Engineer": View(
                YES,
                "Most of it is there; what is new is that we have to watch it.",
                "it will be sure of itself when it is wrong.",
                "it had to decide about money.",
            ),
            "Customer": View(
                DEPENDS,
                "I like quick answers, and I hate to be kept from a human being.",
                "I have to explain everything twice.",
                "one word was enough to get to somebody.",
            ),
            "Accountant": View(
                YES,
                "A third of all questions are the same ten.",
                "the price of each answer is not ours to set.",
                "the people it relieves had nothing better to do.",
            ),
        },
    ),
)
OTHERWISE = {
    "Engineer": (
        View(
            YES,
            "It can be built from what we have.",
            "nobody has said yet who keeps it running.",
            "it had to be done before the summer.",
        ),
        View(
            DEPENDS,
            "The first half is easy, and the second nobody has looked at.",
            "we find out late what we have overlooked.",
            "somebody showed me the smallest version that works.",
        ),
    ),
    "Customer": (
        View(
            YES,
            "I would use it every day.",
            "it is announced, and then it takes a year.",
            "I had to learn something new for it.",
        ),
        View(
            NO,
            "I have not asked for it, and I would not miss it.",
            "what I did ask for comes later because of it.",
            "it made one thing shorter that I do every day.",
        ),
    ),
    "Accountant": (
        View(
            DEPENDS,
            "It is cheap to begin, and nobody knows what it costs to keep.",
            "we count what comes in, and forget the hours.",
            "there was a figure for the second year.",
        ),
        View(
            YES,
            "It pays for itself within a year, if half of the guesses are right.",
            "all of the guesses are ours.",
            "it had to be paid for in advance.",
        ),
    ),
}


async def read(who: str, question: str) -> dict[str, str]:
    """Return the opinion of a specialist on a question."""
    await asyncio.sleep(SEARCH_TIME[who] * PAUSE)
    for words, views in TOPICS:
        if re.search(words, question, re.IGNORECASE):
            return asdict(views[who])
    number = zlib.crc32(question.strip().lower().encode())
    views = OTHERWISE[who]
    return asdict(views[number % len(views)])
