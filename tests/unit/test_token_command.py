"""`sapwood token` prints what the admin API of the data folder accepts, and refuses what makes no sense."""

from __future__ import annotations

import resource
import time
from pathlib import Path

import pytest

from sapwood.admin.access import Access
from sapwood.admin.tokens import TokenKey
from sapwood.cli.commands import cli
from sapwood.errors import UsageError
from sapwood.types import Address


def test_a_token_has_the_scopes_the_time_and_the_limit_that_were_asked_for(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    def token(*words: str) -> Access | None:
        cli(["token", *words, "--data", str(tmp_path)])
        return TokenKey(tmp_path).access_of(capsys.readouterr().out.strip(), time.time())

    plain = token("--name", "ann")
    limited = token("--name", "bob", "--may", "look, answer", "--for", "30m", "--under", "Desk:main")

    assert plain is not None
    assert limited is not None
    assert (plain.name, plain.scopes, plain.below) == ("ann", {"look"}, None)
    assert (limited.scopes, limited.below) == ({"look", "answer"}, Address.parse("Desk:main"))
    assert plain.expires_at is not None
    assert limited.expires_at is not None
    assert round((plain.expires_at - limited.expires_at) / 60) == 450


def test_rotation_revokes_what_was_signed_before(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    cli(["token", "--name", "ann", "--data", str(tmp_path)])
    before = capsys.readouterr().out.strip()
    cli(["token", "--rotate", "--data", str(tmp_path)])

    assert capsys.readouterr().out == "All tokens were revoked.\n"
    assert TokenKey(tmp_path).access_of(before, time.time()) is None


@pytest.mark.parametrize(
    "words",
    [
        [],
        ["--name", "operator"],
        ["--name", "a\nb"],
        ["--name", "ann", "--may", "everything"],
        ["--name", "ann", "--may", ","],
        ["--name", "ann", "--for", "0h"],
        ["--name", "ann", "--for", "2y"],
        ["--name", "ann", "--for", "400d"],
        ["--name", "ann", "--data", "/no/such/folder"],
    ],
)
def test_what_makes_no_token_is_refused(tmp_path: Path, words: list[str]) -> None:
    folder = [] if "--data" in words else ["--data", str(tmp_path)]
    with pytest.raises(UsageError):
        cli(["token", *words, *folder])


@pytest.mark.parametrize("has_key", [False, True])
def test_a_key_that_does_not_fit_on_the_disk_leaves_no_part_of_it(has_key: bool, tmp_path: Path) -> None:
    key, access = TokenKey(tmp_path), Access("ann", frozenset({"look"}), None, time.time() + 60)
    before = key.sign(access) if has_key else ""
    limits = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (0, limits[1]))
    try:
        with pytest.raises(OSError, match="too large"):
            key.rotate() if has_key else key.sign(access)
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, limits)

    assert [file.name for file in tmp_path.iterdir()] == ["admin.key"] * has_key
    assert key.access_of(before or key.sign(access), time.time()) == access
