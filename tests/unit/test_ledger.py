"""What a tree has used up: never counted too low, whatever dies."""

from __future__ import annotations

import time
from collections.abc import Iterator
from pathlib import Path

import pytest
from tests.unit.helpers import a_database

from sapwood.address import PathSegment
from sapwood.errors import OverLimit
from sapwood.kernel.trees.quota import BYTES_AT_ONCE, Ledger
from sapwood.settings import Limits
from sapwood.storage.database import Database

SMALL = Limits(tree_bytes=1000)
PATH = (PathSegment("Tree", "one"),)


class Account:
    def __init__(self, folder: Path) -> None:
        self.path = folder / "root.db"
        self.measured = 0
        self.database: Database = a_database(self.path)
        self.ledger = Ledger(self.database, lambda: self.measured, lambda: self.measured, time.monotonic)

    def crash(self) -> None:
        """Begin again with what was committed."""
        self.database.rollback()
        self.database.close()
        self.database = a_database(self.path)
        self.ledger = Ledger(self.database, lambda: self.measured, lambda: self.measured, time.monotonic)


@pytest.fixture
def account(tmp_path: Path) -> Iterator[Account]:
    account = Account(tmp_path)
    yield account
    account.database.rollback()
    account.database.close()


def test_asking_makes_no_file(account: Account) -> None:
    assert account.ledger.below_children() == 0
    assert account.ledger.held("x") == 0
    assert account.ledger.holders() == []
    account.ledger.release("x")
    assert not account.ledger.grow(10, Limits(), PATH)
    account.ledger.settle()

    assert not account.path.exists()


def test_the_sum_follows_each_holder(account: Account) -> None:
    account.ledger.hold("x", 3)
    account.ledger.hold("y", 2)
    account.ledger.hold("x", 1)

    assert account.ledger.below_children() == 3
    assert (account.ledger.held("x"), account.ledger.held("y")) == (1, 2)
    assert sorted(account.ledger.holders()) == ["x", "y"]
    account.ledger.release("y")
    assert account.ledger.below_children() == 1
    assert account.ledger.holders() == ["x"]


def test_what_was_committed_is_there_after_a_crash(account: Account) -> None:
    account.ledger.hold("x", 3)
    account.database.commit()
    account.ledger.hold("y", 2)

    account.crash()

    assert account.ledger.below_children() == 3
    assert account.ledger.holders() == ["x"]


def test_a_holder_without_children_leaves_no_row(account: Account) -> None:
    account.ledger.hold("x", 3)
    account.ledger.hold("x", 0)

    assert account.ledger.holders() == []
    assert account.ledger.below_children() == 0


def test_a_tree_is_full_when_its_bytes_are_used_up(account: Account) -> None:
    account.measured = 1000
    with pytest.raises(OverLimit, match="1000 bytes") as caught:
        account.ledger.grow(1000, SMALL, PATH)

    assert caught.value.limit == "tree_bytes"
    assert caught.value.path == PATH


def test_before_a_tree_is_called_full_it_is_measured(account: Account) -> None:
    # The account may be too high, never too low: something was deleted, or a crash left a grant unused.
    account.ledger.grow(999, SMALL, PATH)
    account.measured = 500

    assert not account.ledger.grow(100, SMALL, PATH)
    account.measured = 1000
    with pytest.raises(OverLimit):
        account.ledger.grow(600, SMALL, PATH)


def test_zero_bytes_means_none(account: Account) -> None:
    with pytest.raises(OverLimit):
        account.ledger.grow(1, Limits(tree_bytes=0), PATH)


def test_a_tree_that_grows_past_its_grant_asks_for_more_and_has_it_after_a_crash(account: Account) -> None:
    assert not account.ledger.grow(BYTES_AT_ONCE, Limits(), PATH)
    assert account.ledger.grow(1, Limits(), PATH)
    account.ledger.grant()
    assert not account.ledger.grow(BYTES_AT_ONCE - 1, Limits(), PATH)
    account.database.commit()

    account.crash()
    account.measured = 7

    # Only the grant is known, not what was used of it: the account begins at the grant.
    assert account.ledger.grow(1, Limits(), PATH)


def test_a_tree_that_closes_in_good_order_stores_what_it_really_uses(account: Account) -> None:
    account.ledger.grow(BYTES_AT_ONCE + 1, Limits(), PATH)
    account.ledger.grant()
    account.ledger.settle()
    account.database.commit()

    account.crash()

    limits = Limits(tree_bytes=BYTES_AT_ONCE + 10)
    account.ledger.grow(1, limits, PATH)
    account.measured = BYTES_AT_ONCE + 10
    with pytest.raises(OverLimit):
        account.ledger.grow(20, limits, PATH)


def test_after_a_lost_transaction_the_sums_are_what_is_stored(account: Account) -> None:
    account.ledger.hold("x", 1)
    account.database.commit()
    account.ledger.hold("x", 2)
    account.ledger.hold("y", 5)

    account.database.rollback()
    account.ledger.reload()

    assert account.ledger.below_children() == 1
    assert (account.ledger.held("x"), account.ledger.held("y")) == (1, 0)
    account.ledger.hold("x", 2)
    account.database.commit()
    account.crash()
    assert account.ledger.below_children() == account.ledger.held("x") == 2
