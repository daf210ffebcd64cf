#!/usr/bin/env bash
# Type-check the programs users would write, with both checkers: what is built against the
# package itself, what is still to come against the signatures in draft/.
set -euo pipefail
cd "$(dirname "$0")"
built=(programs/inbox.py programs/remote.py programs/desk.py programs/test_desk.py)
to_come=(programs/research.py)
if [ -f ../../src/sapwood/py.typed ]; then
    pyright --project built.json
    MYPYPATH=../../src:programs mypy --strict --no-error-summary --cache-dir=../../.mypy_cache "${built[@]}"
fi
pyright --project draft.json
MYPYPATH=draft:programs mypy --strict --no-error-summary --cache-dir=../../.mypy_cache/draft "${to_come[@]}"
