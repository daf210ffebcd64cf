"""Other processes of a server or cluster: the names of classes that they send run no code here."""

from __future__ import annotations

import sys
from dataclasses import dataclass
from pathlib import Path

import msgspec
import pytest

from sapwood.errors import Crashed
from sapwood.kernel.marshal.failures import Failure, unpack_error
from sapwood.kernel.marshal.values import Value, find, pack, value_from, value_of

CONTENT = msgspec.Raw(msgspec.msgpack.encode({"at": 1}))


@dataclass
class PeerValue:
    at: int


class PeerCommand:
    """A class that no value is sent as."""

    made = 0

    def __init__(self) -> None:
        PeerCommand.made += 1


@pytest.fixture
def trap(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> str:
    """The name of a module that is not loaded."""
    (tmp_path / "peer_trap.py").write_text("class Made(Exception):\n    pass\n")
    (tmp_path / "peer_lazy.py").write_text("def __getattr__(name):\n    import peer_trap\n    return peer_trap.Made\n")
    monkeypatch.syspath_prepend(str(tmp_path))
    monkeypatch.delitem(sys.modules, "peer_trap", raising=False)
    return "peer_trap"


def test_a_value_of_an_unknown_module_imports_nothing(trap: str) -> None:
    assert value_from(Value(trap, "Made", CONTENT)) == {"at": 1}
    assert trap not in sys.modules


def test_an_error_of_an_unknown_module_imports_nothing_and_keeps_its_text(trap: str) -> None:
    failure = Failure(trap, "Made", False, "Made: what went wrong", [], {}, [], None, None)

    error = unpack_error(pack(failure))

    assert isinstance(error, Crashed)
    assert "what went wrong" in str(error)
    assert trap not in sys.modules


def test_a_module_that_makes_names_up_is_not_asked(trap: str, monkeypatch: pytest.MonkeyPatch) -> None:
    __import__("peer_lazy")
    monkeypatch.delitem(sys.modules, trap, raising=False)

    assert find("peer_lazy", "Made") is None
    assert trap not in sys.modules
    monkeypatch.delitem(sys.modules, "peer_lazy")


def test_a_class_that_values_are_not_sent_as_is_not_made() -> None:
    assert value_from(Value(__name__, "PeerCommand", CONTENT)) == {"at": 1}
    assert PeerCommand.made == 0


def test_a_class_of_a_loaded_module_is_found() -> None:
    assert value_from(value_of(PeerValue(3))) == PeerValue(3)
