"""The command line: the list of all commands, and how it ends.

A command is imported when it is called: none waits for what only others need.
"""

from __future__ import annotations

import os
import sys
from importlib.metadata import version

from cyclopts import App

from sapwood.cli.terminal import error_line
from sapwood.errors import SapwoodError

INTERRUPTED = 130
COMMANDS = (
    "serve_commands:serve",
    "serve_commands:dev",
    "agent_commands:tree",
    "agent_commands:top",
    "agent_commands:state",
    "agent_commands:methods",
    "agent_commands:sql",
    "agent_commands:call",
    "agent_commands:dead_letters",
    "agent_commands:questions",
    "agent_commands:decisions",
    "agent_commands:runs",
    "spending_command:spending",
    "explain:explain",
    "record_command:record",
    "diff_command:diff",
    "history_commands:moments",
    "history_commands:rewind",
    "replay_command:replay",
    "eval_command:eval_",
    "agent_commands:release",
    "backup_commands:backup",
    "backup_commands:restore",
    "backup_commands:verify",
    "erase_commands:erase",
    "erase_commands:receipt",
    "tree_commands:fork",
    "tree_commands:move",
    "tree_commands:export",
    "tree_commands:import_",
    "tree_commands:destroy",
    "cluster:cluster",
    "docs_command:docs",
    "mcp_command:mcp",
    "token_command:token",
    "temporal_commands:temporal",
    "new_command:new",
    "shell:shell",
    "upgrade_command:upgrade",
    "check_commands:upgrade_check",
    "check_commands:doctor",
)

cli = App(
    name="sapwood",
    help="Durable AI agents that branch: create a project, serve it, inspect it.",
    version=lambda: version("sapwood"),
    result_action="return_value",
)
for command in COMMANDS:
    cli.command(f"sapwood.cli.{command}")


def run() -> None:
    """Run the command line and exit: 0 on success, 1 with an error message on failure."""
    if sys.argv[1:] in ([], ["--help"], ["-h"]):
        for command in cli:
            cli[command]  # imports it: the list has a line of each
    try:
        code = cli()
    except SapwoodError as error:
        sys.exit(error_line(error))
    except KeyboardInterrupt:
        sys.exit(INTERRUPTED)
    except BrokenPipeError:
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())  # the reader of our output has closed it
        sys.exit(0)
    sys.exit(code if isinstance(code, int) else 0)
