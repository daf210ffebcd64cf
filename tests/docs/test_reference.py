"""The reference is complete: every public name, error code, setting and table has its heading."""

from __future__ import annotations

import dataclasses
import importlib
import re
from enum import Enum
from pathlib import Path

import pytest
from scripts import include_code

import sapwood
import sapwood.auth
import sapwood.client
import sapwood.drivers.temporal
import sapwood.evals
import sapwood.protocols
import sapwood.remote
import sapwood.sandbox
import sapwood.studio
import sapwood.testing
import sapwood.types
from sapwood import errors
from sapwood.agent_checks import HOOKS
from sapwood.chat.agent import HOOKS as CHAT_HOOKS
from sapwood.errors import SapwoodError
from sapwood.kernel.marshal.namespace import Namespace
from sapwood.namespaces.queues import AgentQueue
from sapwood.settings import Limits, Settings

ROOT = Path(__file__).parents[2]

PUBLIC_NAMES = [
    "After",
    "Agent",
    "App",
    "At",
    "Branch",
    "Breaker",
    "Callback",
    "ChatAgent",
    "ChildFailed",
    "Connection",
    "Cron",
    "Every",
    "Limits",
    "NotFound",
    "OverLimit",
    "Per",
    "Question",
    "Refused",
    "RemoteSubAgent",
    "Retention",
    "Retry",
    "Run",
    "SapwoodError",
    "Settings",
    "StepOptions",
    "TimedOut",
    "Turn",
    "Unavailable",
    "agent",
    "agent_tool",
    "current_agent",
    "current_connection",
    "current_step_key",
    "deadline",
    "expose",
    "on_child_state",
    "persistent_agent",
    "remote_agent_tool",
    "tool",
    "with_options",
]
"""What `sapwood` exports, at most 40 names. A change here is a change of the API: it needs a fragment in changes/."""

TYPES_NAMES = [
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
"""What `sapwood.types` exports; each stands on the page of its subject."""

AUTH_NAMES = ["ANY_CLIENT", "ApiKeys", "JwtAuth", "User"]
"""What `sapwood.auth` exports."""

CLIENT_NAMES = ["ExposedMethod", "RemoteAgent", "connect"]
"""What `sapwood.client` exports."""

REMOTE_NAMES = [
    "Chunk",
    "End",
    "Heartbeat",
    "HttpTransport",
    "Memo",
    "MemoTransport",
    "Milestone",
    "NestedEvent",
    "NestedEvents",
    "OpenQuestions",
    "Position",
    "Progress",
    "QuestionTransport",
    "RemoteAnswer",
    "RemoteEvent",
    "RemoteQuestion",
    "RemoteStatus",
    "RunTransport",
]
"""What `sapwood.remote` exports: the parts of a transport."""

PROTOCOL_NAMES = ["A2a", "A2aAgent", "A2aMessage", "A2aPart", "Adapter", "AgUi", "Exchange", "Mcp", "OpenAi", "Place"]
"""What `sapwood.protocols` exports."""

STUDIO_NAMES = ["StudioTab"]
"""What `sapwood.studio` exports."""

DRIVER_NAMES = ["TemporalDriver"]
"""What `sapwood.drivers.temporal` exports."""

SANDBOX_NAMES = [
    "Answer",
    "Bubblewrap",
    "CodeFailure",
    "CodeLimits",
    "CodeResult",
    "Ended",
    "Executor",
    "Monty",
    "Paused",
    "Task",
    "run_code",
]
"""What `sapwood.sandbox` exports; it has a page of its own."""

TESTING_NAMES = [
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
"""What `sapwood.testing` exports."""

EVALS_NAMES = ["TurnNotCompleted", "TurnTask", "turn_task"]
"""What `sapwood.evals` exports."""


API_PAGES = sorted(page.name for page in (ROOT / "docs/reference/api").glob("*.md"))
MEMBER = "sapwood.agent.Agent."
MADE = r"^CREATE (?:VIRTUAL )?TABLE (sapwood_\w+)"
"""How a script makes a table."""


def sections(page: str) -> dict[str, str]:
    """Return the page's headings, without backquotes and nested with dots, and the text below each."""
    found: dict[str, str] = {}
    parents: dict[int, str] = {}
    text = re.sub(r"^```.*?^```", "", (ROOT / "docs/reference" / page).read_text(), flags=re.MULTILINE | re.DOTALL)
    for part in re.split(r"^(?=#+ )", text, flags=re.MULTILINE):
        heading, _, body = part.partition("\n")
        marks, _, title = heading.partition(" ")
        parents[len(marks)] = title.strip().strip("`")
        above = f"{parents[2]}." if len(marks) == 3 else ""
        found[above + parents[len(marks)]] = body
    return found


def headings(page: str, level: int) -> list[str]:
    """Return the headings of one level, without backquotes."""
    text = (ROOT / "docs/reference" / page).read_text()
    return [title.strip("`") for title in re.findall(rf"^#{{{level}}} (.+)$", text, flags=re.MULTILINE)]


def documented(page: str) -> dict[str, list[str]]:
    """Return the objects whose docstrings a page shows, by the section they stand in."""
    parts = re.split(r"^## (.+)$", (ROOT / "docs/reference" / page).read_text(), flags=re.MULTILINE)[1:]
    return {
        title.strip("`"): re.findall(r"^::: ([\w.]+)$", text, flags=re.MULTILINE)
        for title, text in zip(parts[::2], parts[1::2], strict=True)
    }


def api_by_module() -> dict[str, list[str]]:
    """Return the objects of the pages in `api`, by the module that the heading above them names. Otherwise `sapwood`.

    Members of `Agent` that stand on the page of their subject are left out.
    """
    found: dict[str, list[str]] = {}
    for page in API_PAGES:
        for title, paths in documented(f"api/{page}").items():
            module = title if title.startswith("sapwood.") else "sapwood"
            found.setdefault(module, []).extend(path for path in paths if not path.startswith(MEMBER))
    return found


def members_by_page() -> dict[str, list[str]]:
    """Return the members of `Agent` that stand on the page of their subject, by page."""
    shown = {page: [path for paths in documented(f"api/{page}").values() for path in paths] for page in API_PAGES}
    members = {page: [path.removeprefix(MEMBER) for path in paths if MEMBER in path] for page, paths in shown.items()}
    return {page: names for page, names in members.items() if names}


def last_names(paths: list[str]) -> list[str]:
    return sorted(path.rpartition(".")[2] for path in paths)


def kinds_of_error() -> list[type[SapwoodError]]:
    return [value for value in vars(errors).values() if isinstance(value, type) and issubclass(value, SapwoodError)]


def namespaces() -> list[str]:
    """Return the names of the classes of all namespaces, and of what they return."""
    found = [value for owner in sapwood.ChatAgent.__mro__ for value in vars(owner).values()]
    return [one.cls.__name__ for one in found if isinstance(one, Namespace)] + [AgentQueue.__name__]


def test_the_public_names_are_the_ones_we_decided_on() -> None:
    assert sorted(sapwood.__all__) == sorted(PUBLIC_NAMES)
    assert sorted(sapwood.types.__all__) == sorted(TYPES_NAMES)
    assert sorted(sapwood.auth.__all__) == sorted(AUTH_NAMES)
    assert sorted(sapwood.client.__all__) == sorted(CLIENT_NAMES)
    assert sorted(sapwood.remote.__all__) == sorted(REMOTE_NAMES)
    assert sorted(sapwood.drivers.temporal.__all__) == sorted(DRIVER_NAMES)
    assert sorted(sapwood.protocols.__all__) == sorted(PROTOCOL_NAMES)
    assert sorted(sapwood.studio.__all__) == sorted(STUDIO_NAMES)
    assert sorted(sapwood.sandbox.__all__) == sorted(SANDBOX_NAMES)
    assert sorted(sapwood.testing.__all__) == sorted(TESTING_NAMES)
    assert sorted(sapwood.evals.__all__) == sorted(EVALS_NAMES)


def test_every_public_name_is_in_the_reference_and_nothing_else_is() -> None:
    shown = api_by_module()

    assert last_names(shown.pop("sapwood.client")) == sorted(CLIENT_NAMES)
    assert last_names(shown.pop("sapwood.remote")) == sorted(REMOTE_NAMES)
    assert last_names(shown.pop("sapwood.drivers.temporal")) == sorted(DRIVER_NAMES)
    assert last_names(shown.pop("sapwood.protocols")) == sorted(PROTOCOL_NAMES)
    assert last_names(shown.pop("sapwood.studio")) == sorted(STUDIO_NAMES)
    assert last_names(shown.pop("sapwood.testing")) == sorted(TESTING_NAMES)
    assert last_names(shown.pop("sapwood.evals")) == sorted(EVALS_NAMES)
    assert set(last_names(shown.pop("sapwood.errors"))) <= {cls.__name__ for cls in kinds_of_error()}.difference(
        PUBLIC_NAMES
    )
    assert last_names(shown.pop("sapwood")) == sorted([*PUBLIC_NAMES, *TYPES_NAMES, *AUTH_NAMES, *namespaces()])
    assert not shown
    apart = [path for paths in documented("sandbox.md").values() for path in paths]
    assert last_names(apart) == sorted(SANDBOX_NAMES)


def test_the_table_of_modules_says_where_types_are() -> None:
    page = (ROOT / "docs/reference/api/index.md").read_text()
    table = dict(re.findall(r"^\| `(sapwood\.[\w.]+)` \| .+? \| (.*)\|$", page, flags=re.MULTILINE))
    named = {module: re.findall(r"`(\w+)`", names) for module, names in table.items() if names}

    assert named == {"sapwood.types": sorted(TYPES_NAMES), "sapwood.auth": sorted(AUTH_NAMES)}


def test_every_member_of_an_agent_is_on_one_page() -> None:
    page = (ROOT / "docs/reference/api/agent.md").read_text()
    own = re.findall(r"^::: sapwood\.agent\.Agent\n.*\n      members: \[(.+)\]$", page, flags=re.MULTILINE)
    elsewhere = members_by_page()
    table = dict(re.findall(r"^\| \[[^\]]+\]\((\w+\.md)\) \| (.+) \|$", page, flags=re.MULTILINE))
    agent = sapwood.Agent
    public = {name for name in (*vars(agent), *agent.__annotations__) if not name.startswith("_")}
    named = [name for name in public if not isinstance(vars(agent).get(name), Namespace)]

    assert sorted([*own[0].split(", "), *(name for names in elsewhere.values() for name in names)]) == sorted(named)
    assert {page: re.findall(r"`(\w+)`", names) for page, names in table.items()} == elsewhere


def test_every_hook_is_in_the_table_of_hooks() -> None:
    page = (ROOT / "docs/reference/api/hooks.md").read_text()
    rows = re.findall(r"^\| \[`(\w+)`\]\(\w+\.md#([\w.]+)\.\w+\) \| .+ \| .+ \| .+ \|$", page, flags=re.MULTILINE)
    owners = {"sapwood.agent.Agent": HOOKS, "sapwood.chat.agent.ChatAgent": CHAT_HOOKS}

    assert sorted(rows) == sorted((name, owner) for owner, hooks in owners.items() for name in hooks)


def test_the_reference_shows_the_very_objects_that_are_exported() -> None:
    exported = {name: getattr(sapwood, name) for name in PUBLIC_NAMES}
    exported |= {name: getattr(sapwood.types, name) for name in TYPES_NAMES}
    exported |= {name: getattr(sapwood.auth, name) for name in AUTH_NAMES}
    exported |= {name: getattr(sapwood.client, name) for name in CLIENT_NAMES}
    exported |= {name: getattr(sapwood.remote, name) for name in REMOTE_NAMES}
    exported |= {name: getattr(sapwood.drivers.temporal, name) for name in DRIVER_NAMES}
    exported |= {name: getattr(sapwood.protocols, name) for name in PROTOCOL_NAMES}
    exported |= {name: getattr(sapwood.studio, name) for name in STUDIO_NAMES}
    exported |= {name: getattr(sapwood.sandbox, name) for name in SANDBOX_NAMES}
    exported |= {name: getattr(sapwood.testing, name) for name in TESTING_NAMES}
    exported |= {name: getattr(sapwood.evals, name) for name in EVALS_NAMES}

    shown_in = [*api_by_module().values(), *documented("sandbox.md").values()]
    for path in (path for paths in shown_in for path in paths):
        module, _, name = path.rpartition(".")
        shown = getattr(importlib.import_module(module), name)
        assert shown is exported.get(name, shown), path


def test_everything_public_has_a_docstring() -> None:
    named = [getattr(sapwood, name) for name in PUBLIC_NAMES]
    named += [getattr(sapwood.types, name) for name in TYPES_NAMES]
    named += [getattr(sapwood.auth, name) for name in AUTH_NAMES]
    named += [getattr(sapwood.client, name) for name in CLIENT_NAMES]
    named += [getattr(sapwood.remote, name) for name in REMOTE_NAMES if name != "RemoteEvent"]
    named += [getattr(sapwood.drivers.temporal, name) for name in DRIVER_NAMES]
    named += [getattr(sapwood.protocols, name) for name in PROTOCOL_NAMES]
    named += [getattr(sapwood.studio, name) for name in STUDIO_NAMES]
    named += [getattr(sapwood.sandbox, name) for name in SANDBOX_NAMES]
    own = [
        (owner, name, value)
        for owner in named
        if isinstance(owner, type)
        for name, value in vars(owner).items()
        if not name.startswith("_") and (callable(value) or isinstance(value, property | classmethod))
    ]

    assert [value for value in named if not value.__doc__] == []
    assert [f"{owner.__name__}.{name}" for owner, name, value in own if not value.__doc__] == []


def test_every_error_has_a_code_of_its_own_and_it_is_in_the_reference() -> None:
    assert sorted(headings("errors.md", level=3)) == sorted(cls.code for cls in kinds_of_error())


def test_the_reference_of_an_error_names_its_class_and_whether_to_retry() -> None:
    described = {title.rpartition(".")[2]: text for title, text in sections("errors.md").items()}

    for cls in kinds_of_error():
        retryable = ", retryable" if cls.retryable else ""
        assert described[cls.code].strip().startswith(f"`{cls.__name__}`{retryable}. "), cls.code


def test_every_setting_and_limit_is_in_the_reference() -> None:
    settings = [f"{cls.__name__}.{field.name}" for cls in (Settings, Limits) for field in dataclasses.fields(cls)]

    assert [title for title in sections("settings.md") if "." in title] == settings


def test_the_reference_of_a_setting_has_its_default() -> None:
    described = sections("settings.md")

    for values in (Settings(), Limits()):
        cls = type(values)
        for field in dataclasses.fields(cls):
            text = described[f"{cls.__name__}.{field.name}"]
            assert f"Default: `{shown(getattr(values, field.name))}`" in " ".join(text.split()), field.name


def shown(value: object) -> str:
    """Return a default as the reference writes it."""
    if dataclasses.is_dataclass(value):
        return f"{type(value).__name__}()"
    if isinstance(value, int) and not isinstance(value, bool):
        return f"{value:_}"
    return repr(value.value if isinstance(value, Enum) else value)


def test_every_table_of_ours_is_in_the_reference() -> None:
    scripts = [script.read_text() for script in (ROOT / "src/sapwood").rglob("*.sql")]
    tables = {table for script in scripts for table in re.findall(MADE, script, flags=re.MULTILINE)}

    assert sorted(title for title in headings("schema.md", level=2) if "_" in title) == sorted(tables)


def test_the_reference_of_a_table_has_its_columns() -> None:
    described = sections("schema.md")
    definition = re.compile(r"^CREATE TABLE (sapwood_\w+) \((.*?)^\)", flags=re.MULTILINE | re.DOTALL)

    for script in (ROOT / "src/sapwood").rglob("*.sql"):
        for table, columns in definition.findall(script.read_text()):
            for column in re.findall(r"^ +([a-z_]+) +[A-Z]+", columns, flags=re.MULTILINE):
                assert f"`{column}`" in described[table], f"{table}.{column}"


def test_the_pages_show_the_code_of_the_examples() -> None:
    stale = [page.name for page in include_code.pages() if include_code.with_code(page.read_text()) != page.read_text()]

    assert stale == [], "Run `just include-code`."


def test_code_is_included_without_marks_and_indentation() -> None:
    page = '```python\n--8<-- "examples/rate_limit.py:conversation"\n```\n'

    once = include_code.with_code(page)

    assert once.startswith("<!-- include examples/rate_limit.py:conversation -->\n```python\nclass Conversation(")
    assert "--8<--" not in once
    assert once.endswith("await account.count()\n```\n")
    assert include_code.with_code(once) == once
    assert include_code.with_code(once.replace("turn.id", "old")) == once
    assert include_code.with_code("<!-- include examples/rate_limit.py:conversation -->\n") == once


def test_an_include_without_a_code_block_is_refused() -> None:
    comment = "<!-- include deploy/systemd/sapwood.socket -->\n"

    with pytest.raises(SystemExit, match=r"sapwood\.socket is included without a code block"):
        include_code.with_code(comment)
    assert "ListenStream=" in include_code.with_code(comment + "```ini\n```\n")
