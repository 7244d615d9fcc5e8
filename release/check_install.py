# SPDX-License-Identifier: Apache-2.0
"""Does an installed gossamer work? Run by an environment that has it, away from the source tree."""

import json
import os
import shutil
import subprocess
import sys
import time
from importlib import metadata
from pathlib import Path

# Without data, packaged models and optional packages.
TESTS = ("formats", "patterns", "contract/test_formats_contract.py", "ops/test_training_linear.py")


def main(tests: Path, pure: bool) -> None:
    if compiler := next((c for c in ("g++", "c++", "clang++") if shutil.which(c)), None):
        sys.exit(f"{compiler} is on the path: this check is for machines without a compiler")
    import gossamer

    home = Path(gossamer.__file__)
    if "site-packages" not in home.parts:
        sys.exit(f"{home}: not an installed package")
    files = metadata.files("gossamer") or []
    size = sum(f.locate().stat().st_size for f in files if f.locate().exists())
    print(f"installed: {size / 1e6:.1f} MB in {len(files)} files")
    doctor = subprocess.run(
        [Path(sys.executable).with_name("gossamer"), "doctor", "--json"],
        capture_output=True,
        text=True,
    )
    checks = json.loads(doctor.stdout)["checks"]
    if pure:
        assert "without the native module" in checks["native module"]["found"], checks
    else:
        assert doctor.returncode == 0, doctor.stdout
        assert len(checks["OpenMP pools"]["found"].split(",")) == 1, checks["OpenMP pools"]
        print("kernel sets:", checks["kernel sets"]["found"])
    start = time.perf_counter()
    quickstart = ["gossamer", "quickstart", "--out", "quickstart"]
    subprocess.run([Path(sys.executable).with_name(quickstart[0]), *quickstart[1:]], check=True)
    print(f"quickstart: {time.perf_counter() - start:.0f} s")
    if not pure:
        paths = [str(tests / name) for name in TESTS if (tests / name).exists()]
        options = ["-q", "-m", "not slow", "-p", "no:cacheprovider", "--rootdir", str(tests)]
        command = [sys.executable, "-m", "pytest", *options, *paths]
        subprocess.run(command, check=True, env={**os.environ, "PYTHONPATH": str(tests)})
    print("works")


if __name__ == "__main__":
    main(Path(sys.argv[1]), "--pure" in sys.argv)
