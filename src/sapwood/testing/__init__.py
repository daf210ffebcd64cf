"""What a test of agents needs: an app in a folder of its own, a clock it owns, and crashes on demand.

```python
async with running(app) as world:
    inbox = await world.get_agent(Inbox, "alice")
    await inbox.note("shopping", "milk")
    await world.crash()
    inbox = await world.get_agent(Inbox, "alice")
    assert await inbox.read("shopping") == ["milk"]
```
"""

import importlib
from typing import TYPE_CHECKING, Any

from sapwood.errors import UsageError
from sapwood.testing.clock import FakeClock
from sapwood.testing.faults import POINTS, CrashPoints
from sapwood.testing.recorded_model import recorded
from sapwood.testing.script_lines import call, calls, fails, text
from sapwood.testing.world import World, running

if TYPE_CHECKING:
    from sapwood.testing.recorded_tools import RecordedTools, ToolResult
    from sapwood.testing.scripted_model import ScriptedModel

__all__ = [
    "POINTS",
    "CrashPoints",
    "FakeClock",
    "RecordedTools",
    "ScriptedModel",
    "ToolResult",
    "World",
    "call",
    "calls",
    "fails",
    "recorded",
    "running",
    "text",
]


_OF_CHATS = {"RecordedTools": "recorded_tools", "ScriptedModel": "scripted_model", "ToolResult": "recorded_tools"}
"""Imported on first use, because they load Pydantic AI."""


def __getattr__(name: str) -> Any:
    if name in _OF_CHATS:
        try:
            module = importlib.import_module(f"sapwood.testing.{_OF_CHATS[name]}")
        except ImportError as error:
            raise UsageError(f"{name} requires Pydantic AI. Run: pip install 'sapwood[chat]'.") from error
        return getattr(module, name)
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
