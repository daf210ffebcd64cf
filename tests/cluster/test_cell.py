"""`sapwood cluster dev`: a whole cluster on this machine, as a new user meets it."""

from __future__ import annotations

import json
import os
import re
import signal
import subprocess
import sys
import time
from pathlib import Path

from tests.cluster.servers import free_ports

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
        timeout=60,
        check=False,
    )


def test_a_cluster_starts_is_one_and_stops(tmp_path: Path) -> None:
    (tmp_path / "app.py").write_text(APP)
    said = tmp_path / "said.txt"
    port = max(free_ports(20))
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
        while "All nodes answer" not in said.read_text():
            assert cell.poll() is None, said.read_text()
            assert time.monotonic() < end, said.read_text()
            time.sleep(0.2)
        environment = dict(
            line.removeprefix("export ").replace("'", "").split("=", 1)
            for line in (folder / "environment").read_text().splitlines()
        )

        counts = [sapwood(tmp_path, "call", "CellTally:a", "hit", "--data", str(folder / f"node-{n}")) for n in (0, 1)]
        assert [one.stdout.strip() for one in counts] == ["1", "2"], counts
        assert sapwood(tmp_path, "call", "CellTally:a", "hit", **environment).stdout.strip() == "3"
        (pid,) = re.findall(r"node-1  process (\d+)", said.read_text())
        assert json.loads((folder / "node-1" / "operator.json").read_text())["pid"] == int(pid)
        assert f"SAPWOOD_NODE=node-0 sapwood serve app:app --port {port} --data {folder}/node-0" in said.read_text()

        end = time.monotonic() + 60
        while True:  # shards are on their way for a while, so that both nodes get their share
            seen = json.loads(sapwood(tmp_path, "cluster", "status", "--json", **environment).stdout)
            assert [node["name"] for node in seen["nodes"]] == ["node-0", "node-1"]
            if sum(node["shards"] for node in seen["nodes"]) == 4096:
                break
            assert time.monotonic() < end, seen
    finally:
        cell.send_signal(signal.SIGINT)
        code = cell.wait(90)
    assert code == 0, said.read_text()
    assert not (folder / "environment").exists()
    assert "Stopping." in said.read_text()
