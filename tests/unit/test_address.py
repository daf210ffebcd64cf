"""Addresses are values: what is written can be read back, and no name is ever a path."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from sapwood.address import MAX_NAME_BYTES, Address, PathSegment, checked_name, kebab
from sapwood.errors import InvalidName

text = st.text(st.characters(codec="utf-8", exclude_characters="\0"), min_size=1, max_size=40)
addresses = st.lists(st.tuples(text, text), min_size=1, max_size=4).map(
    lambda steps: Address(tuple(PathSegment(*step) for step in steps))
)


@pytest.mark.slow
@given(addresses)
def test_an_address_is_read_back_as_it_was_written(address: Address) -> None:
    assert Address.parse(str(address)) == address


@pytest.mark.slow
@given(addresses, addresses)
def test_different_addresses_have_different_texts(one: Address, other: Address) -> None:
    assert (str(one) == str(other)) == (one == other)


@pytest.mark.slow
@given(addresses)
def test_the_text_of_an_address_is_plain_ascii_without_dots_of_a_path(address: Address) -> None:
    written = str(address)

    assert written.isascii()
    assert written.isprintable()
    assert " " not in written
    assert not {".", ".."} & set(written.split("/"))


@pytest.mark.parametrize("wrong", ["", "/", "Inbox", "Inbox:a/", "/Inbox:a", "Inbox:a//Inbox:b", "Inbox:", "Inbox:%00"])
def test_a_text_that_is_no_address_is_refused(wrong: str) -> None:
    with pytest.raises(InvalidName, match=r"Expected Type:name, such as Assistant:main, or Type:name/Type:name|null"):
        Address.parse(wrong)


def test_an_address_knows_its_root_its_parent_and_what_is_above_it() -> None:
    root = Address.root_of("Inbox", "alice")
    child = root.child("Notebook", "shopping")
    grandchild = child.child("Page", "1")

    assert (grandchild.type, grandchild.name) == ("Page", "1")
    assert grandchild.root == child.root == root.root == root
    assert (root.parent, child.parent, grandchild.parent) == (None, root, child)
    assert grandchild.is_below(root)
    assert grandchild.is_below(child)
    assert not child.is_below(child)
    assert not root.is_below(child)
    assert not Address.root_of("Inbox", "bob").child("Notebook", "shopping").is_below(root)


@pytest.mark.slow
@given(addresses)
def test_equal_addresses_are_one_key(address: Address) -> None:
    twin = Address(tuple(PathSegment(*step) for step in address.segments))

    assert {address: 1}[twin] == 1


@pytest.mark.parametrize(
    "name", ["a", ".", "..", "../../etc/passwd", "a/b", "%00", "näme", "🌲", " ", "a\nb", "x" * 512]
)
def test_a_name_is_opaque_text(name: str) -> None:
    assert checked_name(name) == name
    assert Address.root_of("Inbox", name).name == name


@pytest.mark.parametrize(
    ("name", "because"),
    [
        ("", "empty"),
        ("a\0b", "null character"),
        ("x" * 513, "513"),
        ("ä" * 257, "514"),
        ("\ud800", "Unicode"),
    ],
)
def test_a_name_that_cannot_be_kept_is_refused_with_the_reason(name: str, because: str) -> None:
    with pytest.raises(InvalidName, match=because):
        checked_name(name)


def test_the_length_of_a_name_is_counted_in_bytes() -> None:
    longest = "ä" * (MAX_NAME_BYTES // 2)

    assert checked_name(longest) == longest
    with pytest.raises(InvalidName):
        checked_name(longest + "a")


@pytest.mark.parametrize(
    ("name", "url"),
    [
        ("Inbox", "inbox"),
        ("MyAgent", "my-agent"),
        ("ChatHTTPServer", "chat-h-t-t-p-server"),
        ("SUB", "sub"),
        ("MY_AGENT", "my-agent"),
        ("my_agent", "my-agent"),
        ("Agent2", "agent2"),
        ("A", "a"),
        ("_Private", "--private"),
        ("Trailing_", "trailing"),
        ("sub", "sub"),
        ("ÄrgerAgent", "Ärger-agent"),
    ],
)
def test_a_class_name_has_one_form_in_urls(name: str, url: str) -> None:
    assert kebab(name) == url


@pytest.mark.slow
@given(st.from_regex(r"[A-Z][a-z]+([A-Z][a-z]+){0,4}", fullmatch=True))
def test_the_url_form_of_a_camel_case_name_keeps_every_word(name: str) -> None:
    assert "".join(word.title() for word in kebab(name).split("-")) == name
