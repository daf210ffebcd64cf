"""Pools: a class whose trees only some workers run, and what becomes of them when the pools change."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st
from tests import loops
from tests.unit.test_workers_sharing import index, indexed, names

from sapwood import Agent, App, Settings, agent
from sapwood.address import Address
from sapwood.errors import Unavailable, UsageError
from sapwood.kernel.marshal.agent_class import known
from sapwood.kernel.node.data_folder import tree_folder
from sapwood.runtimes.local import LocalRuntime
from sapwood.runtimes.repartition import FILE, arrange, last_sharing, suffixes
from sapwood.runtimes.workers.placement import ShardPlan, WorkerPart, shared_by
from sapwood.runtimes.workers.transport import UnixTransport
from sapwood.storage.files import Files, FolderLock
from sapwood.storage.image import empty_image


class PoolDesk(Agent):
    pass


@agent(pool="heavy")
class PoolPress(Agent):
    pass


@agent(type="PoolOven", aliases=["PoolStove"], pool="gpu")
class PoolKiln(Agent):
    pass


class PoolLoom(PoolPress):
    pass


@agent(pool="fire")
class PoolSpark(Agent):
    pass


KINDS = [known(cls) for cls in (PoolDesk, PoolPress, PoolKiln, PoolLoom)]
TYPES = ["PoolDesk", "PoolPress", "PoolOven", "PoolStove", "PoolLoom", "Gone"]
POOL_OF = {"PoolPress": "heavy", "PoolOven": "gpu", "PoolStove": "gpu"}
sizes = st.integers(0, 5)
root_names = st.text(st.characters(min_codepoint=1, exclude_categories=("Cs",)), min_size=1, max_size=20)


@pytest.mark.slow
@given(st.integers(1, 9), sizes, sizes, st.sampled_from(TYPES), root_names)
def test_every_root_has_one_owner_of_its_pool_however_many_there_are(
    workers: int, heavy: int, gpu: int, type_: str, name: str
) -> None:
    pools = {"heavy": heavy, "gpu": gpu}
    sharing = shared_by(KINDS, workers, pools)
    root = Address.root_of(type_, name)

    (owner,) = [part for part in sharing.parts if part.is_here(root)]

    wanted = POOL_OF.get(type_, "")
    assert owner.pool == (wanted if pools.get(wanted) else "")
    assert {loops.play(part.owner(root)) for part in sharing.parts} == {owner.here}
    assert len(sharing.parts) == workers + heavy + gpu


@pytest.mark.slow
@given(st.integers(1, 5), sizes, sizes)
def test_every_worker_of_a_pool_has_a_share_of_it(workers: int, heavy: int, gpu: int) -> None:
    sharing = shared_by(KINDS, workers, {"heavy": heavy, "gpu": gpu})

    for type_ in ("PoolDesk", "PoolPress", "PoolOven"):
        roots = [Address.root_of(type_, f"n{number}") for number in range(200)]
        pool = WorkerPart(sharing.worker(roots[0]), sharing).pool
        mates = {part.number for part in sharing.parts if part.pool == pool}
        assert {sharing.worker(root) for root in roots} == mates


def test_a_pool_is_of_one_class_and_needs_no_type_id() -> None:
    assert [(kind.type, kind.pool) for kind in KINDS] == [
        ("PoolDesk", None),
        ("PoolPress", "heavy"),
        ("PoolOven", "gpu"),
        ("PoolLoom", None),
    ]
    with pytest.raises(UsageError, match="The name of a pool must consist of"):
        agent(pool="a=b")


@pytest.mark.parametrize(
    ("pools", "text"),
    [
        ({"gpu": 1}, "PoolPress uses the pool 'heavy', which has no workers. Pass --pool heavy=1"),
        ({"gpu": 1, "heavy": 1, "hevy": 1}, "No root of the app uses the pool 'hevy'. Did you mean 'heavy'?"),
        ({"hevy": 1}, "No root of the app uses the pool 'hevy'. Did you mean 'heavy'?"),
        ({"gpu": 1, "heavy": 1, "tiny": 1}, "No root of the app uses the pool 'tiny'. Pools: gpu, heavy."),
        ({"gpu": 1, "heavy": 1, "fire": 1}, "PoolSpark does, but it is not a root .* A sub-agent runs where its"),
    ],
)
def test_pools_that_do_not_fit_the_classes_are_refused_with_what_to_say(pools: Mapping[str, int], text: str) -> None:
    with pytest.raises(UsageError, match=text):
        shared_by(KINDS, 2, pools)


async def test_other_pools_take_over_every_alarm_also_if_only_a_class_changed_its_pool(tmp_path: Path) -> None:
    (tmp_path / "trees").mkdir()
    roots = [Address.root_of(type_, f"n{number}") for type_ in TYPES for number in range(30)]
    expected = {str(root): float(at) for at, root in enumerate(roots)}
    alone = index(tmp_path, "")
    alone.take_over([(root, due, 0) for root, due in expected.items()], is_whole=True)
    alone.close()
    (tmp_path / "stopped").touch()
    moved = {"PoolDesk": "heavy"}

    for sharing in (
        ShardPlan(2, {"heavy": 2}, {"PoolPress": "heavy"}),
        ShardPlan(2, {"heavy": 2}, moved),
        ShardPlan(4),
        ShardPlan(1, {"gpu": 1, "heavy": 1}, {**moved, "PoolOven": "gpu"}),
        ShardPlan(2, {"heavy": 1}, moved),
        ShardPlan(2, {"heavy": 2}, {"PoolPress": "heavy"}),
        ShardPlan(0),
    ):
        arrange(tmp_path, sharing, Files())

        assert last_sharing(tmp_path) == sharing
        assert indexed(tmp_path, sharing) == expected
        assert len(names(tmp_path, "alarms*.db")) == len(names(tmp_path, "stopped*")) == max(1, sharing.count)


async def test_a_crash_while_a_class_changes_its_pool_loses_no_alarm(tmp_path: Path) -> None:
    (tmp_path / "trees").mkdir()
    before, after = (ShardPlan(1, {"heavy": 1}, {type_: "heavy"}) for type_ in ("PoolPress", "PoolDesk"))
    roots = {f"{type_}:a": float(at) for at, type_ in enumerate(TYPES)}
    alone = index(tmp_path, "")
    alone.take_over([(root, due, 0) for root, due in roots.items()], is_whole=True)
    alone.close()
    arrange(tmp_path, before, Files())

    class Dying(Files):
        def rename(self, old: Path, new: Path) -> None:
            raise OSError("the power failed")

    with pytest.raises(OSError, match="the power failed"):
        arrange(tmp_path, after, Dying())

    assert indexed(tmp_path, before) == roots
    arrange(tmp_path, after, Files())
    assert indexed(tmp_path, after) == roots


@pytest.mark.parametrize("content", ["two", '{"pools": {"heavy": 1}}', "", None])
async def test_if_it_is_unknown_who_shared_the_folder_all_indexes_are_made_again(
    tmp_path: Path, content: str | None, caplog: pytest.LogCaptureFixture
) -> None:
    (tmp_path / "trees").mkdir()
    arrange(tmp_path, ShardPlan(3), Files())
    (tmp_path / FILE).unlink()
    if content is None:
        (tmp_path / FILE).mkdir()
    else:
        (tmp_path / FILE).write_text(content)
    stored_box(tmp_path)

    arrange(tmp_path, ShardPlan(2), Files())

    assert last_sharing(tmp_path) == ShardPlan(2)
    assert names(tmp_path, "alarms*.db") == ["alarms-0-of-2.db", "alarms-1-of-2.db"]
    indexes = [index(tmp_path, part) for part in suffixes(ShardPlan(2))]
    assert [one.is_whole for one in indexes] == [False, False]
    for one in indexes:
        one.close()
    assert [record.message for record in caplog.records] == [
        "file 'workers' in the data folder is damaged; rebuilding the alarm indexes from the trees"
    ]


def stored_box(data: Path) -> None:
    """Make a tree that has data."""
    root = Address.root_of("PoolPress", "a")
    folder = tree_folder(data, root)
    folder.mkdir()
    (folder / "address").write_text(str(root))
    (folder / "root.db").write_bytes(empty_image())


class Half:
    """A share that knows a class only by the type id it had when all began."""

    part = "-1-of-2"
    pool = ""
    restarts = 1

    def __init__(self) -> None:
        self.directory = WorkerPart(0, ShardPlan(1, {"gpu": 1}, {"PoolStove": "gpu"}))
        self.transport = UnixTransport("0", {}, "secret")

    def hold(self, folder: Path) -> FolderLock:
        return FolderLock(folder)

    async def listen(self) -> None:
        pass

    async def hang_up(self) -> None:
        pass


async def test_a_worker_with_newer_code_takes_no_tree_away_that_another_runs_by_its_former_id(tmp_path: Path) -> None:
    settings = Settings(data=str(tmp_path))
    theirs = tree_folder(tmp_path, Address.root_of("PoolStove", "a"))
    theirs.mkdir(parents=True)
    runtime = LocalRuntime(settings, share=Half())

    async with App(agents=[PoolKiln], settings=settings, runtime=runtime) as app:
        with pytest.raises(Unavailable, match=r"still runs as PoolStove:a, in another process\. Restart the server"):
            await app.get_agent(PoolKiln, "a")

    assert theirs.exists()
