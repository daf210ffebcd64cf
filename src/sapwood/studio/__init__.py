"""The studio: tabs that classes add to it, for `Agent.studio_tabs`."""

from sapwood.capabilities.studio_tabs import StudioTab

__all__ = ["StudioTab"]
