"""What a test needs of the machine is known at collection, however slow the machine is."""

from __future__ import annotations

import shutil
import subprocess
from typing import Any

import pytest
from tests import needs


def test_a_check_that_takes_too_long_is_a_reason_to_skip(monkeypatch: pytest.MonkeyPatch) -> None:
    def hang(command: list[str], *, timeout: float, **_: Any) -> None:
        raise subprocess.TimeoutExpired(command, timeout)

    def find(name: str) -> str:
        return f"/usr/bin/{name}"

    monkeypatch.setattr(subprocess, "run", hang)
    monkeypatch.setattr(shutil, "which", find)

    assert "within 300 s" in needs._bubblewrap()  # pyright: ignore[reportPrivateUsage]
