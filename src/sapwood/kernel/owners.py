"""How rows are found in the indexes of a tree, by the addresses of the agents they belong to."""

from __future__ import annotations

# "/" separates the steps of an address, and "0" is the character after it.
BELOW = "(owner >= ?1 || '/' AND owner < ?1 || '0')"
"""Rows of those below an agent; its address is the first parameter."""
OWN_AND_BELOW = f"(owner = ?1 OR {BELOW})"
"""Its own, too."""
