"""An erasure forgets the past of the whole tree, also if only a sub-agent is erased."""

from __future__ import annotations

import threading
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from sapwood import Agent, App, Settings
from sapwood.admin.erasure_hooks import ERASURE_HOOKS
from sapwood.admin.moments import moment_of
from sapwood.errors import InvalidArguments, Unavailable
from sapwood.kernel.erasure.erasure import Erasures
from sapwood.kernel.history.recorder import HistoryRecorder
from sapwood.testing import running
from sapwood.types import Address


class PastInner(Agent): ...


class PastOuter(Agent):
    async def grow(self) -> None:
        await self.sub_agent(PastInner, "i")


@pytest.mark.parametrize("address", ["PastOuter:o", "PastOuter:o/PastInner:i"])
async def test_nothing_is_left_of_the_past_when_the_receipt_is_signed(address: str) -> None:
    async with running(App(agents=[PastOuter]), history=86400.0) as world:
        await (await world.get_agent(PastOuter, "o")).grow()
        await world.app.moments(PastOuter, "o")
        history, busy = world.node.history, threading.Event()
        assert isinstance(history, HistoryRecorder)
        old = next(iter((world.data / "history").rglob("*.segment"))).read_bytes()
        history._thread.put(lambda: busy.wait(10), lambda error, result: None)  # pyright: ignore[reportPrivateUsage]
        try:
            assert world.node.erasures is not None
            receipt = await world.node.erasures.erase(Address.parse(address), by="ann")
            left = [path for path in (world.data / "history").rglob("*") if path.is_file()]
        finally:
            busy.set()
        assert [place.state for place in receipt.places if place.place == "history"] == ["erased"]
        assert not [path for path in left if path.suffix == ".segment" and path.read_bytes().startswith(old)]
        assert not list((world.data / "history").glob("*.removed"))


@pytest.mark.parametrize("address", ["PastOuter:o", "PastOuter:o/PastInner:i"])
async def test_the_past_of_the_tree_is_forgotten_and_counted(tmp_path: Path, address: str) -> None:
    forgotten: list[Address] = []

    async def forget(node: Any, root: Address) -> int:
        forgotten.append(root)
        return 3

    async with App(agents=[PastOuter], settings=Settings(data=tmp_path / "data")) as app:
        await (await app.get_agent(PastOuter, "o")).grow()
        erasures = Erasures(app.node, replace(ERASURE_HOOKS, history=forget))

        receipt = await erasures.erase(Address.parse(address), by="ann")

        assert forgotten == [Address.parse("PastOuter:o")]
        assert [place.count for place in receipt.places if place.place == "history"] == [3]
        await erasures.close()


async def test_an_agent_that_is_being_erased_is_not_copied(tmp_path: Path) -> None:
    async with running(App(agents=[PastOuter])) as world:
        await (await world.get_agent(PastOuter, "o")).grow()
        subject = Address.parse("PastOuter:o/PastInner:i")
        world.node.erasing.begin(subject)
        with pytest.raises(Unavailable, match="are being erased"):
            await world.app.fork(PastOuter, "o", to="p")
        with pytest.raises(Unavailable, match="are being erased"):
            await world.app.export(PastOuter, "o", tmp_path / "o")
        assert [path.suffix for path in (world.data / "trees").iterdir()] == [""]
        world.node.erasing.end(subject)
        assert (await world.app.fork(PastOuter, "o", to="p")).agents == 2


@pytest.mark.parametrize("given", [1e300, float("nan")])
def test_a_time_that_no_clock_has_is_refused(given: float) -> None:
    with pytest.raises(InvalidArguments, match="must be a time"):
        moment_of(given, Address.parse("PastOuter:o"))
