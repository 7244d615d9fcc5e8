# SPDX-License-Identifier: Apache-2.0
"""The Fashion-MNIST benchmark: what is held out, what is remembered, when late pruning happens."""

import argparse
import gzip

import numpy as np
import pytest
import torch

import schedules
from support import fashion
from support.fashion_training import BATCH, Finished, num_steps, train


def write_idx(folder, part, labels):
    """Images whose pixels are all equal to their number; labels as given."""
    images = np.repeat(np.arange(len(labels), dtype=np.uint8), 784)
    count = len(labels).to_bytes(4, "big")
    size = (28).to_bytes(4, "big")
    for name, magic, rest, array in (
        ("images-idx3", 2051, size * 2, images),
        ("labels-idx1", 2049, b"", np.array(labels, np.uint8)),
    ):
        raw = magic.to_bytes(4, "big") + count + rest + array.tobytes()
        (folder / f"{part}-{name}-ubyte.gz").write_bytes(gzip.compress(raw))


@pytest.fixture
def folder(tmp_path):
    write_idx(tmp_path, "train", list(range(12)))
    write_idx(tmp_path, "t10k", [100, 101, 102])
    return tmp_path


def test_held_out_images_are_training_images_that_are_not_trained_on(folder):
    whole = fashion.load(folder)
    assert whole.y_train.tolist() == list(range(12))
    assert whole.y_test.tolist() == [100, 101, 102]
    held = fashion.load(folder, held_out=True)
    assert held.y_train.tolist() == list(range(10))
    assert held.y_test.tolist() == [10, 11]
    assert held.x_test.shape == (2, 1, 28, 28)
    assert "held out" in held.source
    assert "held out" not in whole.source


def test_a_limit_leaves_the_held_out_images_alone(folder):
    held = fashion.load(folder, limit=4, held_out=True)
    assert held.y_train.tolist() == [0, 1, 2, 3]
    assert held.y_test.tolist() == [10, 11]


def test_finished_runs_are_read_back_and_other_cases_are_not(tmp_path):
    file, made = tmp_path / "runs.jsonl", []

    def make():
        made.append(1)
        return {"accuracy": 1.0 / 3.0}

    first = Finished(file).get({"seed": 0, "schedule": {"every": 0.5}}, make)
    assert Finished(file).get({"seed": 0, "schedule": {"every": 0.5}}, make) == first
    assert len(made) == 1
    Finished(file).get({"seed": 0, "schedule": {"every": 1}}, make)
    assert len(made) == 2
    assert len(file.read_text().splitlines()) == 2


def small_data(count=2 * BATCH):
    generator = torch.Generator().manual_seed(0)
    x = torch.randn(count, 1, 28, 28, generator=generator)
    y = torch.randint(0, 10, (count,), generator=generator)
    return fashion.Images("noise", x, y, x[:50], y[:50])


@pytest.mark.parametrize("optimizer", ["sgd", "adamw"])
def test_late_pruning_comes_after_the_run_and_is_trained_on(optimizer):
    data = small_data()
    end = num_steps(data, 2)
    assert end == 4
    name, (schedule, again) = list(schedules.cnn_cases(end).items())[2]
    assert name == "late channels 50 %"
    found = train(
        data, model="cnn", schedule=schedule, seed=0, epochs=2, optimizer=optimizer, again=again
    )
    assert found["ticket"]["at"] == 1.0
    assert found["sparsity"] > 0.3


def test_settings_take_what_the_command_line_says():
    given = argparse.Namespace(set=["rigl.every=0.25", 'acdc.budget="erk"'])
    found = schedules.settings(given)
    assert found["rigl"] == {**schedules.METHODS["rigl"], "every": 0.25}
    assert found["acdc"]["budget"] == "erk"
    assert "budget" not in schedules.METHODS["acdc"]
    for bad in ("rigle.every=1", "rigl=1", "rigl.every="):
        with pytest.raises(SystemExit, match=r"METHOD\.KEY=VALUE"):
            schedules.settings(argparse.Namespace(set=[bad]))
