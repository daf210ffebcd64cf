"""The client scenarios of MCP's conformance suite, with an agent on a real server as the client under test."""

from __future__ import annotations

import re
import signal
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest
from tests.machine import patience
from tests.npm.running import HERE, Sapwood
from tests.packages import environment, install

pytestmark = [pytest.mark.slow, pytest.mark.needs("npm")]

PASSED: dict[str, int] = {
    "initialize": 2,
    "tools_call": 2,
    "elicitation-sep1034-client-defaults": 5,
    "sse-retry": 3,
    "request-metadata": 5,
    "auth/metadata-default": 25,
    "auth/metadata-var1": 25,
    "auth/metadata-var2": 25,
    "auth/metadata-var3": 25,
    "auth/basic-cimd": 20,
    "auth/scope-from-www-authenticate": 21,
    "auth/scope-from-scopes-supported": 21,
    "auth/scope-omitted-when-undefined": 21,
    "auth/scope-step-up": 27,
    "auth/scope-retry-limit": 28,
    "auth/token-endpoint-auth-basic": 26,
    "auth/token-endpoint-auth-post": 26,
    "auth/token-endpoint-auth-none": 26,
    "auth/pre-registration": 20,
    "auth/2025-03-26-oauth-metadata-backcompat": 19,
    "auth/2025-03-26-oauth-endpoint-fallback": 14,
    "auth/resource-mismatch": 2,
    "auth/offline-access-scope": 17,
    "auth/offline-access-not-supported": 16,
    "auth/authorization-server-migration": 30,
    "auth/iss-supported": 16,
    "auth/iss-not-advertised": 16,
    "auth/iss-supported-missing": 14,
    "auth/iss-wrong-issuer": 14,
    "auth/iss-unexpected": 14,
    "auth/iss-normalized": 14,
    "auth/metadata-issuer-mismatch": 3,
    "sep-2322-client-request-state": 5,
    "http-standard-headers": 3,
    "http-custom-headers": 18,
    "http-invalid-tool-headers": 12,
    "json-schema-ref-no-deref": 1,
    "json-schema-2020-12-preservation": 9,
}
"""The scenarios in which every check passes, and how many there are. Those of both revisions are all among them."""
FAILED: dict[str, set[str]] = {
    # An extension: an agent without a user signs in with its own secret. `add(token=…)` is for such servers.
    "auth/client-credentials-basic": {"client-credentials-grant-type", "client-credentials-basic-auth"},
    "auth/client-credentials-jwt": {"client-credentials-grant-type", "client-credentials-jwt-verified"},
    # Extensions: a user is signed in by the company's identity provider, or a workload by its platform.
    "auth/enterprise-managed-authorization": {"complete-flow-jwt-bearer", "complete-flow-token-exchange"},
    "auth/wif-jwt-bearer": {"wif-grant-type"},
    # An extension: tokens that are bound to a key of the client. Here a token is bound to its server only.
    "auth/dpop": {
        "sep-1932-client-token-request-proof",
        "sep-1932-client-dpop-auth-scheme",
        "sep-1932-client-fresh-proof",
    },
    "auth/dpop-nonce": {
        "sep-1932-client-token-request-proof",
        "sep-1932-client-dpop-auth-scheme",
        "sep-1932-client-fresh-proof",
        "sep-1932-client-as-nonce",
        "sep-1932-client-rs-nonce",
    },
}
"""The checks that fail, by scenario: extensions that are not supported, and which no revision requires."""
SKIPPED = (
    "sep-2640-client-no-prefetch",
    "sep-2640-client-verify-digest",
    "sep-2640-client-verify-size",
    "sep-2640-client-verify-frontmatter",
)
"""Scenarios without a check for this client: skills are an extension about resources, which are not read."""
OFTEN = (
    "initialize",
    "elicitation-sep1034-client-defaults",
    "request-metadata",
    "auth/scope-step-up",
    "sep-2322-client-request-state",
    "http-custom-headers",
)
"""The scenarios in CI: both kinds of revisions, a sign-in with a second one for more scopes, and questions."""


class ClientServer(Sapwood):
    """The agents under test, to which the browser of a user comes back."""

    app = HERE / "mcp_client.py"
    workers = "1"

    def command(self) -> list[str]:
        self.told["SAPWOOD_PUBLIC_URL"] = f"http://{self.host}"
        options = ["--port", str(self.port), "--data", str(self._data), "--grace", "3", "--log-level", "error"]
        options += ["--workers", self.workers]
        return [sys.executable, "-m", "sapwood", "serve", f"{self.app}:app", *options]


@pytest.fixture(scope="module")
def mcp_home() -> Path:
    return install(HERE / "mcp")


class ClientWorkers(ClientServer):
    """The same agents in two processes: the browser comes back to either."""

    workers = "2"


@pytest.fixture(scope="module")
def server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[ClientServer]:
    yield from serving(ClientServer, tmp_path_factory.mktemp("client"))


@pytest.fixture(scope="module")
def two_workers(tmp_path_factory: pytest.TempPathFactory) -> Iterator[ClientServer]:
    yield from serving(ClientWorkers, tmp_path_factory.mktemp("workers"))


def serving(kind: type[ClientServer], work: Path) -> Iterator[ClientServer]:
    settings = {"SAPWOOD_MCP_PRIVATE_HOSTS": "localhost,127.0.0.1", "SAPWOOD_SECRET_KEYS": "k" * 40}
    server = kind(work, work / "data", **settings)
    yield server
    server.end(signal.SIGTERM)


def checked(home: Path, server: ClientServer, scenario: str) -> str:
    """Return what the suite says of one scenario."""
    suite = home / "node_modules/@modelcontextprotocol/conformance/dist/index.js"
    # Without `site` and the environment: the program plays a user, and needs only the standard library.
    user = f"{sys.executable} -S -E {HERE / 'mcp_user.py'} {server.host}"
    command = ["node", str(suite), "client", "--command", user, "--scenario", scenario]
    limit = ["--timeout", str(int(patience(60) * 1000))]
    done = subprocess.run(
        [*command, *limit], env=environment(home), capture_output=True, text=True, timeout=patience(120), check=False
    )
    return re.sub(r"\x1b\[[0-9;]*m", "", done.stdout + done.stderr)


@pytest.mark.parametrize(
    "scenario", [pytest.param(one, marks=() if one in OFTEN else pytest.mark.nightly) for one in PASSED]
)
def test_a_client_scenario_of_the_conformance_suite_passes(mcp_home: Path, server: ClientServer, scenario: str) -> None:
    said, number = checked(mcp_home, server, scenario), PASSED[scenario]
    assert f"Passed: {number}/{number}, 0 failed, 0 warnings" in said, said[-3000:]


@pytest.mark.nightly
@pytest.mark.parametrize("scenario", OFTEN)
def test_a_client_scenario_passes_with_two_workers(mcp_home: Path, two_workers: ClientServer, scenario: str) -> None:
    said, number = checked(mcp_home, two_workers, scenario), PASSED[scenario]
    assert f"Passed: {number}/{number}, 0 failed, 0 warnings" in said, said[-3000:]


@pytest.mark.nightly
@pytest.mark.parametrize("scenario", FAILED)
def test_of_an_extension_that_is_not_supported_only_what_is_named_fails(
    mcp_home: Path, server: ClientServer, scenario: str
) -> None:
    said = checked(mcp_home, server, scenario)
    assert set(re.findall(r"\[(\S+) *\] FAILURE", said)) == FAILED[scenario], said[-3000:]


@pytest.mark.nightly
def test_every_client_scenario_of_the_suite_is_among_these(mcp_home: Path) -> None:
    suite = mcp_home / "node_modules/@modelcontextprotocol/conformance/dist/index.js"
    listed = subprocess.run(
        ["node", str(suite), "list"], env=environment(mcp_home), capture_output=True, text=True, check=True
    )
    section = listed.stdout.partition("Client scenarios")[2].partition("Authorization server scenarios")[0]
    assert set(re.findall(r"- (\S+) \[", section)) == {*PASSED, *FAILED, *SKIPPED}
