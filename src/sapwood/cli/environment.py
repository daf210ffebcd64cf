"""From the environment to `Settings`: the only place that reads `SAPWOOD_*`.

Every setting has a variable: `durability` is SAPWOOD_DURABILITY, the limit `depth` is SAPWOOD_LIMITS_DEPTH. A variable
that looks like a misspelt setting is an error, so that no setting is silently ignored.
"""

from __future__ import annotations

import difflib
from collections.abc import Callable, Mapping
from dataclasses import fields
from typing import Any, cast

from sapwood.errors import UsageError
from sapwood.periods import Per, combined
from sapwood.settings import Limits, Settings, check_setting

PREFIX = "SAPWOOD_"
OTHERS = ("HOST", "LOG", "MONITOR", "PORT", "STUDIO", "URL")
"""Variables that are options of commands, not settings."""
TRUE = frozenset({"1", "true", "yes", "on"})
FALSE = frozenset({"0", "false", "no", "off"})


def changes(environment: Mapping[str, str], base: Settings) -> dict[str, Any]:
    """Return the settings that the environment overrides."""
    known: dict[str, str] = {f.name.upper(): str(f.type) for f in fields(Settings) if f.name != "limits"}
    limits = {f"LIMITS_{f.name.upper()}": f for f in fields(Limits)}
    found: dict[str, Any] = {}
    tightened: dict[str, float] = {}
    for variable, text in sorted(environment.items()):
        if not variable.startswith(PREFIX):
            continue
        name = variable.removeprefix(PREFIX)
        if name in known:
            found[name.lower()] = _read(variable, text, known[name], name.lower())
        elif name in limits:
            tightened[limits[name].name] = _read(variable, text, str(limits[name].type))
        elif name not in OTHERS and (near := difflib.get_close_matches(name, [*known, *limits, *OTHERS], 1, 0.8)):
            raise UsageError(f"{variable} is not a setting. Did you mean {PREFIX}{near[0]}?")
    if tightened:
        now = {f.name: getattr(base.limits, f.name) for f in fields(Limits)}
        found["limits"] = Limits(**{**now, **tightened})  # pyright: ignore[reportArgumentType] - as they were read
    return found


def _read(variable: str, text: str, kind: str, setting: str = "") -> Any:
    read, what = READERS.get(kind, (str, "a string"))
    try:
        value = read(text.strip())
        if setting:
            check_setting(setting, kind, value)
        return value
    except ValueError:
        raise UsageError(f"{variable} must be {what}, got {text!r}.") from None
    except UsageError as error:
        raise UsageError(f"{variable}: {error}") from None


def _flag(text: str) -> bool:
    if text.lower() in TRUE | FALSE:
        return text.lower() in TRUE
    raise ValueError(text)


def _parts(text: str) -> tuple[str, ...]:
    return tuple(part.strip() for part in text.split(",") if part.strip())


def _prices(text: str) -> dict[str, tuple[float, float]]:
    prices: dict[str, tuple[float, float]] = {}
    for part in _parts(text):
        model, _, price = part.rpartition("=")
        read, _, written = price.partition("/")
        prices[model] = (float(read), float(written))
    return prices


def _budget(read: Callable[[str], float]) -> Callable[[str], Any]:
    """Return what reads `1000`, `50/month@Europe/Berlin`, or several of these."""

    def part(text: str) -> float | Per:
        amount, has_period, calendar = text.partition("/")
        if not has_period:
            return read(amount)
        period, has_zone, zone = calendar.partition("@")
        return Per(cast("Any", period), read(amount), zone=zone if has_zone else "UTC")

    def budget(text: str) -> Any:
        if not (parts := _parts(text)):
            raise ValueError(text)
        return combined(tuple(part(one) for one in parts))

    return budget


READERS: dict[str, tuple[Callable[[str], Any], str]] = {
    "int": (int, "a whole number"),
    "int | None": (int, "a whole number"),
    "float": (float, "a number"),
    "float | None": (float, "a number"),
    "int | Per | tuple[int | Per, ...] | None": (_budget(int), "a whole number, or such as 1000/day@Europe/Berlin"),
    "float | Per | tuple[float | Per, ...] | None": (_budget(float), "a number, or such as 50/month@Europe/Berlin"),
    "bool": (_flag, "true or false"),
    "tuple[str, ...]": (_parts, "strings separated by commas"),
    "Mapping[str, tuple[float, float]]": (_prices, "prices separated by commas, such as my-model=0.5/2"),
}
"""The parser of a variable, by the annotation of its setting."""
