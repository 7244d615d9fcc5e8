# SPDX-License-Identifier: Apache-2.0
"""Checkpoints: what goes in comes out to the bit, damage is refused, two always stay."""

import math
import random
import shutil

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from loop_tools import same

from gossamer.errors import ArtifactError, InputError, ResourceError
from gossamer.training.checkpoint import (
    CheckpointStore,
    CheckpointWriter,
    Snapshot,
    read_checkpoint,
)
from gossamer.training.checkpoint.random_state import capture_random, restore_random, seed_all
from gossamer.training.checkpoint.state_tree import decode, encode

DTYPES = (torch.float32, torch.bfloat16, torch.int64, torch.uint8, torch.int16, torch.bool)


def tensor_of(draw):
    dtype = draw(st.sampled_from(DTYPES))
    shape = draw(st.lists(st.integers(0, 3), max_size=3))
    return torch.arange(math.prod(shape)).view(shape).to(dtype)


trees = st.recursive(
    st.none()
    | st.booleans()
    | st.integers(-(2**70), 2**70)
    | st.floats(allow_nan=False)
    | st.text(st.characters(min_codepoint=32, max_codepoint=126), max_size=5)
    | st.composite(tensor_of)(),
    lambda inner: (
        st.lists(inner, max_size=3)
        | st.lists(inner, max_size=3).map(tuple)
        | st.dictionaries(st.sampled_from(["a", "b", "$tensor", "$x"]), inner, max_size=3)
        | st.dictionaries(st.integers(0, 5), inner, max_size=3)
    ),
    max_leaves=8,
)


@settings(max_examples=60, deadline=None)
@given(trees)
def test_any_state_comes_back_to_the_bit(tree):
    plain, tensors = encode(tree)
    assert same(decode(plain, tensors, "here"), tree)


def test_nan_and_infinities_are_kept():
    back = decode(*encode([math.nan, math.inf, -math.inf, 0.1]), "here")
    assert math.isnan(back[0])
    assert back[1:] == [math.inf, -math.inf, 0.1]


def test_a_tensor_found_twice_is_stored_once():
    weight = torch.randn(4, 4)
    plain, tensors = encode({"a": weight, "b": weight, "c": weight.t(), "d": torch.empty(0)})
    assert list(tensors) == ["a", "c", "d"]
    assert plain["a"] == plain["b"]


@pytest.mark.parametrize("value", [object(), {1.5: 2}, {None: 1}, [b"bytes"], {"a": {1, 2}}])
def test_state_that_cannot_be_saved_is_named(value):
    with pytest.raises(InputError, match="training state"):
        encode({"place": value})


def test_sparse_tensors_are_refused():
    with pytest.raises(InputError, match="plain one"):
        encode(torch.eye(3).to_sparse())


@pytest.mark.parametrize(
    "plain", [{"$tensor": "no"}, {"$tuple": 1}, {"$what": 1}, {"$items": [[1]]}, {"$float": "1"}]
)
def test_trees_that_nobody_wrote_are_refused(plain):
    with pytest.raises(ArtifactError):
        decode(plain, {}, "here")


def snapshot(step, **state):
    return Snapshot.of(step, {"recipe": {"a": 1}}, {"x": torch.arange(100) + step, **state})


def test_newest_complete_one_is_read(tmp_path):
    store = CheckpointStore(tmp_path / "c", keep=3)
    assert store.newest(pytest.fail) is None
    for step in (1, 5, 20, 100):
        store.write(snapshot(step, tied=(step, 0.5)))
    assert store.steps() == [5, 20, 100]
    found = store.newest(pytest.fail)
    assert found.step == 100
    assert found.run == {"recipe": {"a": 1}}
    assert same(found.state, {"x": torch.arange(100) + 100, "tied": (100, 0.5)})


def test_fewer_than_two_are_never_kept(tmp_path):
    with pytest.raises(InputError, match="at least 2"):
        CheckpointStore(tmp_path, keep=1)


def test_damaged_ones_do_not_count_when_old_ones_go(tmp_path):
    store = CheckpointStore(tmp_path, keep=2)
    for step in (1, 2):
        store.write(snapshot(step))
    (tmp_path / "step_00000002" / "state.safetensors").write_bytes(b"")
    store.write(snapshot(3))
    assert store.steps() == [1, 2, 3]
    store.write(snapshot(4))
    assert store.steps() == [3, 4]


def test_a_folder_of_someone_else_is_left_alone(tmp_path):
    store = CheckpointStore(tmp_path)
    (tmp_path / "step_00000001").mkdir()
    (tmp_path / "step_00000001" / "thesis.tex").write_text("mine")
    with pytest.raises(ArtifactError, match=r"thesis\.tex"):
        store.write(snapshot(1))
    assert (tmp_path / "step_00000001" / "thesis.tex").read_text() == "mine"


def test_leftovers_of_dead_writers_are_removed_and_nothing_else(tmp_path):
    store = CheckpointStore(tmp_path)
    store.write(snapshot(1))
    (tmp_path / f"step_00000002.tmp-{'0' * 32}").mkdir()
    (tmp_path / ".step_00000002.lock").touch()
    (tmp_path / "notes.txt").touch()
    store.remove_leftovers()
    assert sorted(p.name for p in tmp_path.iterdir()) == ["notes.txt", "step_00000001"]


def cut_places(size):
    return sorted({0, 1, 7, 8, size // 2, size - 1} & set(range(size)))


@pytest.mark.parametrize("name", ["manifest.json", "state.safetensors"])
def test_a_truncated_file_is_refused_and_the_one_before_is_taken(tmp_path, name):
    store = CheckpointStore(tmp_path)
    store.write(snapshot(1))
    store.write(snapshot(2))
    path = tmp_path / "step_00000002" / name
    whole = path.read_bytes()
    for size in cut_places(len(whole)):
        path.write_bytes(whole[:size])
        notices = []
        assert store.newest(notices.append).step == 1
        assert len(notices) == 1
        assert str(path) in notices[0]
        assert "step 1 instead" in notices[0]
    path.unlink()
    assert store.newest(lambda text: None).step == 1


def test_every_flipped_bit_is_refused(tmp_path):
    store = CheckpointStore(tmp_path)
    store.write(snapshot(1))
    folder = tmp_path / "step_00000001"
    generator = random.Random(0)  # noqa: S311
    for path in folder.iterdir():
        whole = path.read_bytes()
        for _ in range(150):
            place, bit = generator.randrange(len(whole)), 1 << generator.randrange(8)
            damaged = bytearray(whole)
            damaged[place] ^= bit
            path.write_bytes(damaged)
            with pytest.raises(ArtifactError):
                read_checkpoint(folder)
        path.write_bytes(whole)
    read_checkpoint(folder)


def test_if_all_are_damaged_it_says_so(tmp_path):
    store = CheckpointStore(tmp_path)
    store.write(snapshot(1))
    (tmp_path / "step_00000001" / "state.safetensors").write_bytes(b"x")
    with pytest.raises(ArtifactError, match="every checkpoint is damaged"):
        store.newest(pytest.fail)


def test_a_renamed_checkpoint_is_refused(tmp_path):
    store = CheckpointStore(tmp_path)
    store.write(snapshot(1))
    shutil.copytree(tmp_path / "step_00000001", tmp_path / "step_00000009")
    notices = []
    assert store.newest(notices.append).step == 1
    assert "renamed" in notices[0]


def test_asynchronous_checkpoints_hold_what_was_there_when_they_were_asked_for(tmp_path):
    store = CheckpointStore(tmp_path)
    writer = CheckpointWriter(store, asynchronous=True)
    weight = torch.ones(1000)
    state = {"weight": weight}
    assert writer.submit(Snapshot.of(1, {}, state, copy=writer.copies)) is None
    weight.zero_()
    writer.submit(Snapshot.of(2, {}, state, copy=writer.copies))
    writer.wait()
    assert read_checkpoint(tmp_path / "step_00000001").state["weight"].sum() == 1000
    assert read_checkpoint(tmp_path / "step_00000002").state["weight"].sum() == 0


def test_a_failed_asynchronous_write_is_raised_at_the_next_one(tmp_path, monkeypatch):
    store = CheckpointStore(tmp_path)
    writer = CheckpointWriter(store, asynchronous=True)
    usage = shutil.disk_usage(tmp_path)
    with monkeypatch.context() as patch:
        patch.setattr(shutil, "disk_usage", lambda _: usage._replace(free=10))
        writer.submit(snapshot(1))
        with pytest.raises(ResourceError, match=r"needed \d+ bytes.*free 10"):
            writer.wait()
    writer.submit(snapshot(2))
    writer.wait()
    assert store.steps() == [2]


def test_generators_come_back():
    python, numpy = random, np.random

    def draws():
        return python.random(), python.gauss(0, 1), numpy.rand(3), numpy.randn(), torch.rand(3)

    seed_all(5)
    python.gauss(0, 1)
    numpy.randn()
    state = decode(*encode(capture_random()), "here")
    first = draws()
    restore_random(state)
    second = draws()
    assert first[:2] == second[:2]
    assert (first[2] == second[2]).all()
    assert first[3] == second[3]
    assert torch.equal(first[4], second[4])


def test_unusable_generator_states_are_refused():
    with pytest.raises(ArtifactError, match="random generators"):
        restore_random({"python": {}, "numpy": {}})
