# SPDX-License-Identifier: Apache-2.0
"""TensorBoard is an extra: used if it is there, named if it is not."""

import sys

import pytest

from gossamer.errors import ResourceError
from gossamer.training.run_files import TensorBoard


@pytest.mark.filterwarnings("ignore::DeprecationWarning")
def test_numbers_become_scalars(tmp_path):
    pytest.importorskip("tensorboard")
    from tensorboard.backend.event_processing.event_accumulator import EventAccumulator

    board = TensorBoard(tmp_path)
    board.write({"kind": "step", "step": 3, "loss": 0.5, "text": "x", "flag": True})
    board.write({"kind": "step", "step": 4, "loss": 0.25})
    board.close()
    events = EventAccumulator(str(tmp_path))
    events.Reload()
    assert events.Tags()["scalars"] == ["step/loss"]
    assert [(e.step, e.value) for e in events.Scalars("step/loss")] == [(3, 0.5), (4, 0.25)]


def test_without_the_package_it_says_what_to_install(tmp_path, monkeypatch):
    monkeypatch.setitem(sys.modules, "torch.utils.tensorboard", None)
    with pytest.raises(ResourceError, match=r"gossamer\[tensorboard\]"):
        TensorBoard(tmp_path)
