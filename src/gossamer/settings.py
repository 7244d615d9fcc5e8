# SPDX-License-Identifier: Apache-2.0
"""The environment variables gossamer reads: all of them, here and nowhere else."""

import os
from pathlib import Path
from typing import Literal

from gossamer.errors import InputError

KernelSet = Literal["reference", "avx2", "avx512"]
KERNEL_SETS: tuple[KernelSet, ...] = ("reference", "avx2", "avx512")


def forced_kernels() -> KernelSet | None:
    """`GOSSAMER_KERNELS`: the instruction set to use instead of the best one found."""
    value = os.environ.get("GOSSAMER_KERNELS", "")
    if not value:
        return None
    for name in KERNEL_SETS:
        if value == name:
            return name
    raise InputError(
        f"GOSSAMER_KERNELS: unknown kernel set {value!r}; expected one of {', '.join(KERNEL_SETS)}."
        " Unset it to use the best set of this CPU."
    )


def tuning_enabled() -> bool:
    """`GOSSAMER_TUNE`: 'off' replaces measurements by a fixed, deterministic rule."""
    value = os.environ.get("GOSSAMER_TUNE", "on").lower()
    if value not in ("on", "off"):
        raise InputError(f"GOSSAMER_TUNE: expected 'on' or 'off', got {value!r}.")
    return value == "on"


def cache_dir() -> Path:
    """`GOSSAMER_CACHE`: where measured kernel choices and packed engines are kept between runs."""
    value = os.environ.get("GOSSAMER_CACHE")
    if value:
        return Path(value)
    base = os.environ.get("XDG_CACHE_HOME")
    return (Path(base) if base else Path.home() / ".cache") / "gossamer"


_UNITS = {"K": 10, "M": 20, "G": 30, "T": 40}


def cache_bytes() -> int:
    """`GOSSAMER_CACHE_SIZE`: the most bytes of packed engines, such as 4G; 0 keeps none."""
    value = os.environ.get("GOSSAMER_CACHE_SIZE", "").strip().upper() or "8G"
    number, unit = (value[:-1], value[-1]) if value[-1] in _UNITS else (value, "")
    if not (number.isascii() and number.isdigit() and len(number) <= 15):
        raise InputError(
            "GOSSAMER_CACHE_SIZE: expected a whole number of bytes, or one with K, M, G or T behind"
            f" it, got {value!r}."
        )
    return int(number) << _UNITS.get(unit, 0)


def data_dir() -> Path | None:
    """`GOSSAMER_DATA`: real data for benchmarks and slow tests, if there is any."""
    value = os.environ.get("GOSSAMER_DATA")
    path = Path(value) if value else Path("..") / "shared" / "data"
    return path if path.is_dir() else None


def peers_dir() -> Path:
    """`GOSSAMER_PEERS`: where benchmarks find the environments of other engines."""
    return Path(os.environ.get("GOSSAMER_PEERS") or Path("build") / "peers")


def api_key() -> str | None:
    """`GOSSAMER_API_KEY`: what clients of `gossamer run serve` must send; None = nothing."""
    return os.environ.get("GOSSAMER_API_KEY") or None


def summary() -> dict[str, str]:
    """All variables with the value in force, for `gossamer doctor`."""
    return {
        "GOSSAMER_KERNELS": forced_kernels() or "(best available)",
        "GOSSAMER_TUNE": "on" if tuning_enabled() else "off",
        "GOSSAMER_CACHE": str(cache_dir()),
        "GOSSAMER_CACHE_SIZE": f"{cache_bytes() >> 20} MiB",
        "GOSSAMER_DATA": str(data_dir() or "(none)"),
        "GOSSAMER_PEERS": str(peers_dir()),
        "GOSSAMER_API_KEY": "(none)" if api_key() is None else "(set)",
    }
