#!/usr/bin/env bash
# pyright and mypy accept the programs that users would write, and refuse each line that is marked `# wrong`.
set -euo pipefail
cd "$(dirname "$0")"
exec python check.py
