# SPDX-License-Identifier: Apache-2.0
"""A recover stage that is killed goes on inside the stage, to the same bytes."""

import json
import os
from pathlib import Path

import loop_tools
import pytest
import recover_drill
from warm_processes import run_script

pytestmark = pytest.mark.skipif(not hasattr(os, "fork"), reason="needs fork")


@pytest.mark.parametrize(
    "settings",
    [
        "logits: 1.0",
        pytest.param(
            "embeddings: 1.0, distance: squares, quantise: int8, scales: learned",
            marks=pytest.mark.slow,
        ),
    ],
)
def test_a_killed_recovery_ends_with_the_same_bytes(tmp_path, settings):
    helpers = str(Path(loop_tools.__file__).parent)
    ran = run_script(
        recover_drill.__file__, tmp_path, settings, PYTHONPATH=helpers, GOSSAMER_TUNE="off"
    )
    assert ran.returncode == 0, ran.stderr
    lines = [json.loads(line) for line in ran.stdout.splitlines()]
    assert len(lines) == 4
    for line in lines:
        assert line["code"] == -9
        assert line["refused"] == 2  # not overwritten without --resume
        assert line["resumed"] == 0, ran.stderr
        assert line["equal"], line
        assert line["left"] == ["metrics_stage_1.jsonl", "report.html"]
        assert line["metrics"] == [0, 4, 8, 12]  # no check is told twice
    # Killed in the third step, the seventh, the last one, and while a checkpoint was written.
    assert [line["newest"] for line in lines[:3]] == [0, 4, 8]
