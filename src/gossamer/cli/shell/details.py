# SPDX-License-Identifier: Apache-2.0
"""What -v tells when a command is done: kernels, threads, memory, and what fell back to dense."""

import resource
import sys
import time


def details(start: float) -> list[str]:
    """Lines for people; `start` is the monotonic time at which the command began."""
    peak = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    # Linux counts in KiB, macOS in bytes.
    mebibytes = peak / (2**20 if sys.platform == "darwin" else 2**10)
    lines = [f"[{time.monotonic() - start:.1f} s, at most {mebibytes:.0f} MiB of memory]"]
    if "torch" not in sys.modules:
        return [*lines, "[torch was not needed]"]
    import torch

    from gossamer.ops.fallback import fallbacks
    from gossamer.ops.kernels import active_kernels

    threads = torch.get_num_threads()
    lines.append(f"[kernels {active_kernels()}, {threads} threads, torch {torch.__version__}]")
    fell = [
        f"[{count} times dense instead of sparse: {what}]" for what, count in fallbacks().items()
    ]
    return [*lines, *(fell or ["[nothing fell back to dense]"])]
