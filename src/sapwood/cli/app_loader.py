"""From `module:app` to the app: import what the command line names."""

from __future__ import annotations

import ast
import importlib
import os
import sys
from dataclasses import dataclass
from pathlib import Path
from types import ModuleType
from typing import Any

from sapwood.app import App
from sapwood.cli.environment import changes
from sapwood.errors import UsageError
from sapwood.settings import Durability

USUAL = ("app.py", "main.py")
EXTRA_OF = {
    "jwt": "auth",
    "mcp": "mcp",
    "nats": "cluster",
    "obstore": "cluster",
    "opentelemetry": "otel",
    "pydantic_evals": "evals",
    "prometheus_client": "metrics",
    "pydantic_ai": "chat",
    "pydantic_monty": "sandbox",
    "temporalio": "temporal",
}
"""The extra that installs a module that an app may import."""


@dataclass(frozen=True, slots=True)
class LoadedApp:
    """The result of importing `module:app`."""

    asgi: Any
    """The ASGI application to serve: the app, or the application that it is mounted in."""
    app: App


def usual_target(folder: Path) -> str:
    """Return the default target of a folder: app.py or main.py that defines `app`."""
    for name in USUAL:
        path = folder / name
        if path.exists() and _assigns_app(path):
            return f"{path.stem}:app"
    raise UsageError(
        "Neither app.py nor main.py in this folder defines `app`. Pass the app to the command as module:app."
    )


def _assigns_app(path: Path) -> bool:
    try:
        tree = ast.parse(path.read_text())
    except (SyntaxError, UnicodeDecodeError):
        return True  # the import will report what is wrong
    names: set[str] = set()
    for node in tree.body:
        if isinstance(node, ast.Assign):
            names |= {target.id for target in node.targets if isinstance(target, ast.Name)}
        elif isinstance(node, ast.AnnAssign) and isinstance(node.target, ast.Name):
            names.add(node.target.id)
        elif isinstance(node, ast.ImportFrom):
            names |= {alias.asname or alias.name for alias in node.names}
    return "app" in names


def load(target: str, data: str | None = None, **given: str) -> LoadedApp:
    """Import the app and apply the settings of the environment; `data` and the other arguments override them.

    A process with NATS servers in its settings is a node of a cluster, unless `durability` says otherwise.
    """
    where, _, name = target.partition(":")
    name = name or "app"
    module = _import(where)
    found: Any = module
    for part in name.split("."):
        found = getattr(found, part, None)
    if found is None:
        apps = ", ".join(f"{where}:{key}" for key, value in vars(module).items() if isinstance(value, App))
        raise UsageError(f"{where} has no {name!r}. " + (f"Did you mean {apps}?" if apps else "It defines no App."))
    app = found if isinstance(found, App) else _inside(module, found, target)
    wanted = changes(os.environ, app.settings)
    if data is not None:
        wanted["data"] = data
    wanted |= given
    if wanted.get("nats"):
        wanted.setdefault("durability", Durability.REPLICATED)
    if wanted:
        app.configure(**wanted)
    return LoadedApp(found, app)


def import_file(file: str) -> ModuleType:
    """Import a Python file."""
    if not file.endswith(".py"):
        raise UsageError(f"Expected a Python file, got {file!r}.")
    return _import(file)


def _inside(module: ModuleType, found: Any, target: str) -> App:
    """Return the App that runs inside another ASGI application of the same module."""
    if not callable(found) or isinstance(found, type):
        raise UsageError(f"{target} must be a sapwood App, or an ASGI app around one, got a {type(found).__name__}.")
    apps = {id(value): value for value in vars(module).values() if isinstance(value, App)}
    if len(apps) != 1:
        raise UsageError(
            f"{target} is a {type(found).__name__}, so its module must define exactly one sapwood App, but it "
            f"defines {len(apps) or 'none'}. Define the App that runs inside {target} in the same module, and no "
            "other."
        )
    return next(iter(apps.values()))


def _import(where: str) -> ModuleType:
    folder = Path.cwd()
    if where.endswith(".py"):
        path = Path(where)
        if not path.exists():
            raise UsageError(f"The file {where!r} does not exist.")
        folder, where = path.resolve().parent, path.stem
    if not all(where.split(".")):
        raise UsageError(f"{where!r} is not a valid module name. Pass the app as module:app, such as app:app.")
    if str(folder) not in sys.path:
        sys.path.insert(0, str(folder))
    try:
        return importlib.import_module(where)
    except ModuleNotFoundError as error:
        if extra := EXTRA_OF.get((error.name or "").partition(".")[0]):
            text = (
                f"{where} needs {error.name}, which is not installed. Install it with: pip install 'sapwood[{extra}]'."
            )
            raise UsageError(text) from error
        if error.name is None or not f"{where}.".startswith(f"{error.name}."):
            raise
        raise UsageError(
            f"The module {where!r} does not exist in {folder}. Pass the app as module:app, such as app:app."
        ) from None
