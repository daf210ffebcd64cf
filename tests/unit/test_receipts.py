"""What a receipt says that was changed, and what is none."""

from __future__ import annotations

import asyncio
import shutil
from datetime import timedelta
from pathlib import Path

import pytest
from tests import loops

pytest.importorskip("cryptography")

from sapwood import After, Agent, App, Settings
from sapwood.cli.commands import cli
from sapwood.errors import Refused
from sapwood.kernel.erasure.backup_erasure import erase_from_backup
from sapwood.kernel.erasure.receipt import (
    ErasedPlace,
    ErasureReceipt,
    fingerprint_of,
    private_key,
    signed,
    subject_of,
    verify_receipt,
)
from sapwood.kernel.history.segments import history_folder
from sapwood.types import Address

SECRET = "5eC3e7" + "0f1e2d3c4b5a69788796a5b4c3d2e1f0" * 2


def receipt() -> str:
    place = ErasedPlace(place="files", state="erased")
    time = "2026-11-20T00:00:00.000+00:00"
    unsigned = ErasureReceipt(
        id="1", salt="s", subject=subject_of("s", "Desk:a"), is_subtree=False, by="cli", asked_at=time,
        finished_at=time, agents=1, places=[place], not_covered=[], public_key="", fingerprint="",
    )  # fmt: skip
    return signed(unsigned, bytes(32)).json()


@pytest.mark.parametrize("old", ['"erased"', '"salt"', "ed25519:"])
def test_a_changed_receipt_is_called_changed(old: str) -> None:
    assert verify_receipt(receipt()).agents == 1

    with pytest.raises(Refused, match="The receipt was changed after it was signed, or is damaged"):
        verify_receipt(receipt().replace(old, f"{old[:-2]}x{old[-1]}"))


@pytest.mark.parametrize("text", ["", "[]", "{}", "Dear Ann"])
def test_what_is_no_receipt_is_called_so(text: str) -> None:
    with pytest.raises(Refused, match="This is not a receipt of an erasure"):
        verify_receipt(text)


class ReceiptOwner(Agent[str]):
    initial_state = ""

    async def keep(self, text: str) -> None:
        self.set_state(text)
        self.schedule(After(timedelta(hours=5)), self.keep, text)


def test_the_key_of_the_settings_signs_what_is_erased_from_a_backup_or_without_a_server(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("SAPWOOD_ERASURE_KEY", "11" * 32)
    data = tmp_path / "data"

    async def work() -> None:
        async with App(agents=[ReceiptOwner], settings=Settings(data=data)) as app:
            await (await app.get_agent(ReceiptOwner, "ann")).keep(SECRET)
            await app.backup(tmp_path / "b")

    with asyncio.Runner(loop_factory=loops.factory) as runner:
        runner.run(work())
    found: list[ErasureReceipt] = []
    for where in (["--backup", str(tmp_path / "b")], []):
        cli(["erase", "ReceiptOwner:ann", "--yes", "--data", str(data), *where])
        found.append(verify_receipt(capsys.readouterr().out))

    public = private_key(bytes.fromhex("11" * 32)).public_key().public_bytes_raw()
    assert [one.fingerprint for one in found] == [fingerprint_of(public)] * 2
    assert not (data / "erasure.key").exists()


async def test_a_tree_is_erased_from_a_copy_of_a_data_folder_with_its_history_and_crash_files(tmp_path: Path) -> None:
    data, copy = tmp_path / "data", tmp_path / "copy"
    async with App(agents=[ReceiptOwner], settings=Settings(data=data, history=86400.0)) as app:
        for name in ("ann", "bob"):
            await (await app.get_agent(ReceiptOwner, name)).keep(SECRET if name == "ann" else "harmless")
            await app.moments(ReceiptOwner, name)
    (data / "crashes").mkdir()
    (data / "crashes" / "one.txt").write_text("ReceiptOwner:ann was blocked\n")
    shutil.copytree(data, copy)
    ann = Address.parse("ReceiptOwner:ann")
    assert history_folder(copy, ann).exists()

    receipt = erase_from_backup(data, copy, ann, 1.0)

    assert not history_folder(copy, ann).exists()
    assert history_folder(copy, Address.parse("ReceiptOwner:bob")).exists()
    assert list((copy / "crashes").iterdir()) == []
    files = [path for path in copy.rglob("*") if path.is_file() and b"ReceiptOwner:ann" in path.read_bytes()]
    assert {path.name for path in files} <= {"alarms.db", "alarms.db-wal"}
    (left,) = receipt.remains
    assert (left.state, left.count) == ("still there", len(files))
    assert "alarms.db" in left.note
