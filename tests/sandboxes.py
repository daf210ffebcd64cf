"""Where code behind Bubblewrap can be tested: where the system has it, and the kernel allows namespaces."""

from __future__ import annotations

import functools
import shutil
import subprocess

import pytest


@functools.cache
def why_no_bubblewrap() -> str:
    """Return why Bubblewrap does not work here; nothing, if it does."""
    found = shutil.which("bwrap")
    if found is None:
        return "Bubblewrap is not installed: apt-get install bubblewrap"
    command = [found, "--unshare-all", "--unshare-user", "--ro-bind", "/", "/", "--dev", "/dev", "true"]
    tried = subprocess.run(command, capture_output=True, text=True, timeout=30, check=False)
    return "" if tried.returncode == 0 else f"Bubblewrap cannot make namespaces here: {tried.stderr.strip()}"


needs_bubblewrap = pytest.mark.skipif(bool(why_no_bubblewrap()), reason=why_no_bubblewrap())
"""Marks tests that are run only where Bubblewrap works, and say why they are not."""
