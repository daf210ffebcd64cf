"""The real command, from outside: a project that runs at once, a server that ends well, mistakes that are sentences."""

from __future__ import annotations

import contextlib
import json
import os
import re
import shutil
import signal
import socket
import stat
import subprocess
import sys
import threading
import time
from pathlib import Path
from typing import Any

import apsw
import pytest
from tests.e2e.command import COMMAND, PATIENCE, RUNNING, said_by, sapwood, serving
from tests.machine import patience
from websockets.exceptions import ConnectionClosed
from websockets.sync.client import ClientConnection

from sapwood.storage.engine import CHECKED

COUNTER = "/agents/lobby/main/sub/counter/shared"
SECRETS = [
    "from dataclasses import dataclass",
    "from sapwood import Agent, App, expose",
    "",
    "class Vault(Agent):",
    "    @expose",
    "    async def look(self) -> str:",
    "        return 'gold'",
    "",
    "app = App(agents=[Vault], authenticate=lambda request: request.query_params.get('token'))",
]

SLOW = [
    "import asyncio",
    "from collections.abc import AsyncIterator",
    "from sapwood import Agent, App",
    "",
    "class Slow(Agent):",
    "    async def nap(self) -> None:",
    "        await asyncio.sleep(60)",
    "",
    "    async def fail(self) -> None:",
    "        raise ValueError('no')",
    "",
    "    async def count(self, to: int) -> AsyncIterator[int]:",
    "        for number in range(to):",
    "            yield number",
    "",
    "app = App(agents=[Slow])",
]

SHOP = [
    "from datetime import timedelta",
    "from sapwood import After, Agent, App, Retry",
    "",
    "class Shop(Agent):",
    "    async def order(self, item: str) -> None:",
    "        self.schedule(After(timedelta(0), retry=Retry(max_attempts=1)), self.send, item)",
    "        self.schedule(After(timedelta(days=9)), self.send, item)",
    "",
    "    async def send(self, item: str) -> None:",
    "        raise ValueError(f'no {item} left')",
    "",
    "    async def branch(self, name: str) -> None:",
    "        await (await self.sub_agent(Branch, name)).order('tea')",
    "",
    "    async def ask(self, question: str) -> None:",
    "        await self.run_agent(Clerk, question, run_id='asked')",
    "",
    "class Clerk(Agent):",
    "    async def on_run(self, question: str) -> str:",
    "        return 'Yes.'",
    "",
    "class Branch(Shop):",
    "    pass",
    "",
    "app = App(agents=[Shop])",
]


@pytest.fixture(scope="module")
def fresh(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """What `sapwood new demo` wrote."""
    folder = tmp_path_factory.mktemp("new")
    said_by(folder, "new", "demo")
    return folder / "demo"


@pytest.fixture
def project(fresh: Path, tmp_path: Path) -> Path:
    return shutil.copytree(fresh, tmp_path / "demo")


def receive(socket: ClientConnection, type_: str) -> dict[str, Any]:
    while True:
        frame = json.loads(socket.recv(PATIENCE))
        if frame["type"] == type_:
            return frame


def add(socket: ClientConnection, by: int, id_: str = "1") -> None:
    socket.send(json.dumps({"type": "rpc", "id": id_, "method": "add", "args": [by]}))


def test_a_new_project_passes_its_own_tests(project: Path) -> None:
    done = subprocess.run(
        [sys.executable, "-m", "pytest", "-q"],
        cwd=project,
        capture_output=True,
        text=True,
        timeout=patience(),
        check=False,
    )

    assert done.returncode == 0, done.stdout
    assert {path.name for path in project.iterdir()} >= {
        "app.py", "page.html", "test_app.py", "pyproject.toml", "Containerfile", "compose.yaml", "Caddyfile",
        "README.md", ".gitignore",
    }  # fmt: skip
    assert "demo" in (project / "page.html").read_text()
    assert "{{" not in "".join(path.read_text() for path in project.iterdir() if path.is_file())


def test_two_clients_of_a_new_project_share_its_counter(project: Path) -> None:
    with serving(project) as server:
        status, page = server.get("/agents/lobby/main")
        with server.connect(COUNTER) as one, server.connect(COUNTER) as two:
            assert receive(one, "cf_agent_state")["state"] == {"value": 0, "presses": 0}
            receive(two, "cf_agent_state")

            add(one, 3)

            assert receive(two, "cf_agent_state")["state"] == {"value": 3, "presses": 1}
            assert receive(one, "rpc")["result"] == 3
        assert (status, "<title>demo</title>" in page) == (200, True)
        server.wait_for(re.compile(r"GET /agents/lobby/main 200"))


def test_sigterm_closes_sockets_with_1012_and_loses_nothing_that_was_acknowledged(project: Path) -> None:
    acknowledged, codes = 0, list[int | None]()
    with (
        serving(project, "serve", "app:app", "--grace", "3600", SAPWOOD_DURABILITY="disk") as server,
        server.connect(COUNTER) as idle,
        server.connect(COUNTER) as busy,
    ):
        receive(idle, "cf_agent_state")
        stopper = threading.Timer(0.5, server.process.send_signal, [signal.SIGTERM])
        stopper.start()
        try:
            while True:
                add(busy, 1)
                acknowledged = receive(busy, "rpc")["result"]
        except ConnectionClosed as closed:
            codes.append(closed.rcvd and closed.rcvd.code)
        try:
            while True:
                idle.recv(PATIENCE)
        except ConnectionClosed as closed:
            codes.append(closed.rcvd and closed.rcvd.code)
        server.process.wait(PATIENCE)

        assert codes == [1012, 1012]
        assert not (project / "sapwood-data/operator.json").exists()
    assert acknowledged > 0
    with serving(project) as server, server.connect(COUNTER) as again:
        assert receive(again, "cf_agent_state")["state"]["value"] >= acknowledged


@pytest.mark.nightly
def test_a_call_that_the_end_of_the_server_cuts_short_is_not_taken_for_done(tmp_path: Path) -> None:
    (tmp_path / "app.py").write_text("\n".join(SLOW))
    with serving(tmp_path, "serve", "app", "--grace", "1") as server:
        assert said_by(tmp_path, "call", "Slow:a", "count", "2") == "0\n1\n"
        assert "error: ValueError: no" in sapwood(tmp_path, "call", "Slow:a", "fail").stderr
        waiting = subprocess.Popen(
            [*COMMAND, "call", "Slow:a", "nap"], cwd=tmp_path, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True
        )
        until = time.monotonic() + PATIENCE
        while "busy" not in said_by(tmp_path, "tree", "--once"):
            assert time.monotonic() < until

        server.stop()
        output, said = waiting.communicate(timeout=PATIENCE)

        assert (waiting.returncode, output) == (1, "")
        assert "The connection was lost before the response" in said
        assert "Traceback" not in "".join(server.said)


def test_an_operator_sees_and_changes_a_running_server(project: Path, tmp_path: Path) -> None:
    with serving(project) as server, server.connect(COUNTER) as socket:
        receive(socket, "cf_agent_state")

        tree = said_by(project, "tree", "--once")
        called = said_by(project, "call", "Lobby:main/Counter:shared", "add", "-5")
        state = json.loads(said_by(project, "state", "Lobby:main/Counter:shared"))
        rows = json.loads(said_by(project, "sql", "Lobby:main", "SELECT name FROM sapwood_children", "--json"))
        refused = sapwood(project, "sql", "Lobby:main", "CREATE TABLE t (a)")
        said_by(project, "sql", "Lobby:main", "CREATE TABLE t (a)", "--write")
        copied = said_by(project, "backup", str(tmp_path / "copy"))
        said_by(project, "call", "Lobby:main/Counter:shared", "add", "100")
        restored = said_by(project, "restore", str(tmp_path / "copy"))

        assert "Counter:shared  live  1 socket" in tree
        assert called == "-5\n"
        assert receive(socket, "cf_agent_state")["state"]["value"] == -5
        assert state == {"value": -5, "presses": 1}
        assert rows == [{"name": "shared"}]
        assert (refused.returncode, "--write" in refused.stderr) == (1, True)
        assert copied.startswith("Copied 1 tree ")
        assert "The server of sapwood-data kept running. Work that was in progress" in restored
        assert json.loads(said_by(project, "state", "Lobby:main/Counter:shared"))["value"] == -5
    assert json.loads(said_by(project, "state", "Lobby:main/Counter:shared"))["value"] == -5, "also without a server"


@pytest.mark.promise("CF-143")
def test_an_operator_sees_the_exposed_methods_of_an_agent(project: Path) -> None:
    with serving(project) as server, server.connect(COUNTER) as socket:
        receive(socket, "cf_agent_state")

        shown = said_by(project, "methods", "Lobby:main/Counter:shared")
        listed = json.loads(said_by(project, "methods", "Lobby:main/Counter:shared", "--json"))["methods"]
        above = said_by(project, "methods", "Lobby:main")
        missing = sapwood(project, "methods", "Lobby:main/Counter:other")

        assert "add(by: integer) -> integer\n" in shown
        assert [method["name"] for method in listed] == ["add"]
        assert "open(name: string) -> integer\n    Open a counter, or create it" in above
        assert (missing.returncode, "has not created Counter:other" in missing.stderr) == (1, True)


def test_the_operators_door_opens_to_the_token_only(project: Path) -> None:
    with serving(project) as server:
        file = project / "sapwood-data/operator.json"
        token = json.loads(file.read_text())["token"]

        assert stat.S_IMODE(file.stat().st_mode) == 0o600
        assert server.get("/_sapwood/tree")[0] == 401
        assert server.get("/_sapwood/tree", Authorization="Bearer x")[0] == 401
        assert server.get("/_sapwood/tree", Authorization=f"Bearer {token}")[0] == 200
        assert server.get("/_sapwood/nothing", Authorization=f"Bearer {token}")[0] == 404
        assert server.stop() in (0, -signal.SIGTERM)
        assert not file.exists()


def test_a_server_that_was_killed_leaves_nothing_in_the_way(project: Path) -> None:
    with serving(project) as server, server.connect(COUNTER) as socket:
        add(socket, 4)
        receive(socket, "rpc")
        server.process.kill()
        server.process.wait(PATIENCE)
    assert (project / "sapwood-data/operator.json").exists()

    refused = sapwood(project, "call", "Lobby:main", "counters")

    assert (refused.returncode, "does not answer" in refused.stderr) == (1, True)
    with serving(project):
        assert json.loads(said_by(project, "state", "Lobby:main/Counter:shared"))["value"] == 4


def test_a_public_address_needs_authenticate(project: Path, tmp_path: Path) -> None:
    refused = sapwood(project, "serve", "app:app", "--host", "0.0.0.0", "--port", "0")
    assert refused.returncode == 1
    assert "App(authenticate=…)" in refused.stderr
    assert "--insecure" in refused.stderr

    with serving(project, "serve", "app:app", "--host", "0.0.0.0", "--insecure"):
        pass
    (tmp_path / "vault.py").write_text("\n".join(SECRETS))
    with serving(tmp_path, "serve", "vault:app", "--host", "0.0.0.0") as server:
        assert server.get("/agents/vault/a")[0] == 401


@pytest.mark.nightly
def test_dev_finds_the_app_and_begins_anew_when_a_file_changes(project: Path) -> None:
    with serving(project, "dev") as server:
        server.wait_for(re.compile(r"open http://127\.0\.0\.1:\d+/agents/lobby/main"))
        with server.connect(COUNTER, origin="http://localhost:5173") as page:
            add(page, 2)
            receive(page, "rpc")
        with (
            server.connect(COUNTER, origin="https://elsewhere.example") as stranger,
            pytest.raises(ConnectionClosed) as closed,
        ):
            stranger.recv(PATIENCE)
        assert closed.value.rcvd is not None
        assert closed.value.rcvd.code == 4403
        assert server.get("/agents/lobby/main", Host="elsewhere.example")[0] == 421
        assert server.get("/agents/lobby/main", Host="localhost:8000")[0] == 200
        heard = len(server.said)

        time.sleep(1)  # file times may be coarse, and the watcher has to have seen the old one
        source = (project / "app.py").read_text()
        (project / "app.py").write_text(source.replace("now.value + by", "now.value + 10 * by"))
        server.wait_for(RUNNING, after=heard)

        with server.connect(COUNTER) as page:
            add(page, 1)
            assert receive(page, "rpc")["result"] == 12
        server.stop()


def test_dev_ends_when_its_server_is_killed(project: Path) -> None:
    with serving(project, "dev") as server:
        server.wait_for(RUNNING)

        os.kill(int((project / "sapwood-data/lock").read_text()), signal.SIGKILL)

        assert server.process.wait(PATIENCE) == 1
        server.wait_for(re.compile("error: The server was killed by SIGKILL. Start it again."))
    with serving(project, "dev") as server:
        server.wait_for(RUNNING)
        server.stop()


def test_variables_are_settings(project: Path, tmp_path: Path) -> None:
    with serving(project, SAPWOOD_DATA=str(tmp_path / "there"), SAPWOOD_CONNECTIONS="1") as server:
        with server.connect(COUNTER) as first:
            receive(first, "cf_agent_state")
            # Not by a WebSocket client: it may be cut off before it has sent its request, and fails in its own way.
            with socket.create_connection(("127.0.0.1", server.port), PATIENCE) as second:
                assert second.recv(100).startswith(b"HTTP/1.1 503 ")

        assert "Lobby:main" in sapwood(project, "tree", "--once", SAPWOOD_DATA=str(tmp_path / "there")).stdout
    assert not (project / "sapwood-data").exists()


def test_an_app_may_be_inside_another_one(tmp_path: Path) -> None:
    around = [
        *SECRETS[:-1],
        "from starlette.applications import Starlette",
        "from starlette.responses import PlainTextResponse",
        "from starlette.routing import Mount, Route",
        "",
        "vaults = App(agents=[Vault])",
        "home = Route('/', lambda request: PlainTextResponse('home'))",
        "app = Starlette(routes=[home, Mount('/agents', vaults)], lifespan=vaults.lifespan)",
    ]
    (tmp_path / "main.py").write_text("\n".join(around))

    with serving(tmp_path, "serve", "main") as server:
        assert server.get("/") == (200, "home")
        assert said_by(tmp_path, "call", "Vault:a", "look") == '"gold"\n'


def test_the_shell_awaits(project: Path) -> None:
    typed = 'lobby = await app.get_agent(Lobby, "main")\nawait lobby.open("mine")\nawait lobby.counters()\n'

    done = subprocess.run(
        [*COMMAND, "shell", "app:app"],
        cwd=project,
        input=typed,
        capture_output=True,
        text=True,
        timeout=patience(),
        check=False,
    )

    assert done.returncode == 0
    assert "['shared', 'mine']" in done.stdout


def test_the_doctor_says_what_to_do(project: Path) -> None:
    well = sapwood(project, "doctor")
    ill = sapwood(project, "doctor", "--data", "/proc/nowhere")

    assert well.returncode == 0
    assert "ok   SQLite" in well.stdout
    assert ill.returncode == 1
    assert "→" in ill.stdout


@pytest.fixture
def shop(tmp_path: Path) -> Path:
    (tmp_path / "app.py").write_text("\n".join(SHOP))
    return tmp_path


@pytest.mark.nightly
def test_runs_are_shown_with_their_size_also_when_no_server_runs(shop: Path) -> None:
    with serving(shop):
        said_by(shop, "call", "Shop:main", "ask", "Any bread?")
        shown = said_by(shop, "runs", "Shop:main")
        failed = said_by(shop, "runs", "Shop:main", "--status", "failed")
    alone = json.loads(said_by(shop, "runs", "Shop:main", "--json"))

    assert re.search(r"asked +│ Clerk +│ completed +│ just now +│ \d+ KiB", shown)
    assert re.search(r"^1 run, \d+ KiB$", shown, flags=re.MULTILINE)
    assert failed == "0 runs, 0 B\n"
    assert [run["id"] for run in alone["runs"]] == ["asked"]


def letters_of(folder: Path, *arguments: str) -> list[dict[str, Any]]:
    return json.loads(said_by(folder, "dead-letters", *arguments, "--json"))["letters"]


@pytest.mark.nightly
def test_dead_letters_are_shown_replayed_and_deleted(shop: Path) -> None:
    with serving(shop) as server:
        none = said_by(shop, "dead-letters")
        said_by(shop, "call", "Shop:main", "order", "bread")
        said_by(shop, "call", "Shop:main", "branch", "north")
        server.wait_for(re.compile(r"is now a dead letter .*Branch:north"))
        shown = said_by(shop, "dead-letters")
        (letter,) = letters_of(shop, "Shop:main")
        heard = len(server.said)
        replayed = said_by(shop, "dead-letters", "Shop:main", "--replay", letter["id"])
        server.wait_for(re.compile(r"is now a dead letter .*Shop:main"), heard)
        deleted = said_by(shop, "dead-letters", "Shop:main", "--under", "--delete", "all")
        left = said_by(shop, "dead-letters", "Shop:main", "--under")

    assert none == "There are no dead letters.\n"
    assert 'send(item="bread")' in shown
    assert "crashed: ValueError: no bread left" in shown
    assert "Shop:main/Branch:north" in shown
    assert letter.items() >= {"agent": "Shop:main", "arguments": {"item": "bread"}, "attempts": 1}.items()
    assert (
        replayed == "Replayed 1 dead letter: it is called now. A call that fails again becomes a dead letter again.\n"
    )
    assert deleted == "Deleted 2 dead letters.\n"
    assert left == "There are no dead letters of Shop:main and the agents under it.\n"


@pytest.mark.nightly
def test_dead_letters_can_be_read_without_a_server_and_nobody_tries_to_wake_who_is_due(shop: Path) -> None:
    with serving(shop) as server:
        said_by(shop, "call", "Shop:main", "order", "bread")
        server.wait_for(re.compile(r"is now a dead letter"))
        server.stop()
    with contextlib.closing(apsw.Connection(str(shop / "sapwood-data" / "alarms.db"), vfs=CHECKED)) as alarms:
        alarms.execute("UPDATE sapwood_node_alarms SET due_at = 1 WHERE root <> ''")
    (shop / "sapwood-data" / "alarms.marks").unlink()  # the test has written behind the server's back

    done = sapwood(shop, "dead-letters")
    copied = sapwood(shop, "backup", "copy")
    refused = sapwood(shop, "dead-letters", "Shop:main", "--replay", "all")

    assert (done.returncode, done.stderr, "no bread left" in done.stdout) == (0, "", True)
    assert (copied.returncode, copied.stderr) == (0, "")
    assert (refused.returncode, "No server runs" in refused.stderr) == (1, True)


@pytest.mark.nightly
def test_upgrade_check_reads_what_is_stored_before_new_code_goes_live(shop: Path) -> None:
    new = "\n".join(SHOP).replace("def send(self, item: str)", "def send(self, thing: str)")
    (shop / "new.py").write_text(new)
    with serving(shop) as server:
        said_by(shop, "call", "Shop:main", "order", "bread")
        server.wait_for(re.compile(r"is now a dead letter"))
        in_use = sapwood(shop, "upgrade-check", "new:app")
        said_by(shop, "backup", "copy")
        of_copy = sapwood(shop, "upgrade-check", "new:app", "--data", "copy")
        server.stop()
    well = sapwood(shop, "upgrade-check", "app:app")
    ill = sapwood(shop, "upgrade-check", "new:app")
    report = json.loads(sapwood(shop, "upgrade-check", "new:app", "--json").stdout)

    assert (in_use.returncode, "sapwood backup COPY" in in_use.stderr) == (1, True)
    assert of_copy.stdout.replace("in copy", "in sapwood-data") == ill.stdout
    assert (well.returncode, well.stdout) == (
        0,
        "ok   all data in sapwood-data fits app:app: 1 tree, 1 agent, 1 scheduled call, 1 dead letter\n",
    )
    assert ill.returncode == 1
    assert "bad  Shop, scheduled call: Shop.send() has an argument 'thing' that the stored call lacks." in ill.stdout
    assert "→ Keep a method of this name" in ill.stdout
    assert "2 things in sapwood-data do not fit new:app" in ill.stdout
    assert [one["what"] for one in report["misfits"]] == ["scheduled call", "dead letter"]
    assert report["counts"]["agents"] == 1


@pytest.mark.parametrize(
    ("arguments", "sentence"),
    [
        (["serve", "nothing:app"], "The module 'nothing' does not exist"),
        (["serve", "app:nothing"], "Did you mean app:app?"),
        (["serve", "app:Lobby"], "must be a sapwood App"),
        (["serve", "nothing.py"], "The file"),
        (["serve", "app:app", "--port", "99999"], "--port must be a number from 0 to 65535"),
        (["serve"], "TARGET"),
        (["new", "."], "is not empty"),
        (["new", "1"], "The name of a project must start with a letter"),
        (["tree", "--once"], "There is no data folder 'sapwood-data'. Start a server with"),
        (["call", "Lobby:main", "counters"], "There is no data folder"),
        (["state", "Lobby"], "There is no data folder"),
        (["restore", "nowhere"], "There is no data folder"),
        (["tree", "--nonsense"], "nonsense"),
        (["dead-letters", "--replay", "all"], "need the address of an agent"),
        (["dead-letters", "Lobby:main", "--replay", "1", "--delete", "1"], "--replay and --delete exclude each other"),
        (["dead-letters"], "There is no data folder"),
        (["upgrade-check", "app:app"], "'sapwood-data' is not a data folder"),
        (["upgrade-check", "nothing:app"], "The module 'nothing' does not exist"),
    ],
)
def test_a_mistake_is_a_sentence(project: Path, arguments: list[str], sentence: str) -> None:
    done = sapwood(project, *arguments)

    assert done.returncode != 0
    assert sentence in done.stderr + done.stdout
    assert "Traceback" not in done.stderr


def test_an_app_that_needs_an_extra_says_which(tmp_path: Path) -> None:
    (tmp_path / "app.py").write_text("import without")
    # As on a machine where the extra is not installed.
    (tmp_path / "without.py").write_text("raise ModuleNotFoundError('No module', name='pydantic_ai.messages')")

    done = sapwood(tmp_path, "serve", "app:app")

    assert done.returncode == 1
    assert done.stderr == (
        "error: app needs pydantic_ai.messages, which is not installed. Install it with: pip install 'sapwood[chat]'.\n"
    )


@pytest.mark.nightly
def test_mistakes_with_a_running_server_are_sentences_too(project: Path) -> None:
    with serving(project):
        for arguments, sentence in [
            (["state", "Lobby"], "is not an address"),
            (["state", "Lobby:other"], "Lobby:other does not exist"),
            (["call", "Nobody:a", "b"], "Roots: Lobby"),
            (["call", "Lobby:main", "nothing"], "Public methods: counters, open"),
            (["call", "Lobby:main", "open"], "open(): missing a required argument"),
            (["call", "Lobby:main/Counter:shared", "add", "much"], "argument 'by' does not fit"),
            (["sql", "Lobby:main", "SELEC"], "syntax error"),
            (["dead-letters", "Lobby:other"], "Lobby:other does not exist"),
            (["dead-letters", "Lobby:main", "--delete", "7"], "has no dead letter '7'. There are: none."),
            (["upgrade-check", "app:app"], "is in use by process"),
            (["serve", "app:app", "--port", "0"], "is in use by process"),
            (["shell", "app:app"], "is in use by process"),
        ]:
            done = sapwood(project, *arguments)

            assert done.returncode != 0, arguments
            assert sentence in done.stderr
            assert "Traceback" not in done.stderr
