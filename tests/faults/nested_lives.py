"""Kills two servers again and again while one has runs three levels deep, and checks that each run ends as it should.

    python -m tests.faults.nested_lives --lives 10 --seed 7

A life is that of a pair of servers with new folders. The near one starts runs whose deepest level speaks, falls
silent, or is ended from above, in its own process or at the far one. Both are killed by SIGKILL, alone or together.
In the end both run, the same is asked for again, and everything has to end.

Prints one line of JSON. A violation is a sentence that names the run; the seed repeats the life.
"""

from __future__ import annotations

import argparse
import contextlib
import http.client
import json
import os
import shutil
import signal
import subprocess
import sys
import tempfile
import time
from pathlib import Path
from random import Random
from typing import Any

from tests.faults.nested_workload import Plan
from tests.machine import patience, slowness
from tests.ports import free_port

CHECKOUT = Path(__file__).parents[2]
SILENCE = 0.75 * slowness()
"""Seconds that a run may be silent. A process that waits for a core is silent for less."""
LEEWAY = 2.0
"""Seconds more that the caller of a run with two levels below it waits."""
AWAY = 1e6
"""Seconds that a run may be silent whose caller awaits it: that is not what is checked here."""
LISTENED = SILENCE + LEEWAY + 1.5
"""Seconds after which runs above would be given up, if words far below did not count for them."""
PROTOCOL = {"sapwood-protocol": "1"}
ROOT = "/agents/nested-root/n"
ENDS = {"cancel": "cancelled", "delete": "failed", "destroy": "failed"}
"""How a run of the root is ended from above, and how it stands then."""
REASONS = {"delete": "deleted", "destroy": "destroyed"}
"""Why the far server is told to stop. A run that is cancelled is told the reason that was given."""
NO_PROGRESS = "no-progress"


class Site:
    """A server that comes back on the same port, with the same data."""

    def __init__(self, app: str, folder: Path, **variables: str) -> None:
        self.port = free_port()
        self._app = app
        data = {"SAPWOOD_DATA": str(folder), "SAPWOOD_PORT": str(self.port), "SAPWOOD_RUN_IDLE_TIMEOUT": str(AWAY)}
        self._environment = {**os.environ, **data, "NESTED_SILENCE": str(SILENCE), **variables}
        self._process: subprocess.Popen[bytes] | None = None
        self._log = folder.with_suffix(".log")

    def start(self) -> None:
        command = [sys.executable, "-m", "sapwood", "serve", f"tests.faults.nested_workload:{self._app}"]
        with self._log.open("ab") as log:
            self._process = subprocess.Popen(command, cwd=CHECKOUT, env=self._environment, stdout=log, stderr=log)

    def kill(self) -> None:
        if self._process is not None:
            self._process.send_signal(signal.SIGKILL)
            self._process.wait()

    def ask(self, path: str, body: Any = None) -> Any:
        """Send a request, until a server answers it."""
        until = time.monotonic() + patience()
        while True:
            try:
                return self.try_once(path, body)
            except (OSError, http.client.HTTPException, ValueError):
                if time.monotonic() > until:
                    raise
                time.sleep(0.02)

    def try_once(self, path: str, body: Any = None) -> Any:
        connection = http.client.HTTPConnection("127.0.0.1", self.port, timeout=patience())
        with contextlib.closing(connection):
            connection.request("GET" if body is None else "POST", path, body and json.dumps(body), PROTOCOL)
            answer = connection.getresponse()
            told = json.loads(answer.read())
        if answer.status >= 500:
            raise ValueError(told)
        return told


def _plan(id: str, does: str, *, remote: bool = False) -> Plan:
    return {"id": id, "does": does, "remote": remote}


class Life:
    """One pair of servers, and what was asked of them."""

    def __init__(self, seed: str, folder: Path) -> None:
        self._random = Random(seed)
        self._journal, self._finish = folder / "journal", folder / "finish"
        told = {"NESTED_JOURNAL": str(self._journal), "NESTED_FINISH": str(self._finish)}
        self.far = Site("far", folder / "far", **told)
        url = f"http://127.0.0.1:{self.far.port}/agents/nested-speaker"
        self.near = Site("near", folder / "near", NESTED_FAR=url, NESTED_FINISH=str(self._finish))
        self.speaking = [_plan(f"speaks-{at}", "finishes", remote=bool(at)) for at in range(2)]
        self.silent = [_plan("silent", "hangs")]
        self.ended = {
            how: [_plan(f"{how}-{at}", "speaks", remote=at < 2) for at in range(3)] for how in ("cancel", *REASONS)
        }
        self.problems: list[str] = []

    @property
    def plans(self) -> list[Plan]:
        return [*self.speaking, *self.silent, *(plan for plans in self.ended.values() for plan in plans)]

    def live(self) -> None:
        """Start both servers, kill them now and then, and check what they come to."""
        try:
            self.far.start()
            self.near.start()
            self._begin()
            self._kill()
            self._check()
        finally:
            self.near.kill()
            self.far.kill()

    def _begin(self) -> None:
        plans = self.plans
        self._random.shuffle(plans)
        for plan in plans:
            self.near.ask(ROOT, {"do": "start", "plan": plan})

    def _stops(self) -> list[tuple[str, Plan]]:
        return [(how, plan) for how, plans in self.ended.items() for plan in plans]

    def _kill(self) -> None:
        """Kill servers, and end runs from above in between; not every request is answered."""
        stops = self._stops()
        self._random.shuffle(stops)
        blows = [[self.near], [self.far], self._random.choice(([self.near, self.far], [self.far]))]
        self._random.shuffle(blows)
        for blow in blows:
            time.sleep(self._random.random())
            asked = [stops.pop() for _ in range(2)]
            for site in blow if self._random.random() < 0.5 else ():
                site.kill()  # before it is asked
            for how, plan in asked:
                with contextlib.suppress(OSError, http.client.HTTPException, ValueError):
                    self.near.try_once(ROOT, self._stop(how, plan))
            for site in blow:
                site.kill()
                site.start()
            self.near.ask(ROOT)

    def _stop(self, how: str, plan: Plan) -> dict[str, Any]:
        return {"do": how, "plan": plan, "reason": f"because of {plan['id']}"}

    def _check(self) -> None:
        """Ask again for what may not have been heard, and check that all runs end as they should."""
        for how, plan in self._stops():
            self.near.ask(ROOT, self._stop(how, plan))
        time.sleep(LISTENED)
        told = self.near.ask(ROOT)
        for plan in self.speaking:
            self._check_speaks(plan["id"], told[plan["id"]])
        self._finish.touch()
        until = time.monotonic() + patience()
        while (found := self._running()) and time.monotonic() < until:
            time.sleep(0.1)
        self.problems += [f"{one} is running for ever" for one in found]
        if not self.problems:
            self._check_ends()

    def _running(self) -> list[str]:
        """Return the runs that are not over, at any level and at the far server."""
        told, found = self.near.ask(ROOT), list[str]()
        for id, levels in told.items():
            below = [] if id == "silent" else levels[1:]  # those are given up, and go on
            found += [id for run in (levels[0], *below) if run is not None and run["status"] == "running"]
        found += [f"{id} at the far server" for id, session in self._sessions() if self._far(session)[0] == "running"]
        return found

    def _sessions(self) -> list[tuple[str, str]]:
        lines = self._journal.read_text().splitlines() if self._journal.exists() else []
        return sorted({(line.split()[0], line.split()[1]) for line in lines})

    def _far(self, session: str) -> tuple[str, str | None]:
        told = self.far.ask(f"/agents/nested-speaker/{session}/run")
        return told.get("status", told.get("code")), told.get("reason")

    def _check_ends(self) -> None:
        told, sessions = self.near.ask(ROOT), self._sessions()
        for plan in self.plans:
            known = [session for id, session in sessions if id == plan["id"]]
            if len(known) > 1:
                self.problems.append(f"{plan['id']} was started at the far server as {known}")
        for plan in self.speaking:
            if [run and run["status"] for run in told[plan["id"]]] != ["completed"] * 3:
                self.problems.append(f"{plan['id']} did not complete: {told[plan['id']]}")
        for how, plan in self._stops():
            self._check_stopped(how, plan["id"], told[plan["id"]], dict(sessions).get(plan["id"]))
        (run, *_) = told["silent"]
        if (run["status"], run["reason"]) != ("interrupted", NO_PROGRESS):
            self.problems.append(f"silent: it is {run}")

    def _check_speaks(self, id: str, levels: list[Any]) -> None:
        """Check that a run that speaks is still running. One that was given up would complete later all the same."""
        if {run["status"] for run in levels if run is not None} != {"running"}:
            self.problems.append(f"{id} speaks, and was ended: {levels}")

    def _check_stopped(self, how: str, id: str, levels: list[Any], session: str | None) -> None:
        reason = REASONS.get(how, f"because of {id}")
        (run, *below) = levels
        if run["status"] != ENDS[how] or (how == "cancel" and run["reason"] != reason):
            self.problems.append(f"{id}: it is {run}")
        if how != "cancel" and below:
            self.problems.append(f"{id}: of what was deleted is left {below}")
        for level, one in enumerate(below, 1):
            if one is not None and (one["status"], one["reason"]) != ("cancelled", reason):
                self.problems.append(f"{id}: {level} levels down it is {one}, and the reason is {reason!r}")
        if session is not None and self._far(session) != ("cancelled", reason):
            self.problems.append(f"{id}: at the far server it is {self._far(session)}, and the reason is {reason!r}")


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--lives", type=int, default=5)
    parser.add_argument("--seed", default=str(time.time_ns()))
    parser.add_argument("--level", default="", help="ignored: all kinds of lives take it")
    options = parser.parse_args()
    began, result = time.monotonic(), {"lives": 0, "seed": options.seed, "violations": [], "kept": None}
    while result["lives"] < options.lives and not result["violations"]:
        folder = tempfile.mkdtemp(prefix="sapwood-nested-")
        life = Life(f"{options.seed} {result['lives']}", Path(folder))
        life.live()
        result["lives"] += 1
        if life.problems:
            result |= {"violations": life.problems, "kept": folder}
        else:
            shutil.rmtree(folder)
    print(json.dumps({**result, "seconds": round(time.monotonic() - began, 1)}))
    return 1 if result["violations"] else 0


if __name__ == "__main__":
    sys.exit(main())
