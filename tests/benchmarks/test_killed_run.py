# SPDX-License-Identifier: Apache-2.0
"""What `benchmarks/killed_training.py` calls the same bytes."""

import json

import pytest

from support.killed_run import differences, progress_of


def write_run(folder, *, seconds=1.0, weights=b"w", step=7, extra=()):
    """An artifact and two checkpoints, as a run leaves them."""
    (folder / "out").mkdir(parents=True)
    (folder / "out" / "weights").write_bytes(weights)
    for name in extra:
        (folder / "out" / name).write_bytes(b"")
    for number in (step - 1, step):
        checkpoint = folder / "out.run" / "checkpoints" / f"step_{number:08}"
        checkpoint.mkdir(parents=True)
        counters = {"seconds": [seconds, seconds], "metrics_bytes": int(seconds), "step": number}
        manifest = {"digest": str(seconds), "state": {"counters": counters}}
        (checkpoint / "manifest.json").write_text(json.dumps(manifest))
        (checkpoint / "state.safetensors").write_bytes(weights)
    return folder


def test_clocks_make_no_difference(tmp_path):
    one = write_run(tmp_path / "one", seconds=1.0)
    assert differences(one, write_run(tmp_path / "other", seconds=99.0)) == []
    assert progress_of(one) == 7
    assert progress_of(tmp_path) == 0


@pytest.mark.parametrize(
    ("change", "files"),
    [
        ({"weights": b"v"}, ["out/weights", "step_00000007/state.safetensors"]),
        ({"extra": ("more",)}, ["out/more"]),
    ],
)
def test_everything_else_does(tmp_path, change, files):
    one, other = write_run(tmp_path / "one"), write_run(tmp_path / "other", **change)
    assert differences(one, other) == files
    assert differences(other, one) == files


def test_a_run_that_ended_elsewhere_differs(tmp_path):
    one, other = write_run(tmp_path / "one"), write_run(tmp_path / "other", step=8)
    assert len(differences(one, other)) == 4
