"""Ids of the OpenAI API: a response and a conversation name their agent, so no index of them is needed."""

from __future__ import annotations

import hashlib
from base64 import urlsafe_b64decode, urlsafe_b64encode
from typing import NamedTuple

from sapwood.address import Address, checked_name
from sapwood.errors import InvalidName

RESPONSE, CONVERSATION, CALL = "resp_", "conv_", "call_"
TAIL = 32
"""How many characters of an id name the response in its agent."""
PLACE = 4
"""How many digits at the end of the id of an item, or of a tool call, count the items of a response."""
HEX = frozenset("0123456789abcdef")


class AgentId(NamedTuple):
    """The agent that an id names, and the response in it."""

    type: str
    name: str
    tail: str = ""


def response_id(address: Address, tail: str) -> str:
    """Return the id of a response of a root."""
    return f"{packed_id(RESPONSE, address)}{tail}"


def conversation_id(address: Address) -> str:
    """Return the id of the conversation of a root."""
    return packed_id(CONVERSATION, address)


def packed_id(prefix: str, address: Address) -> str:
    """Return what ids that name a root begin with."""
    packed = urlsafe_b64encode(f"{address.type}\0{address.name}".encode()).decode()
    return prefix + packed.rstrip("=")


def read_response_id(id: str) -> AgentId | None:
    """Return what the id of a response names; `None` if it is none."""
    return read_packed(RESPONSE, id)


def item_id(kind: str, tail: str, place: int) -> str:
    """Return the id of an output item."""
    return f"{kind}_{tail}{place:0{PLACE}d}"


def call_id(address: Address, item: str) -> str:
    """Return the id of a tool call, by which later requests find the agent: that of its item, and the root."""
    return packed_id(CALL, address) + item[-TAIL - PLACE :]


def read_call_id(id: str) -> tuple[AgentId, str] | None:
    """Return the response that a tool call is in, and the end of its item's id; `None` if the id names none."""
    place = id[-PLACE:]
    found = read_packed(CALL, id[:-PLACE]) if place.isascii() and place.isdigit() else None
    return None if found is None else (found, found.tail + place)


def read_packed(prefix: str, id: str) -> AgentId | None:
    """Return the root and the response that an id names; `None` if it names none."""
    tail = id[-TAIL:]
    if not id.startswith(prefix) or len(id) <= len(prefix) + TAIL or not HEX.issuperset(tail):
        return None
    return _unpacked(id[len(prefix) : -TAIL], tail)


def read_conversation_id(id: str) -> AgentId | None:
    """Return what the id of a conversation names; `None` if it is none."""
    return _unpacked(id[len(CONVERSATION) :], "") if id.startswith(CONVERSATION) else None


def derived(*parts: str | None) -> str:
    """Return an id that the same parts always have. Only one who knows all of them can guess it."""
    whole = b"\0".join(b"-" if part is None else b"+" + part.encode(errors="surrogatepass") for part in parts)
    return hashlib.sha256(whole).hexdigest()[:TAIL]


def _unpacked(text: str, tail: str) -> AgentId | None:
    try:
        type_, found, name = urlsafe_b64decode(text + "=" * (-len(text) % 4)).decode().partition("\0")
        return AgentId(type_, checked_name(name), tail) if found else None
    except (ValueError, InvalidName):  # not base64, or no UTF-8
        return None
