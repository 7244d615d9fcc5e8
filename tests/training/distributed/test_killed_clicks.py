# SPDX-License-Identifier: Apache-2.0
"""A click model, in four bits or with shared rows, killed again and again: the same bytes.

`GOSSAMER_KILLS=5` tries fewer moments, `GOSSAMER_KILLED_STEPS=12` a shorter run.
"""

import os
import time

import pytest
import torch
from test_click_ranks import ROUNDED, SHARED, finished, quality, start, write_log

KILLS = int(os.environ.get("GOSSAMER_KILLS", "20"))
STEPS = int(os.environ.get("GOSSAMER_KILLED_STEPS", "60"))
# Of a busy machine.
PATIENCE = 1200.0
# A step takes about 10 ms alone, more where ranks share a core.
LONGEST_PAUSE = 0.1


@pytest.mark.slow
@pytest.mark.timeout(7200)
@pytest.mark.parametrize(
    ("ranks", "changed"),
    [(1, {"mesh": ROUNDED}), (4, {"mesh": ROUNDED}), (4, SHARED)],
    ids=["1", "4", "4-shared-rows"],
)
def test_a_run_that_is_killed_again_and_again_gives_the_same_bytes(tmp_path, ranks, changed):
    """Moments lie anywhere: in steps, evaluations, checkpoints, while data are read."""
    write_log(whole := tmp_path / "whole")
    finished(whole, ranks, steps=STEPS, seconds=PATIENCE, **changed)
    write_log(killed := tmp_path / "killed")
    draws = torch.rand(KILLS, generator=torch.Generator().manual_seed(ranks)).tolist()
    for number in range(KILLS):
        extra = ("--resume",) if number else ()
        run = start(killed, ranks, *extra, steps=STEPS, **changed)
        if number % 5 == 4:
            # Before the first step: while the log, its arrays or the checkpoint are read.
            time.sleep(0.5 + 5.5 * draws[number])
        else:
            run.wait_for(f'"step": {1 + (STEPS - 5) * number // KILLS}', PATIENCE)
            time.sleep(LONGEST_PAUSE * draws[number])
        run.clean_up()
    finished(killed, ranks, "--resume", steps=STEPS, seconds=PATIENCE, **changed)
    names = sorted(path.name for path in (whole / "out").glob("*.safetensors"))
    assert names
    for name in names:
        assert (whole / "out" / name).read_bytes() == (killed / "out" / name).read_bytes()
    assert quality(whole) == quality(killed)
