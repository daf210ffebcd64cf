"""Variables become settings, and a misspelt one does not go unnoticed."""

from __future__ import annotations

from dataclasses import fields
from typing import Any

import pytest

from sapwood.cli.environment import changes
from sapwood.errors import UsageError
from sapwood.periods import Per
from sapwood.settings import Limits, Settings

EXAMPLES = {
    "data": ("/data", "/data"),
    "durability": ("disk", "disk"),
    "open_databases": ("100", 100),
    "origins": ("https://a.example, https://b.example", ("https://a.example", "https://b.example")),
    "allowed_hosts": ("a.example, b.example", ("a.example", "b.example")),
    "frame_ancestors": ("'self' https://a.example", "'self' https://a.example"),
    "file_url_schemes": ("https,http", ("https", "http")),
    "cors": ("yes", True),
    "check_state": ("0", False),
    "prefix": ("api", "api"),
    "nats": ("nats://a,nats://b", "nats://a,nats://b"),
    "archive": ("s3://bucket/all", "s3://bucket/all"),
    "cluster": ("east", "east"),
    "node": ("n-1", "n-1"),
    "mcp_private_hosts": ("mcp.internal, 127.0.0.1", ("mcp.internal", "127.0.0.1")),
    "secret_keys": ("a" * 32 + ", " + "b" * 32, ("a" * 32, "b" * 32)),
    "erasure_key": ("ab" * 32, "ab" * 32),
    "public_url": ("https://agents.example", "https://agents.example"),
    "prices": ("my-model=0.5/2, other=1/1", {"my-model": (0.5, 2.0), "other": (1.0, 1.0)}),
}


@pytest.mark.parametrize("name", [field.name for field in fields(Settings) if field.name != "limits"])
def test_every_setting_has_a_variable(name: str) -> None:
    text, value = EXAMPLES.get(name, ("7", 7))

    found = changes({f"SAPWOOD_{name.upper()}": text, "PATH": "/bin"}, Settings())

    assert found == {name: value}
    cluster: dict[str, Any] = {"durability": "replicated", "nats": "nats://a", "archive": "s3://b"}
    Settings(**(cluster | found if name in cluster and value != "disk" else found))


def test_one_limit_replaces_one_limit() -> None:
    base = Settings(limits=Limits(depth=3, children=4))

    found = changes({"SAPWOOD_LIMITS_CHILDREN": "5"}, base)

    assert found == {"limits": Limits(depth=3, children=5)}


def test_money_need_not_be_a_whole_number() -> None:
    found = changes({"SAPWOOD_LIMITS_DOLLARS": "2.5", "SAPWOOD_LIMITS_TOKENS": "1000"}, Settings())

    assert found == {"limits": Limits(dollars=2.5, tokens=1000)}


def test_a_budget_may_hold_for_each_period_of_a_calendar() -> None:
    variables = {"SAPWOOD_LIMITS_DOLLARS": "5/day, 50/month@Europe/Berlin", "SAPWOOD_LIMITS_TOKENS": "9,1000/hour"}

    found = changes(variables, Settings(limits=Limits(tokens=Per("week", 7))))

    money = (Per("day", 5), Per("month", 50, zone="Europe/Berlin"))
    assert found == {"limits": Limits(dollars=money, tokens=(9, Per("hour", 1000)))}


@pytest.mark.parametrize(
    ("variable", "text", "sentence"),
    [
        ("SAPWOOD_DURABILTY", "disk", "Did you mean SAPWOOD_DURABILITY?"),
        ("SAPWOOD_THREADS", "many", "must be a whole number"),
        ("SAPWOOD_THREADS", "0", r"SAPWOOD_THREADS: Settings\(threads=0\): expected an integer of at least 1"),
        ("SAPWOOD_SQL_TIMEOUT", "-1", r"SAPWOOD_SQL_TIMEOUT: Settings\(sql_timeout=-1.0\): expected a number above 0"),
        ("SAPWOOD_CORS", "maybe", "must be true or false"),
        ("SAPWOOD_PRICES", "my-model", "must be prices separated by commas"),
        ("SAPWOOD_LIMITS_DOLLARS", "much", "must be a number"),
        ("SAPWOOD_LIMITS_DOLLARS", "", "must be a number"),
        ("SAPWOOD_LIMITS_DOLLARS", "5/year", "SAPWOOD_LIMITS_DOLLARS: Per.*: expected 'hour'"),
        ("SAPWOOD_LIMITS_DOLLARS", "5/", "SAPWOOD_LIMITS_DOLLARS: Per.*: expected 'hour'"),
        ("SAPWOOD_LIMITS_DOLLARS", "5/@Europe/Berlin", "SAPWOOD_LIMITS_DOLLARS: Per.*: expected 'hour'"),
        ("SAPWOOD_LIMITS_DOLLARS", "5/day@", "SAPWOOD_LIMITS_DOLLARS: Unknown time zone ''"),
        ("SAPWOOD_LIMITS_TOKENS", "5/day@Mars", "SAPWOOD_LIMITS_TOKENS: Unknown time zone 'Mars'"),
    ],
)
def test_a_mistake_is_an_error(variable: str, text: str, sentence: str) -> None:
    with pytest.raises(UsageError, match=sentence.replace("?", r"\?")):
        changes({variable: text}, Settings())


def test_other_variables_are_not_ours_to_judge() -> None:
    assert changes({"SAPWOOD_VENV": "/somewhere", "SAPWOOD_PORT": "80", "SAPWOOD_LIVES": "3"}, Settings()) == {}
