"""The commands that copy and delete trees, on a folder without a server."""

from __future__ import annotations

import io
from pathlib import Path

import pytest
from tests.unit.stored_folder import fold, make_folder

from sapwood.cli.commands import cli
from sapwood.errors import NotFound, UsageError
from sapwood.kernel.node.driver_mark import note_driver
from sapwood.storage.files import Files


@pytest.fixture
def data(tmp_path: Path) -> Path:
    folder = tmp_path / "data"
    make_folder(folder)
    fold(folder)
    return folder


def test_a_root_is_destroyed_if_that_is_confirmed(
    data: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("sys.stdin", io.StringIO("y\n"))
    for command in ("destroy", "erase"):
        with pytest.raises(UsageError, match=r"Standard input is no terminal, .* Pass --yes\."):
            cli([command, "StoredBox:good", "--data", str(data)])
    with pytest.raises(UsageError, match="only roots can be deleted"):
        cli(["destroy", "StoredBox:good/StoredBox:in", "--yes", "--data", str(data)])
    capsys.readouterr()

    cli(["destroy", "StoredBox:good", "--yes", "--data", str(data)])

    assert capsys.readouterr().out == "Deleted 4 agents.\n"
    with pytest.raises(NotFound, match="StoredBox:good does not exist"):
        cli(["destroy", "StoredBox:good", "--yes", "--data", str(data)])


def test_an_export_is_imported_into_a_folder_that_no_server_has_used(
    data: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    file, other = tmp_path / "box.sapwood", tmp_path / "other"
    cli(["export", "StoredBox:good", str(file), "--data", str(data)])
    with pytest.raises(UsageError, match="There is no file"):
        cli(["import", str(tmp_path / "none"), "--data", str(other)])
    assert not other.exists()
    capsys.readouterr()

    cli(["import", str(file), "--data", str(other)])

    assert capsys.readouterr().out.startswith("Made StoredBox:good, a copy of StoredBox:good with 4 agents.")


def test_a_folder_whose_app_has_a_driver_refuses_work_that_the_driver_does_not_know(data: Path) -> None:
    note_driver(data, Files(), has_driver=True)
    for command in (["fork", "StoredBox:good", "copy", "--work", "run"], ["move", "StoredBox:good", "copy"]):
        with pytest.raises(UsageError, match="driver"):
            cli([*command, "--data", str(data)])

    note_driver(data, Files(), has_driver=False)

    cli(["fork", "StoredBox:good", "copy", "--work", "run", "--data", str(data)])


@pytest.mark.parametrize(
    "command",
    [["fork", "StoredBox:good"], ["rewind", "StoredBox:good", "--at", "first", "--keep-as"]],
    ids=lambda words: words[0],
)
def test_an_address_is_refused_where_a_name_is_expected(data: Path, command: list[str]) -> None:
    (data / "history").mkdir(exist_ok=True)

    with pytest.raises(UsageError, match=r"A name was expected, got the address 'StoredBox:x'\. Pass the name 'x'\."):
        cli([*command, "StoredBox:x", "--data", str(data)])


def test_a_move_to_another_server_without_a_token_names_the_option(data: Path) -> None:
    with pytest.raises(UsageError, match="needs --token-file FILE"):
        cli(["move", "StoredBox:good", "https://other.example", "--data", str(data)])


class Terminal(io.StringIO):
    def isatty(self) -> bool:
        return True


def test_the_confirmation_of_a_sub_agent_names_the_history_of_its_tree(
    data: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    for address, has_more in (("StoredBox:good/StoredBox:in", True), ("StoredBox:good", False)):
        monkeypatch.setattr("sys.stdin", Terminal("n\n"))
        with pytest.raises(UsageError, match="Nothing was erased"):
            cli(["erase", address, "--data", str(data)])
        assert ("the history of the whole tree of StoredBox:good" in capsys.readouterr().err) is has_more
