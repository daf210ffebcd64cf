"""Types of values that sapwood passes to a program: what methods return, and what hooks receive."""

from sapwood.address import Address, PathSegment
from sapwood.capabilities.children import SubAgentStatus, Subtree
from sapwood.capabilities.dead_letters import DeadLetter
from sapwood.capabilities.fiber_rows import Fiber
from sapwood.capabilities.file_rows import File
from sapwood.capabilities.keep_alive import KeepAlive
from sapwood.capabilities.mcp_servers import McpServer, McpTool
from sapwood.capabilities.queue import QueuedCall
from sapwood.capabilities.schedules import Schedule
from sapwood.kernel.actors.children_table import SubAgent
from sapwood.kernel.actors.watchdog import SlowSlice
from sapwood.kernel.trees.usage import Usage
from sapwood.periods import LimitWarning
from sapwood.runs.events.events import Event
from sapwood.runs.tables.runnable import Runnable
from sapwood.settings import Durability
from sapwood.storage.rows import Rows

__all__ = [
    "Address",
    "DeadLetter",
    "Durability",
    "Event",
    "Fiber",
    "File",
    "KeepAlive",
    "LimitWarning",
    "McpServer",
    "McpTool",
    "PathSegment",
    "QueuedCall",
    "Rows",
    "Runnable",
    "Schedule",
    "SlowSlice",
    "SubAgent",
    "SubAgentStatus",
    "Subtree",
    "Usage",
]
