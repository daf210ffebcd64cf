"""Approvals hold wherever a request arrives: worker processes pass requests on to the one that runs the agent."""

from __future__ import annotations

import http.client
import json
import time
from pathlib import Path
from typing import Any

import pytest
from tests.e2e.command import PATIENCE, Server, serving

from support_desk import token_for

pytestmark = pytest.mark.slow  # it starts a server

APP = "from support_desk import make_app\n\napp = make_app('data')\n"
EXAMPLES = Path(__file__).parents[2] / "examples"


def post(server: Server, path: str, token: str, body: Any) -> tuple[int, str]:
    connection = http.client.HTTPConnection("127.0.0.1", server.port, timeout=PATIENCE)
    connection.request("POST", path, json.dumps(body), {"authorization": f"Bearer {token}"})
    answer = connection.getresponse()
    text = answer.read().decode()
    connection.close()
    return answer.status, text


def questions(server: Server, path: str, token: str) -> list[Any]:
    status, text = server.get(f"{path}/questions", authorization=f"Bearer {token}")
    assert status == 200, text
    return json.loads(text)["questions"]


@pytest.mark.nightly
def test_only_operators_see_and_answer_through_any_worker(tmp_path: Path) -> None:
    (tmp_path / "app.py").write_text(APP)
    command = ("serve", "app:app", "--workers", "2", "--data", "data")
    with serving(tmp_path, *command, PYTHONPATH=str(EXAMPLES)) as server:
        for company in ("acme", "globex", "initech", "umbrella"):  # their trees are run by either worker
            desk = f"/agents/desk/{company}"
            ann, eve = (token_for(name, company=company) for name in ("ann", "eve"))
            otto = token_for("otto", "operator", company=company)
            with server.connect(f"{desk}/sub/ticket/ann?token={ann}") as customer:
                said = {"id": "u1", "role": "user", "parts": [{"type": "text", "text": "My money, please."}]}
                init = {"method": "POST", "body": json.dumps({"messages": [said]})}
                customer.send(json.dumps({"type": "cf_agent_use_chat_request", "id": "r1", "init": init}))
                end = time.monotonic() + PATIENCE
                while not (asked := questions(server, desk, otto)):
                    assert time.monotonic() < end
                    time.sleep(0.05)
            (question,) = asked
            answer = {"id": question["id"], "path": question["path"], "approved": True, "digest": question["digest"]}
            below = {**answer, "path": question["path"][1:]}
            for _ in range(4):  # each connection is accepted by either worker
                assert questions(server, desk, eve) == questions(server, desk, ann) == []
                assert post(server, f"{desk}/questions", eve, answer)[0] == 403
                assert post(server, f"{desk}/sub/ticket/ann/questions", ann, below)[0] == 403
            assert post(server, f"{desk}/questions", otto, answer)[0] == 200
