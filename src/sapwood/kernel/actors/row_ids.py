"""Ids of the rows of an agent that users see: no two agents use one id."""

from __future__ import annotations

import hashlib

from sapwood.address import Address


def row_id(number: int, address: Address, stem: str) -> str:
    """Return the id of a row of an agent."""
    return f"{number}-{hashlib.sha256(f'{address} {stem}'.encode()).hexdigest()[:10]}"
