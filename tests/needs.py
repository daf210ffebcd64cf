"""What a test needs of the machine: `@pytest.mark.needs("chromium")` skips the test where Chromium is missing.

Needs are resolved at collection, never in a fixture, so that every skip is visible before a test runs.
"""

from __future__ import annotations

import functools
import os
import re
import shutil
import subprocess
import tempfile
from collections.abc import Callable, Iterable
from pathlib import Path

import pytest

CONTAINERFILE = Path(__file__).parent.parent / "deploy/oci/Containerfile"


def base_image() -> str:
    """Return what the image of the tests is built from. A machine without a registry names an image of its own."""
    (pinned,) = re.findall(r"^ARG BASE=(.+)$", CONTAINERFILE.read_text(), re.MULTILINE)
    return os.environ.get("SAPWOOD_BASE_IMAGE") or pinned


def _program(*names: str) -> str:
    return "" if any(shutil.which(name) for name in names) else f"needs {' or '.join(names)}"


def _ordinary_user() -> str:
    return "needs a user other than root, who may write everything" if os.geteuid() == 0 else ""


def _bubblewrap() -> str:
    found = shutil.which("bwrap")
    if found is None:
        return "needs bubblewrap: apt-get install bubblewrap"
    command = [found, "--unshare-all", "--unshare-user", "--ro-bind", "/", "/", "--dev", "/dev", "true"]
    try:
        tried = subprocess.run(command, capture_output=True, text=True, timeout=300, check=False)
    except subprocess.TimeoutExpired as error:
        return f"needs bubblewrap, which made no namespaces within {error.timeout:.0f} s"
    return f"needs bubblewrap, which cannot make namespaces: {tried.stderr.strip()}" if tried.returncode else ""


def _base_image() -> str:
    if shutil.which("podman") is None:
        return "needs podman"
    found = subprocess.run(["podman", "image", "exists", image := base_image()], capture_output=True, check=False)
    return f"needs an image: podman pull {image}" if found.returncode else ""


def _mount() -> str:
    if shutil.which("mount") is None or os.geteuid() != 0:
        return "needs a user who may mount file systems"
    with tempfile.TemporaryDirectory() as folder:
        tried = subprocess.run(["mount", "-t", "tmpfs", "tmpfs", folder], capture_output=True, text=True, check=False)
        if tried.returncode:
            return f"needs a user who may mount file systems: {tried.stderr.strip()}"
        subprocess.run(["umount", folder], check=True)
    return ""


NEEDS: dict[str, Callable[[], str]] = {
    "image": functools.cache(_base_image),
    "browser": functools.partial(_program, "chromium-headless-shell", "chromium"),
    "bubblewrap": functools.cache(_bubblewrap),
    "caddy": functools.partial(_program, "caddy"),
    "chromium": functools.partial(_program, "chromium"),
    "mount": functools.cache(_mount),
    "npm": functools.partial(_program, "npm"),
    "ordinary user": _ordinary_user,
    "prometheus": functools.partial(_program, "prometheus"),
    "promtool": functools.partial(_program, "promtool"),
    "systemd-analyze": functools.partial(_program, "systemd-analyze"),
}
"""For each need, what tells why it is missing. An empty string means that it is there."""


def skip_where_missing(items: Iterable[pytest.Item]) -> None:
    """Give every test whose needs are missing on this machine a skip mark with the reason."""
    for item in items:
        for need in [need for mark in item.iter_markers("needs") for need in mark.args]:
            if need not in NEEDS:
                raise pytest.UsageError(f"{item.nodeid}: unknown need {need!r}. Known: {', '.join(sorted(NEEDS))}.")
            if reason := NEEDS[need]():
                item.add_marker(pytest.mark.skip(reason))
