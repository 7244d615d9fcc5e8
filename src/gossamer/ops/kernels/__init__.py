# SPDX-License-Identifier: Apache-2.0
"""Which native kernels this machine runs, and whether they compute what they should."""

from gossamer.ops.kernels.selftest import kernel_error
from gossamer.ops.kernels.sets import (
    active_kernels,
    available_extensions,
    available_kernels,
    cpu_name,
)

__all__ = [
    "active_kernels",
    "available_extensions",
    "available_kernels",
    "cpu_name",
    "kernel_error",
]
