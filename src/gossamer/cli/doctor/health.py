# SPDX-License-Identifier: Apache-2.0
"""The checks of `gossamer doctor`: what is there, whether it is well, and what to do if not.

`scrub_text` takes user names, home directories and secrets out of text that people paste into
issues.
"""

import contextlib
import getpass
import os
import platform
import re
import shutil
import tempfile
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from importlib import metadata
from pathlib import Path

import gossamer
from gossamer import settings
from gossamer.errors import GossamerError

_SECRET_NAME = re.compile(r"TOKEN|SECRET|PASSW|CREDENTIAL|API_?KEY|ACCESS_?KEY|AUTH", re.I)
# Shorter values, such as "1" or "basic", are no secrets and would eat ordinary text.
_MIN_SECRET = 8
# Of a name in a path.
_END = r"(?=/|$|[\s:;,'\"])"


def scrub_text(text: str, environ: Mapping[str, str] | None = None) -> str:
    """`text` without values of secret variables, the home directory and the user's name."""
    environ = os.environ if environ is None else environ
    for name, value in environ.items():
        if _SECRET_NAME.search(name) and len(value) >= _MIN_SECRET:
            text = text.replace(value, "***")
    homes = {environ.get("HOME", "")}
    with contextlib.suppress(RuntimeError):
        homes.add(str(Path.home()))
    for home in sorted({home.rstrip("/") for home in homes}, key=len, reverse=True):
        if len(home) > 1:
            text = re.sub(rf"{re.escape(home)}{_END}", "~", text)
    with contextlib.suppress(OSError, KeyError, ImportError):
        # Only as a part of a path: a user called "avx" must not hide the kernels.
        if user := getpass.getuser():
            text = re.sub(rf"(?<=/){re.escape(user)}{_END}", "<user>", text)
    return text


_PACKAGES = ("torch", "numpy", "safetensors", "transformers", "tokenizers")
# Of disk, and of memory.
_MIN_BYTES = 500 * 10**6
_POOLS = re.compile(r"/(lib(?:gomp|iomp5|omp)[^/]*\.so[^/]*)$")


@dataclass(frozen=True)
class Check:
    """One thing looked at; `fix` says what to do where `ok` is false."""

    name: str
    found: str
    ok: bool = True
    fix: str = ""


def run_checks() -> list[Check]:
    """All checks, in the order they are printed; a check that raises becomes a problem."""
    steps = {
        "versions": _versions,
        "cpu": _cpu,
        "kernels": _kernels,
        "threads": _threads,
        "self-test": _self_test,
        "settings": _settings,
        "resources": _resources,
    }
    checks: list[Check] = []
    for name, step in steps.items():
        try:
            checks += list(step())
        except GossamerError as error:
            checks.append(Check(name, str(error), ok=False, fix="Follow the message."))
        except ImportError as error:
            fix = "Reinstall: pip install --force-reinstall gossamer."
            checks.append(Check(name, f"cannot be imported: {error}", ok=False, fix=fix))
    return checks


def _versions() -> Iterator[Check]:
    yield Check("gossamer", gossamer.__version__)
    yield Check("python", platform.python_version())
    for name in _PACKAGES:
        try:
            yield Check(name, metadata.version(name))
        except metadata.PackageNotFoundError:
            yield Check(name, "not installed (extra [hf])")
    yield Check("system", f"{platform.system()} {platform.machine()}")


def _cpu() -> Iterator[Check]:
    from gossamer.ops.kernels import cpu_name

    yield Check("cpu", f"{cpu_name()}, {usable_cores()} usable cores of {os.cpu_count()}")


def usable_cores() -> int:
    """Cores this process may run on."""
    if hasattr(os, "sched_getaffinity"):
        return len(os.sched_getaffinity(0))
    return os.cpu_count() or 1


def _kernels() -> Iterator[Check]:
    from gossamer.ops import kernel_list
    from gossamer.ops.kernels import active_kernels, available_extensions, available_kernels
    from gossamer.ops.without_native import why_missing
    from gossamer.running.choice import CostTable

    if reason := why_missing():
        fix = "Reinstall: pip install --force-reinstall gossamer."
        has_wheel = platform.system() == "Linux" and platform.machine() == "x86_64"
        yield Check("native module", f"{reason}: layers stay dense", not has_wheel, fix)
        return
    yield Check("kernel sets", ", ".join(available_kernels()))
    extensions = ", ".join(available_extensions())
    yield Check("cpu extensions", extensions or "none of avx512vnni, avx512bf16, avx512vbmi2")
    yield Check("linear kernels", ", ".join(kernel_list("linear").names()))
    costs = CostTable()
    yield Check("measured choices", f"{len(costs)} in {costs.path}")
    active = active_kernels()
    if active != "reference":
        yield Check("active kernels", active)
        return
    forced = settings.forced_kernels() is not None
    fix = "Unset GOSSAMER_KERNELS." if forced else "Use a CPU with AVX2 or AVX-512 for speed."
    yield Check("active kernels", "reference (correct, but slow)", not forced, fix)


def _threads() -> Iterator[Check]:
    import torch

    import gossamer.ops.kernels  # noqa: F401  (loads the native module, whose pool is counted)

    threads, cores = torch.get_num_threads(), usable_cores()
    wanted = os.environ.get("OMP_NUM_THREADS", "(unset)")
    fix = f"Set OMP_NUM_THREADS={cores}: more threads than cores is slower than one."
    yield Check("threads", f"{threads} (torch), OMP_NUM_THREADS={wanted}", threads <= cores, fix)
    pools = openmp_pools()
    if pools is not None:
        # Two pools on the same cores wait for each other.
        fix = "Import torch before other native libraries, and keep one OpenMP runtime installed."
        yield Check("OpenMP pools", ", ".join(pools) or "none", len(pools) == 1, fix)
    backends = [name for name in ("mkl", "mkldnn") if getattr(torch.backends, name).is_available()]
    yield Check("BLAS", ", ".join(backends) or "torch's own")
    gloo = torch.distributed.is_available() and torch.distributed.is_gloo_available()
    yield Check("distributed", "gloo" if gloo else "none")


def openmp_pools() -> list[str] | None:
    """OpenMP runtimes mapped into this process; None where the system does not tell."""
    maps = Path("/proc/self/maps")
    if not maps.exists():
        return None
    paths = {line.split(maxsplit=5)[-1] for line in maps.read_text().splitlines() if "/" in line}
    # Two copies of one library are two pools: count files, print names.
    return sorted(found[1] for path in paths if (found := _POOLS.search(path)))


def _self_test() -> Iterator[Check]:
    from gossamer.ops.kernels import available_kernels, kernel_error

    fix = "Force another set with GOSSAMER_KERNELS and report this output."
    for name in available_kernels():
        error = kernel_error(name)
        text = f"{error:.2f} of the float32 error bound"
        yield Check(f"self-test {name}", text, error <= 1.0, fix)


def _settings() -> Iterator[Check]:
    for name, value in settings.summary().items():
        yield Check(name, value)


def _resources() -> Iterator[Check]:
    from gossamer.io.safe_files.checks import available_bytes

    free = shutil.disk_usage(Path.cwd()).free
    ok = free >= _MIN_BYTES
    yield Check("disk (here)", f"{free / 1e9:.1f} GB free", ok, "Free some disk space.")
    free = available_bytes()
    ok = free >= _MIN_BYTES
    yield Check("memory", f"{free / 1e9:.1f} GB available", ok, "Close other programs.")
    folder = settings.cache_dir()
    fix = "Point GOSSAMER_CACHE to a folder you can write; without it layers are timed every run."
    try:
        folder.mkdir(parents=True, exist_ok=True)
        with tempfile.TemporaryFile(dir=folder):
            pass
    except OSError as error:
        yield Check("cache", f"{folder}: {error.strerror}", ok=False, fix=fix)
    else:
        yield Check("cache", f"{folder} is writable")
