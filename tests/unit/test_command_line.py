"""The command line imports a command when it is called, and says which package a command lacks."""

from __future__ import annotations

import subprocess
import sys

WITHOUT_UVICORN = """
import sys

class Missing:
    def find_spec(self, name, path=None, target=None):
        if name == "uvicorn":
            raise ModuleNotFoundError(f"No module named {name!r}", name=name)

sys.meta_path.insert(0, Missing())
sys.argv = ["sapwood", "serve", "app:app"]
import sapwood.cli
try:
    sapwood.cli.main()
finally:
    print([name for name in sys.modules if name.startswith("sapwood.cli.")])
"""


def test_a_command_waits_for_no_other_and_says_which_package_it_lacks() -> None:
    done = subprocess.run([sys.executable, "-c", WITHOUT_UVICORN], capture_output=True, text=True, check=False)

    assert done.returncode == 1
    assert done.stderr == "The command line needs uvicorn. Install it with: pip install 'sapwood[server]'\n"
    assert "_commands" not in done.stdout  # serve_commands itself could not be imported
