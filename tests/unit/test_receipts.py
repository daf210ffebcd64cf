"""What a receipt says that was changed, and what is none."""

from __future__ import annotations

import pytest

pytest.importorskip("cryptography")

from sapwood.errors import Refused
from sapwood.kernel.erasure.receipt import ErasedPlace, ErasureReceipt, signed, subject_of, verify_receipt


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
