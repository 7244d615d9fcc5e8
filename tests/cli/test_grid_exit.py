# SPDX-License-Identifier: Apache-2.0
"""A connected rank that fails ends with its own code, even if its clean-up would never end."""

import subprocess
import sys
import threading

import pytest

from gossamer.cli.shell.grid_exit import ends_for_good
from gossamer.errors import InputError

# A destructor that only finalization calls, as that of a broken connection.
FAIL = """
import sys, threading
import torch.distributed as dist
from gossamer.cli.shell.grid_exit import ends_for_good
from gossamer.errors import InputError

class Stuck:
    def __del__(self):
        threading.Event().wait()

sys.stuck = Stuck()
dist.init_process_group("gloo", store=dist.HashStore(), rank=0, world_size=1)
try:
    with ends_for_good():
        raise InputError("no good")
except InputError as error:
    print(error)
    sys.exit(error.exit_code)
"""


def test_a_stuck_clean_up_is_not_waited_for():
    ended = subprocess.run(
        [sys.executable, "-c", FAIL], capture_output=True, text=True, timeout=240, check=False
    )
    assert (ended.returncode, ended.stdout) == (InputError.exit_code, "no good\n"), ended.stderr


def test_a_process_without_connections_goes_on():
    before = threading.active_count()
    with pytest.raises(InputError), ends_for_good():
        raise InputError("no good")
    assert threading.active_count() == before
