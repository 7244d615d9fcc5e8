# SPDX-License-Identifier: Apache-2.0
"""What `make check` runs: the tests of the house itself, and those of the rooms that changed.

Changed are files that differ from main, or from the commit before where main is checked out, and
what is not committed yet. `make test` stays the whole.
"""

import subprocess
import sys
from pathlib import Path

ROOT = Path(__file__).parents[1]
# Quick tests that hold the most: the map, the public names, files of before, formats and kernels.
ALWAYS = (
    *("tests/test_doors.py", "tests/test_layer_tests.py", "tests/test_import_direction.py"),
    *("tests/test_public_api.py", "tests/golden", "tests/contract/test_formats_contract.py"),
    "tests/nn/test_nn_linear.py",
)
# Tests that start processes or train; `make test` has them.
TOO_LONG = ("tests/faults", "tests/fuzz", "tests/security", "tests/docs", "tests/distributed")
MAX_FILES = 12


def git(*words: str) -> list[str]:
    """Lines of a git command; none where there is no git."""
    found = subprocess.run(["git", "-C", str(ROOT), *words], capture_output=True, text=True)  # noqa: S607
    return found.stdout.split("\n")[:-1] if found.returncode == 0 else []


def changed() -> set[str]:
    """Files that differ from main and from what is committed."""
    base = "main" if git("diff", "--name-only", "main") else "HEAD~1"
    return {*git("diff", "--name-only", base), *git("ls-files", "-o", "--exclude-standard")}


def tests_for(names: set[str]) -> list[str]:
    """Changed tests, then tests whose name holds a word of a changed file in the same room."""
    own = {name for name in names if name.startswith("tests/") and "/test_" in name}
    found = {name for name in own if (ROOT / name).exists()}
    for name in sorted(names):
        if name.startswith("src/gossamer/") and name.endswith(".py"):
            room, stem = Path(name).parts[2], Path(name).stem
            for path in (ROOT / "tests" / room).rglob("test_*.py"):
                if stem in path.stem:
                    found.add(str(path.relative_to(ROOT)))
    return [name for name in sorted(found) if not name.startswith(TOO_LONG)][:MAX_FILES]


def main() -> int:
    """Run them, two at a time."""
    chosen = list(dict.fromkeys([*ALWAYS, *tests_for(changed())]))
    words = ["-m", "pytest", "-q", "-m", "not slow", "-n", "2", "--dist", "worksteal", *chosen]
    return subprocess.run([sys.executable, *words], cwd=ROOT).returncode


if __name__ == "__main__":
    raise SystemExit(main())
