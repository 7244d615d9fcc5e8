# SPDX-License-Identifier: Apache-2.0
"""The machine and the versions behind measured numbers: they mean nothing without."""

import platform

import numpy as np
import torch

import gossamer
from gossamer.ops.kernels import active_kernels, cpu_name


def describe_machine() -> dict[str, str]:
    """What a reader needs to compare numbers; no names of hosts or users."""
    return {
        "cpu": cpu_name(),
        "kernels": active_kernels(),
        "threads": str(torch.get_num_threads()),
        "system": f"{platform.system()} {platform.machine()}",
        "python": platform.python_version(),
        "torch": str(torch.__version__),
        "numpy": np.__version__,
        "gossamer": gossamer.__version__,
    }
