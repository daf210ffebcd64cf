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
from sapwood.chat.store.branches import ConversationBranch
from sapwood.kernel.actors.children_table import SubAgent
from sapwood.kernel.actors.fork_origin import ForkOrigin
from sapwood.kernel.actors.watchdog import SlowSlice
from sapwood.kernel.comparison.tree_diff import AgentDiff, Change, PartDiff, TreeDiff
from sapwood.kernel.erasure.receipt import ErasedPlace, ErasureReceipt
from sapwood.kernel.forks.forked_tree import HeldWork
from sapwood.kernel.history.moments import BeforeTurn, Moment
from sapwood.kernel.node.fork import Fork
from sapwood.kernel.trees.usage import Usage
from sapwood.periods import LimitWarning
from sapwood.runs.events.events import Event
from sapwood.runs.tables.runnable import Runnable
from sapwood.settings import Durability
from sapwood.storage.rows import Rows

__all__ = [
    "Address",
    "AgentDiff",
    "BeforeTurn",
    "Change",
    "ConversationBranch",
    "DeadLetter",
    "Durability",
    "ErasedPlace",
    "ErasureReceipt",
    "Event",
    "Fiber",
    "File",
    "Fork",
    "ForkOrigin",
    "HeldWork",
    "KeepAlive",
    "LimitWarning",
    "McpServer",
    "McpTool",
    "Moment",
    "PartDiff",
    "PathSegment",
    "QueuedCall",
    "Rows",
    "Runnable",
    "Schedule",
    "SlowSlice",
    "SubAgent",
    "SubAgentStatus",
    "Subtree",
    "TreeDiff",
    "Usage",
]
