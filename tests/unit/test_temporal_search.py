"""Workflows can be searched for wherever the namespace knows by what, whoever told it."""

from __future__ import annotations

from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
from temporalio.api.enums.v1 import IndexedValueType
from temporalio.service import RPCError, RPCStatusCode

from sapwood import App, Settings
from sapwood.drivers.temporal import TemporalDriver
from sapwood.runs.execution.driver import DrivenWork
from sapwood.types import Address

KEYWORD = IndexedValueType.INDEXED_VALUE_TYPE_KEYWORD
OURS = {"SapwoodType": KEYWORD, "SapwoodPath": KEYWORD, "SapwoodRoot": KEYWORD}
DENIED = RPCError("Request unauthorized.", RPCStatusCode.PERMISSION_DENIED, b"")
TOO_MANY = RPCError("Unable to create search attributes: too many.", RPCStatusCode.INVALID_ARGUMENT, b"")


class Strict:
    """A Temporal server that does not add search attributes, as far as a driver sees it."""

    def __init__(self, error: RPCError, known: dict[str, Any] | None) -> None:
        self._error = error
        self._known = known
        self.begun: list[dict[str, Any]] = []
        self.operator_service = self

    async def add_search_attributes(self, request: object) -> None:
        raise self._error

    async def list_search_attributes(self, request: object) -> Any:
        if self._known is None:
            raise DENIED
        return SimpleNamespace(custom_attributes=self._known)

    async def start_workflow(self, name: str, driven: object, **options: Any) -> None:
        self.begun.append(options)


class DeniedDriver(TemporalDriver):
    """A driver whose client is not let near the search attributes."""

    def __init__(self, server: Strict) -> None:
        super().__init__(token="one")
        self._server = server

    async def connect(self, *, lazy: bool = False) -> Any:
        return self._server


@pytest.mark.parametrize(
    ("error", "known", "wanted"),
    [
        (DENIED, OURS, {"SapwoodType": "Clerk", "SapwoodPath": "Desk:a/Clerk:b", "SapwoodRoot": "Desk:a"}),
        (DENIED, {"SapwoodType": KEYWORD}, {}),
        (DENIED, None, {}),
        (TOO_MANY, {}, {}),
    ],
    ids=["added by somebody else", "not all added", "not even to be listed", "no room for more"],
)
async def test_a_driver_that_may_not_add_search_attributes_uses_those_that_are_there(
    error: RPCError, known: dict[str, Any] | None, wanted: dict[str, str], tmp_path: Path
) -> None:
    server = Strict(error, known)
    driver = DeniedDriver(server)

    async with App(agents=[], driver=driver, settings=Settings(data=tmp_path)):
        await driver.ready(DrivenWork(Address.parse("Desk:a/Clerk:b"), "run-1"))

    (begun,) = server.begun
    assert {pair.key.name: pair.value for pair in begun["search_attributes"].search_attributes} == wanted
