"""The simulated sources of the helpers: a web of a dozen pages, and a repository.

They need no network, and the same query always returns the same results.
"""

import asyncio
import os
import re
import zlib
from dataclasses import dataclass
from enum import Enum

PAUSE = float(os.environ.get("PAUSE", "0.04"))
"""Seconds per word of an answer. A search takes a multiple of it."""


class Angle(Enum):
    """An aspect of a topic: the words to search for, and its label."""

    ITSELF = ("", "In short")
    DRAWBACKS = ("drawbacks", "Drawbacks")
    PRACTICE = ("in practice", "In practice")

    def __init__(self, words: str, label: str) -> None:
        self.words = words
        self.label = label

    def query(self, about: str) -> str:
        return f"{about} {self.words}".strip()

    @classmethod
    def of(cls, query: str) -> tuple["Angle", str]:
        """Return the angle and the topic of a query that `query` returned."""
        for angle in (cls.DRAWBACKS, cls.PRACTICE):
            if query.endswith(f" {angle.words}"):
                return angle, query.removesuffix(f" {angle.words}")
        return cls.ITSELF, query


@dataclass(frozen=True)
class Topic:
    """The text about one topic, for each angle."""

    name: str
    words: tuple[str, ...]
    itself: str
    drawbacks: str
    practice: str


TOPICS = (
    Topic(
        "Rust",
        ("rust",),
        "A compiled language that checks at compile time who owns each piece of memory,"
        " so it needs no garbage collector.",
        "Compiling is slow, and the borrow checker takes weeks to get used to.",
        "Teams use it where latency has to be even: proxies, databases, browsers.",
    ),
    Topic(
        "Go",
        ("go", "golang"),
        "A compiled language with few concepts, a garbage collector, and goroutines"
        " for thousands of things at once.",
        "Errors are checked by hand, and the type system says little about `nil`.",
        "Most tools around containers are written in it; newcomers ship in days.",
    ),
    Topic(
        "Python",
        ("python",),
        "A dynamic language that reads almost like pseudocode, with a library for"
        " nearly everything.",
        "It is slow per core, and long programs need type hints to stay readable.",
        "It glues things together: data, machine learning, tests, web services.",
    ),
    Topic(
        "TypeScript",
        ("typescript", "javascript"),
        "JavaScript with a type checker: the types are gone when it runs.",
        "What comes from outside is not checked, whatever the types say.",
        "It is what most new web pages are written in, and many of their servers.",
    ),
    Topic(
        "SQLite",
        ("sqlite",),
        "A database that is a library and one file; there is no server to run.",
        "One writer at a time, and no network access of its own.",
        "It runs on every phone; servers give each tenant a file of its own.",
    ),
    Topic(
        "PostgreSQL",
        ("postgres", "postgresql"),
        "A database server with many writers, rich types and a strict idea of SQL.",
        "It has to be operated: connections, vacuum, upgrades, backups.",
        "It is the default answer for shared data, and scales up before out.",
    ),
    Topic(
        "WebSockets",
        ("websocket", "websockets"),
        "One connection on which both sides may speak at any time.",
        "Proxies and sleep cut it, so reconnecting and catching up is your own work.",
        "Chats, games and editors use it; a ping every half minute keeps it open.",
    ),
    Topic(
        "Server-sent events",
        ("sse", "server-sent events", "eventsource"),
        "An HTTP answer that does not end; the browser reconnects by itself and says"
        " where it was.",
        "Only the server speaks, and only text.",
        "Token streams of language models are mostly these.",
    ),
    Topic(
        "Actors",
        ("actor", "actors", "actor model", "durable objects"),
        "Things with a name, a state of their own and one message at a time, so they"
        " need no locks.",
        "A question across many actors has to ask each of them.",
        "Telephone exchanges ran on them for decades; agents with a memory do now.",
    ),
    Topic(
        "Full-text search",
        ("search", "full-text search", "fts", "fts5"),
        "An index from each word to where it stands, and a rank for what fits best.",
        "Stemming, typing errors and languages are where the effort goes.",
        "A few thousand documents need no search server: SQLite's FTS5 will do.",
    ),
    Topic(
        "Rate limiting",
        ("rate limit", "rate limits", "rate limiting", "throttling"),
        "A bucket of tokens for each caller, refilled at a steady rate.",
        "Counting in one process is wrong as soon as there are two.",
        "Answer 429 with Retry-After, and tell callers how much is left.",
    ),
    Topic(
        "Signing in",
        ("oauth", "login", "log in", "sign in", "sign-in", "authentication", "auth"),
        "Somebody proves once who they are, and gets a signed cookie for the rest.",
        "Sessions have to end: on sign-out, after a while, and when a key leaks.",
        "Leave passwords to a provider; keep the cookie HttpOnly and SameSite.",
    ),
    Topic(
        "Dark mode",
        ("dark mode", "dark theme", "themes"),
        "Colours as custom properties, and a second set for `prefers-color-scheme`.",
        "Shadows, pictures and contrast need a second look, not just inversion.",
        "Follow the system first, and store a choice only if somebody makes one.",
    ),
    Topic(
        "Caching",
        ("cache", "caches", "caching", "redis"),
        "Keeping an answer close to its reader until it is out of date.",
        "Knowing when it is no longer true is the whole difficulty.",
        "Short lifetimes with revalidation beat clever invalidation.",
    ),
    Topic(
        "Sapwood",
        ("sapwood", "trees", "tree"),
        "The living outer wood of a tree: it lifts water from the roots to the leaves.",
        "It is soft, and rots quickly once it is cut.",
        "Each spring it carries hundreds of litres a day, without a sound.",
    ),
)

# Texts for topics that are not in the list above.
OTHERWISE = {
    Angle.ITSELF: (
        "People mean different things by {query}; most begin with what it replaces.",
        "{query} is older than its name, and simpler than its reputation.",
        "The shortest description of {query} fits on a card; the longest is a career.",
    ),
    Angle.DRAWBACKS: (
        "It takes longer to learn than its friends admit.",
        "It works until it has to work together with something else.",
        "Nobody agrees on when it should not be used.",
    ),
    Angle.PRACTICE: (
        "Those who use it start small, and measure before they go on.",
        "It is mostly found in larger things that nobody calls by that name.",
        "Two in three reports praise it; the third has tried it in a hurry.",
    ),
}
PLACES = ("Field notes", "A short guide", "The weekly letter", "What we learned")

REPOSITORY = {
    "README.md": """\
# todo

A list of things to do, for a few people. `src/app.py` answers requests, `src/store.py`
keeps the items in SQLite, `src/page.js` shows them, `tests/` has a test for each.
""",
    "src/app.py": """\
app = Starlette(routes=[
    Route("/items", items),              # GET: all items of the user
    Route("/items", add, methods=["POST"]),
])

async def items(request):
    user = request.headers["x-user"]     # believed as it is
    return JSONResponse(request.app.state.store.items(user))
""",
    "src/store.py": """\
class Store:
    def __init__(self, path):
        self.db = sqlite3.connect(path)
        self.db.execute("CREATE TABLE IF NOT EXISTS items (user, text, done)")

    def items(self, user):
        return self.db.execute("SELECT * FROM items WHERE user = ?", [user]).fetchall()
""",
    "src/page.js": """\
const list = document.querySelector("#items");
setInterval(async () => show(await (await fetch("/items")).json()), 5000);
""",
}
"""A small repository, with something left to improve in each file."""


async def search(query: str) -> list[dict[str, str]]:
    """Return the search results for a query, the best first."""
    await asyncio.sleep(8 * PAUSE)
    angle, about = Angle.of(query)
    topic = topic_of(about)
    number = zlib.crc32(about.lower().encode()) + list(Angle).index(angle)
    if topic is None:
        name, sentences = about, OTHERWISE[angle]
        text = sentences[number % len(sentences)].format(query=about)
    else:
        name, text = topic.name, getattr(topic, angle.name.lower())
    texts = [text, f"A list of what others have written about {name}."]
    places = [PLACES[(number + 2 * at) % len(PLACES)] for at in range(2)]
    return [
        {"title": f"{place}: {name}", "url": url_of(place, name), "text": text}
        for place, text in zip(places, texts, strict=True)
    ]


async def read(path: str) -> str:
    """Return a file of the repository."""
    await asyncio.sleep(4 * PAUSE)
    if path not in REPOSITORY:
        raise ValueError(f"There is no {path!r}. There are {', '.join(REPOSITORY)}.")
    return REPOSITORY[path]


def url_of(place: str, name: str) -> str:
    parts = (re.sub(r"\W+", "-", text.lower()).strip("-") for text in (place, name))
    return f"https://example.org/{'/'.join(parts)}"


def topic_of(text: str) -> Topic | None:
    """Return the topic whose word in the text is the longest."""
    matches = [
        (len(word), topic)
        for topic in TOPICS
        for word in topic.words
        if re.search(rf"\b{re.escape(word)}\b", text.lower())
    ]
    return max(matches, key=lambda match: match[0])[1] if matches else None
