"""A tree leaves as one file, and comes back anywhere as a fork. A file that is damaged or does not fit is refused."""

from __future__ import annotations

import asyncio
import hashlib
import io
import json
import re
import tarfile
import threading
from pathlib import Path
from typing import Any

import apsw
import pytest
from tests.conformance.test_forks import HOUR, ForkBough, ForkPlant, ForkTwig, nothing_done
from tests.conformance.worlds import Run, until

from sapwood import Agent, ChatAgent, with_options
from sapwood.errors import NotFound, StoredDataError, UsageError
from sapwood.kernel.forks import tree_file
from sapwood.kernel.marshal.agent_class import known
from sapwood.storage.engine import CHECKED
from sapwood.testing import ScriptedModel, text
from sapwood.types import ForkOrigin

pytestmark = [pytest.mark.slow, pytest.mark.usefixtures(nothing_done.__name__)]


class Albumist(ChatAgent):
    model = ScriptedModel(text("nice"))

    async def keep(self, content: bytes) -> str:
        return (await self.files.put(content)).digest

    async def bytes_of(self, digest: str) -> bytes:
        return await self.files.get(digest)


class TransferTill(ForkTwig):
    pass


class TransferClerk(Agent):
    async def charge(self) -> list[int]:
        till = await self.sub_agent(TransferTill, "t")
        await with_options(till, idempotency_key="order").put(1)
        return await till.numbers()


class TransferShop(Agent):
    async def charge(self) -> list[int]:
        return await (await self.sub_agent(TransferClerk, "c")).charge()


def files_in(path: Path) -> dict[str, str]:
    with tarfile.open(path) as tar:
        manifest = json.load(tar.extractfile("manifest.json"))  # type: ignore[arg-type]
    return {name: entry["sha256"] for name, entry in manifest["files"].items()}


def repacked(path: Path, target: Path, change: Any) -> Path:
    """Write a copy of an exported tree whose members were changed."""
    with tarfile.open(path) as tar, tarfile.open(target, "w") as out:
        for member in tar:
            for name, content in change(member.name, tar.extractfile(member).read()):  # type: ignore[union-attr]
                new = tarfile.TarInfo(name)
                new.size = len(content)

                out.addfile(new, io.BytesIO(content))
    return target


@pytest.mark.core("workers", "cluster")
async def test_a_tree_is_exported_while_it_runs_and_imported_under_another_name(run: Run, tmp_path: Path) -> None:
    async with run(ForkPlant) as world:
        plant = await world.get_agent(ForkPlant, "a")
        await plant.put(1)
        await plant.grow("left", "x", 2)
        await plant.plan()

        assert await world.app.export(ForkPlant, "a", tmp_path / "a.sapwood") == 3

        await plant.put(10)
        fork = await world.app.import_(tmp_path / "a.sapwood", as_name="b")
        assert (str(fork.address), fork.agents, fork.held.calls) == ("ForkPlant:b", 3, 4)
        copy = await world.get_agent(ForkPlant, "b")
        assert await copy.numbers() == [1]
        leaf = await world.app.get_agent(ForkPlant, "b", sub=((ForkBough, "left"), (ForkTwig, "x")))
        assert await leaf.numbers() == [2]
        origin: ForkOrigin | None = await copy.origin()
        assert origin is not None
        assert str(origin.address) == "ForkPlant:a"
        await world.clock.advance(HOUR + 1)
        await until(lambda: ForkPlant.done == ["tea a"])
        await world.crash()
        copy = await world.get_agent(ForkPlant, "b")
        assert len(await copy.letters()) == 4
        assert not list((Path(world.settings.data) / "trees").glob("*.copying"))


async def test_a_tree_that_is_imported_under_its_own_name_knows_that_it_is_a_fork(run: Run, tmp_path: Path) -> None:
    async with run(ForkPlant) as world:
        await (await world.get_agent(ForkPlant, "a")).put(1)
        await world.app.export(ForkPlant, "a", tmp_path / "a")
        await world.app.erase(ForkPlant, "a")

        await world.app.import_(tmp_path / "a")

        origin: ForkOrigin | None = await (await world.get_agent(ForkPlant, "a")).origin()
        assert origin is not None
        assert str(origin.address) == "ForkPlant:a"


async def test_a_subtree_is_exported_as_a_tree_of_its_own(run: Run, tmp_path: Path) -> None:
    async with run(ForkPlant, ForkBough) as world:
        plant = await world.get_agent(ForkPlant, "a")
        await plant.grow("left", "x", 2)
        await plant.grow("right", "y", 3)

        assert await world.app.export(ForkPlant, "a", tmp_path / "left", sub=[(ForkBough, "left")]) == 2

        fork = await world.app.import_(tmp_path / "left")
        assert str(fork.address) == "ForkBough:left"
        assert await (await world.app.get_agent(ForkBough, "left", sub=[(ForkTwig, "x")])).numbers() == [2]


async def test_a_subtree_keeps_the_outcomes_of_its_keyed_calls(run: Run, tmp_path: Path) -> None:
    async with run(TransferShop, TransferClerk) as world:
        assert await (await world.get_agent(TransferShop, "a")).charge() == [1]
        await world.app.export(TransferShop, "a", tmp_path / "clerk", sub=[(TransferClerk, "c")])

        await world.app.import_(tmp_path / "clerk")

        assert await (await world.get_agent(TransferClerk, "c")).charge() == [1]
        assert await (await world.get_agent(TransferShop, "a")).charge() == [1]


async def test_what_is_exported_and_imported_and_exported_again_has_the_same_rows(run: Run, tmp_path: Path) -> None:
    async with run(ForkPlant) as world:
        plant = await world.get_agent(ForkPlant, "a")
        await plant.grow("left", "x", 2)
        await world.app.export(ForkPlant, "a", tmp_path / "one")
        await world.app.import_(tmp_path / "one", as_name="b")
        await world.app.export(ForkPlant, "b", tmp_path / "two")
        await world.app.import_(tmp_path / "two", as_name="c")
        await world.app.export(ForkPlant, "b", tmp_path / "again")

        one, two, again = (files_in(tmp_path / name) for name in ("one", "two", "again"))
        assert set(one) == set(two)
        assert two == again


@pytest.mark.core("cluster")
async def test_larger_files_are_in_it(run: Run, tmp_path: Path) -> None:
    content = bytes(range(256)) * 2000
    async with run(Albumist) as world:
        album: Any = await world.get_agent(Albumist, "a")
        digest = await album.keep(content)

        await world.app.export(Albumist, "a", tmp_path / "a")
        await world.app.import_(tmp_path / "a", as_name="b")

        copy: Any = await world.get_agent(Albumist, "b")
        assert await copy.bytes_of(digest) == content
        assert hashlib.sha256(content).hexdigest() in str(files_in(tmp_path / "a"))


async def test_a_file_that_was_changed_is_refused_and_nothing_is_made(run: Run, tmp_path: Path) -> None:
    async with run(ForkPlant) as world:
        plant = await world.get_agent(ForkPlant, "a")
        await plant.grow("left", "x", 2)
        whole = tmp_path / "a"
        await world.app.export(ForkPlant, "a", whole)
        bad: list[tuple[str, str]] = []

        def check(name: str, change: Any, match: str) -> None:
            repacked(whole, tmp_path / name, change)
            bad.append((name, match))

        def flipped(name: str, data: bytes) -> list[tuple[str, bytes]]:
            return [(name, data[:-1] + bytes([data[-1] ^ 1]) if name.endswith("root.db") else data)]

        check("flipped", flipped, "does not have its digest")
        check("missing", lambda name, data: [] if name.endswith("root.db") else [(name, data)], "root.db is missing")
        check("extra", lambda name, data: [(name, data), (f"{name}.more", data)], "is not what the manifest says")
        check("none", lambda name, data: [] if name == "manifest.json" else [(name, data)], "it has no manifest")
        outside = lambda name, data: [(name, data.replace(b'"root.db"', b'"../x.db"'))]  # noqa: E731
        check("outside", outside, "which is no file of a tree")
        newer = lambda name, data: [(name, data.replace(b'"format": 1', b'"format": 9'))]  # noqa: E731
        check("newer", newer, "in a newer format")
        never = lambda name, data: [(name, re.sub(rb'"at": [0-9.]+', b'"at": 1e300', data, count=1))]  # noqa: E731
        check("never", never, "The manifest of .* is damaged")
        (tmp_path / "text").write_text("hello")
        bad.append(("text", "is not an exported tree"))
        bad.append(("nowhere", "is not a file"))
        for name, match in bad:
            with pytest.raises((StoredDataError, UsageError), match=match):
                await world.app.import_(tmp_path / name, as_name="b")
        with pytest.raises(UsageError, match="ForkPlant:a exists already"):
            await world.app.import_(whole)

        trees = Path(world.settings.data) / "trees"
        await until(lambda: not list(trees.glob("*.copying")))
        assert not (tmp_path / "x.db").exists()


@pytest.mark.parametrize(
    ("sql", "match"),
    [
        ("CREATE TRIGGER evil AFTER INSERT ON sapwood_dead_letters BEGIN SELECT 1; END", "has the trigger 'evil'"),
        ("CREATE VIEW seen AS SELECT * FROM Sapwood_Migrations", "has the view 'seen'"),
        ("PRAGMA journal_mode = DELETE", "does not have the layout"),
    ],
)
async def test_a_database_that_no_sapwood_wrote_is_refused(run: Run, tmp_path: Path, sql: str, match: str) -> None:
    async with run(ForkPlant) as world:
        plant = await world.get_agent(ForkPlant, "a")
        await plant.plan()
        await world.app.export(ForkPlant, "a", tmp_path / "a")
        database = tmp_path / "root.db"

        def changed(name: str, data: bytes) -> list[tuple[str, bytes]]:
            if name == "manifest.json":
                manifest = json.loads(data)
                content = database.read_bytes()
                manifest["files"]["root.db"] = {"bytes": len(content), "sha256": hashlib.sha256(content).hexdigest()}
                return [(name, json.dumps(manifest).encode())]
            return [(name, database.read_bytes() if name == "files/root.db" else data)]

        with tarfile.open(tmp_path / "a") as tar:
            database.write_bytes(tar.extractfile("files/root.db").read())  # type: ignore[union-attr]
        connection = apsw.Connection(str(database), vfs=CHECKED)
        connection.execute(sql).fetchall()
        connection.close(True)
        with pytest.raises(StoredDataError, match=match):
            await world.app.import_(repacked(tmp_path / "a", tmp_path / "b", changed), as_name="b")


async def test_stored_data_that_does_not_fit_the_class_is_refused_in_the_words_of_the_upgrade_check(
    run: Run, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    async with run(ForkPlant) as world:
        plant = await world.get_agent(ForkPlant, "a")
        await plant.put(1)
        await plant.plan()
        await world.app.export(ForkPlant, "a", tmp_path / "a")

    class ForkOther(Agent):
        pass

    async with run(ForkOther) as world:
        with pytest.raises(UsageError, match="ForkPlant is not a root of this app"):
            await world.app.import_(tmp_path / "a")

    monkeypatch.setattr(known(ForkPlant), "migrations", ())
    async with run(ForkPlant) as world:
        with pytest.raises(UsageError, match=r"does not fit the classes of this app.*has run 1 migrations"):
            await world.app.import_(tmp_path / "a")
        await (await world.get_agent(ForkPlant, "other")).origin()


async def test_an_export_needs_a_new_file_and_an_agent_with_data(run: Run, tmp_path: Path) -> None:
    async with run(ForkPlant) as world:
        plant = await world.get_agent(ForkPlant, "a")
        await plant.put(1)
        (tmp_path / "taken").write_text("mine")

        with pytest.raises(UsageError, match="exists already"):
            await world.app.export(ForkPlant, "a", tmp_path / "taken")
        with pytest.raises(UsageError, match="is not a folder"):
            await world.app.export(ForkPlant, "a", tmp_path / "none" / "a")
        with pytest.raises(NotFound, match="has no data"):
            await world.app.export(ForkPlant, "missing", tmp_path / "b")

        assert (tmp_path / "taken").read_text() == "mine"
        assert not names_in(tmp_path, "b*")


async def test_of_two_exports_to_one_file_one_is_made(
    run: Run, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    both, add = threading.Barrier(2, timeout=10), tree_file._add  # pyright: ignore[reportPrivateUsage]

    def add_together(*args: Any) -> None:
        both.wait()
        add(*args)

    monkeypatch.setattr(tree_file, "_add", add_together)
    async with run(ForkPlant) as world:
        await (await world.get_agent(ForkPlant, "a")).put(1)
        exports = [world.app.export(ForkPlant, "a", tmp_path / "a") for _ in range(2)]

        ended = await asyncio.gather(*exports, return_exceptions=True)

        assert ended.count(1) == 1
        (refused,) = [one for one in ended if one != 1]
        assert isinstance(refused, UsageError)
        assert "exists already" in str(refused)
        assert (await world.app.import_(tmp_path / "a", as_name="b")).agents == 1
        assert names_in(tmp_path, "a*") == ["a"]


def names_in(folder: Path, pattern: str) -> list[str]:
    return [path.name for path in folder.glob(pattern)]
