# SPDX-License-Identifier: Apache-2.0
"""A fault that several ranks find before they are connected: one tells it, the others wait for it.

torchrun ends all ranks as soon as one is gone, which must not be before the fault was told.
"""

import os
import time
from collections.abc import Iterator
from contextlib import contextmanager
from typing import NoReturn

from gossamer.errors import GossamerError

# Ranks of a busy host may come this long after each other; torchrun cuts the wait short.
SECONDS = 20.0


def leave_it_to_others(exit_code: int) -> NoReturn:
    """End this rank without a word, after the one that tells the fault had time to."""
    time.sleep(SECONDS)
    raise SystemExit(exit_code)


@contextmanager
def told_once_per_host() -> Iterator[None]:
    """Faults in files, which ranks of one host share, are told by the first of them."""
    try:
        yield
    except GossamerError as error:
        if int(os.environ.get("LOCAL_RANK", "0")):
            leave_it_to_others(error.exit_code)
        raise
