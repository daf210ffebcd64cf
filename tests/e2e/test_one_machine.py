"""The files of `deploy` around a real server: Prometheus notices its end, and Caddy passes its clients on."""

from __future__ import annotations

import json
import shutil
import subprocess
import urllib.error
import urllib.parse
import urllib.request
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest
import yaml
from tests.docs.test_deploy_files import DEPLOY, RULES, expressions
from tests.e2e.command import PATIENCE, serving, until
from tests.ports import free_port
from websockets.sync.client import connect

APP = """
from sapwood import Agent, App, expose

class MachineDesk(Agent):
    @expose
    async def hello(self) -> str:
        return "hello"

app = App(agents=[MachineDesk], authenticate=lambda request: "ann")
"""
QUICK = {"scrape_interval": "250ms", "scrape_timeout": "250ms", "evaluation_interval": "250ms"}


@contextmanager
def running(folder: Path, *command: str) -> Iterator[None]:
    with (folder / f"{command[0]}.log").open("wb") as log:
        process = subprocess.Popen(command, cwd=folder, stdout=log, stderr=log)
        try:
            yield
        finally:
            process.terminate()
            process.wait(PATIENCE)


def read(url: str) -> bytes:
    with urllib.request.urlopen(url, timeout=PATIENCE) as response:
        return response.read()


def answered(url: str) -> Any:
    """Return what a page says, and `None` while nothing answers there."""
    try:
        text = read(url)
    except urllib.error.HTTPError as error:
        error.close()
        return None
    except (urllib.error.URLError, ConnectionError):
        return None
    return json.loads(text) if text.startswith(b"{") else text


@pytest.mark.nightly
@pytest.mark.needs("prometheus")
def test_prometheus_reads_every_metric_that_is_asked_for_and_notices_the_end_of_the_server(tmp_path: Path) -> None:
    (tmp_path / "app.py").write_text(APP)
    shutil.copy(DEPLOY / "prometheus/sapwood.rules.yaml", tmp_path)
    port = free_port()
    with serving(tmp_path, "serve", "app:app") as server:
        job = {"job_name": "sapwood", "static_configs": [{"targets": [f"127.0.0.1:{server.port}"]}]}
        config = {"global": QUICK, "rule_files": ["sapwood.rules.yaml"], "scrape_configs": [job]}
        (tmp_path / "prometheus.yml").write_text(yaml.safe_dump(config))
        files = ("--config.file=prometheus.yml", "--storage.tsdb.path=store")
        with running(tmp_path, "prometheus", *files, f"--web.listen-address=127.0.0.1:{port}"):
            api = f"http://127.0.0.1:{port}/api/v1"

            def data(what: str) -> Any:
                return (answered(f"{api}/{what}") or {"data": {}})["data"]

            def evaluated() -> list[Any]:
                (found,) = data("rules").get("groups") or [{"rules": []}]
                return found["rules"] if all(one["health"] == "ok" for one in found["rules"]) else []

            def names_of_alerts() -> list[str]:
                return [one["labels"]["alertname"] for one in data("alerts").get("alerts", ())]

            until(lambda: data("query?query=sapwood_ready").get("result"))
            rules = until(evaluated)
            assert [one["name"] for one in rules] == [one["alert"] for one in RULES]
            assert {one["state"] for one in rules} == {"inactive"}
            for expression in expressions():
                query = urllib.parse.quote(expression.replace("$instance", ".*"))
                assert answered(f"{api}/query?query={query}")["status"] == "success"

            server.stop()

            until(lambda: "SapwoodDown" in names_of_alerts())


@pytest.mark.nightly
@pytest.mark.needs("caddy")
def test_caddy_passes_pages_and_sockets_on_and_keeps_the_metrics_inside(tmp_path: Path) -> None:
    (tmp_path / "app.py").write_text(APP)
    port = free_port()
    with serving(tmp_path, "serve", "app:app") as server:
        text = (DEPLOY / "caddy/Caddyfile").read_text()
        site = text.replace("agents.example.com", f"http://localhost:{port}").replace(":8000", f":{server.port}")
        (tmp_path / "Caddyfile").write_text("{\n\tadmin off\n}\n" + site)
        with running(tmp_path, "caddy", "run", "--config", "Caddyfile", "--adapter", "caddyfile"):
            until(lambda: answered(f"http://localhost:{port}/healthz") == b"ok")
            with pytest.raises(urllib.error.HTTPError) as refused:
                read(f"http://localhost:{port}/metrics")
            with refused.value:
                assert refused.value.code == 404
            with connect(f"ws://localhost:{port}/agents/machine-desk/main", open_timeout=PATIENCE) as socket:
                socket.send(json.dumps({"type": "rpc", "id": "1", "method": "hello", "args": []}))
                while (frame := json.loads(socket.recv(PATIENCE))).get("type") != "rpc":
                    pass
                assert frame["result"] == "hello"
