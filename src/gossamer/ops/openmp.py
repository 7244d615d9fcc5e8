# SPDX-License-Identifier: Apache-2.0
"""One pool of threads for torch and the kernels: torch's, whether torch has been imported or not.

Two pools on the same cores wait for each other. Wheels of torch bring an OpenMP library of their
own; whichever is loaded first serves both, so torch's is loaded before the native module.
"""

import ctypes
import importlib.util
import sys
from contextlib import suppress
from pathlib import Path


def join_torch() -> None:
    """Load the OpenMP library of torch; torch itself where it has none beside it."""
    if "torch" in sys.modules:
        return
    found = importlib.util.find_spec("torch")
    if found is not None and found.origin is not None and sys.platform == "linux":
        for library in sorted((Path(found.origin).parent / "lib").glob("libgomp*.so*")):
            with suppress(OSError):
                ctypes.CDLL(str(library), ctypes.RTLD_GLOBAL)
                return
    import torch  # noqa: F401
