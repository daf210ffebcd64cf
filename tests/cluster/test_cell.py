"""`sapwood cluster dev`: a whole cluster on this machine, as a new user meets it."""

from __future__ import annotations

import contextlib
import json
import os
import re
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest
from tests.machine import patience
from tests.ports import free_ports

APP = """
from sapwood import Agent, App


class CellTally(Agent):
    async def on_start(self) -> None:
        self.sql("CREATE TABLE IF NOT EXISTS hits (at REAL)")

    async def hit(self) -> int:
        self.sql("INSERT INTO hits VALUES (1.0)")
        return self.sql("SELECT count(*) AS n FROM hits")[0]["n"]


app = App(agents=[CellTally])
"""


def sapwood(folder: Path, *arguments: str, **environment: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [sys.executable, "-m", "sapwood", *arguments],
        cwd=folder,
        env={**os.environ, **environment},
        capture_output=True,
        text=True,
        timeout=patience(),
        check=False,
    )


@pytest.mark.nightly
def test_a_cluster_starts_is_one_and_stops(tmp_path: Path) -> None:
    (tmp_path / "app.py").write_text(APP)
    said = tmp_path / "said.txt"
    port = free_ports(2)[0]
    with said.open("w") as output:
        cell = subprocess.Popen(
            [sys.executable, "-m", "sapwood", "cluster", "dev", "--nodes", "2", "--port", str(port)],
            cwd=tmp_path,
            stdout=output,
            stderr=output,
        )
    folder = tmp_path / "sapwood-cell"
    try:
        end = time.monotonic() + 120
        while "Every node serves" not in said.read_text():
            assert cell.poll() is None, said.read_text()
            assert time.monotonic() < end, said.read_text()
            time.sleep(0.2)
        environment = dict(
            line.removeprefix("export ").replace("'", "").split("=", 1)
            for line in (folder / "environment").read_text().splitlines()
        )

        second = sapwood(tmp_path, "cluster", "dev", "--nodes", "1", "--port", str(port - 5))
        assert second.returncode != 0
        assert f"`sapwood cluster dev` is already running in this folder (process {cell.pid})" in " ".join(
            second.stderr.split()
        )
        assert (folder / "environment").exists()

        counts = [sapwood(tmp_path, "call", "CellTally:a", "hit", "--data", str(folder / f"node-{n}")) for n in (0, 1)]
        assert [one.stdout.strip() for one in counts] == ["1", "2"], counts
        assert sapwood(tmp_path, "call", "CellTally:a", "hit", **environment).stdout.strip() == "3"
        (pid,) = re.findall(r"node-1  process (\d+)", said.read_text())
        assert json.loads((folder / "node-1" / "operator.json").read_text())["pid"] == int(pid)
        for n in (0, 1):
            again = f"SAPWOOD_NODE=node-{n} sapwood serve app:app --port {port + n} --data {folder}/node-{n}"
            assert again in said.read_text()

        end = time.monotonic() + 60
        while True:  # shards are on their way for a while, so that both nodes get their share
            seen = json.loads(sapwood(tmp_path, "cluster", "status", "--json", **environment).stdout)
            assert [node["name"] for node in seen["nodes"]] == ["node-0", "node-1"]
            if sum(node["shards"] for node in seen["nodes"]) == 4096:
                break
            assert time.monotonic() < end, seen

        for wrong, why in (
            (["--cluster", "other"], "belongs to the cluster 'sapwood', and two clusters must not share one."),
            (["--archive", (tmp_path / "nowhere").as_uri()], "does not exist on this machine."),
            (["--at", "2999-01-01T00:00:00Z"], "--at must not be in the future."),
            ([], "Nodes are running: node-0, node-1. Stop them first."),
        ):
            refused = sapwood(tmp_path, "cluster", "restore", *wrong, **environment)
            assert refused.returncode == 1
            assert why in " ".join(refused.stderr.split())
        part = sapwood(tmp_path, "cluster", "backup", "copy", "CellTally:a/CellTally:b", **environment)
        assert "trees are copied and restored as a whole. Pass CellTally:a." in " ".join(part.stderr.split())

        (tree,) = json.loads(sapwood(tmp_path, "cluster", "trees", "--json", **environment).stdout)
        (killed,) = re.findall(rf"{tree['node']}  process (\d+)", said.read_text())
        os.kill(int(killed), signal.SIGKILL)
        other = folder / ("node-1" if tree["node"] == "node-0" else "node-0")
        waited = sapwood(tmp_path, "call", "CellTally:a", "hit", "--data", str(other))
        assert waited.stdout.strip() == "4", waited
    finally:
        cell.send_signal(signal.SIGINT)
        code = cell.wait(90)
    assert code == 0, said.read_text()
    assert not (folder / "environment").exists()
    assert "Stopping." in said.read_text()


def children(pid: int) -> list[int]:
    found = subprocess.run(["pgrep", "-P", str(pid)], capture_output=True, text=True, check=False)
    return [int(one) for one in found.stdout.split()]


def test_what_a_killed_one_left_is_not_started_upon(tmp_path: Path) -> None:
    (tmp_path / "app.py").write_text(APP)
    port = free_ports(2)[0]
    dev = ["cluster", "dev", "--nodes", "1", "--port", str(port)]
    with (tmp_path / "said.txt").open("w") as output:
        cell = subprocess.Popen(
            [sys.executable, "-m", "sapwood", *dev], cwd=tmp_path, stdout=output, stderr=output, start_new_session=True
        )
    left: list[int] = []
    try:
        end = time.monotonic() + 60
        while len(left) < 3:
            assert time.monotonic() < end, (tmp_path / "said.txt").read_text()
            time.sleep(0.1)
            left = children(cell.pid)
        cell.send_signal(signal.SIGSTOP)  # so that it starts no more
        left = children(cell.pid)
        cell.kill()
        cell.wait()
        second = sapwood(tmp_path, *dev)
        assert second.returncode != 0
        assert f"was killed in this folder (process {cell.pid}), and its child processes still run" in " ".join(
            second.stderr.split()
        )
    finally:
        for pid in left:
            with contextlib.suppress(ProcessLookupError):
                os.kill(pid, signal.SIGKILL)


def test_an_app_that_is_not_there_is_told_once_and_leaves_nothing(tmp_path: Path) -> None:
    ended = sapwood(tmp_path, "cluster", "dev", "nope:app")
    assert ended.returncode != 0
    assert (ended.stdout + ended.stderr).count("The module") == 1, ended
    assert "did not start" not in ended.stdout + ended.stderr
    assert list(tmp_path.iterdir()) == []
