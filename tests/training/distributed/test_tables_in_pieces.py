# SPDX-License-Identifier: Apache-2.0
"""Tables larger than what a rank may hold: trained, saved and resumed without ever being whole."""

import shutil
import threading
from pathlib import Path

import pytest
import torch
from grid_ranks import run_on_ranks

from gossamer.data import RepeatedBatches
from gossamer.errors import ResourceError
from gossamer.io.safe_files.on_disk import is_on_disk, tensor_on_disk
from gossamer.nn.layers.tables.late_rows import late_of, late_rows, untouched
from gossamer.training.checkpoint import CheckpointStore, CheckpointWriter, read_checkpoint
from gossamer.training.distributed import MeshSizes
from gossamer.training.distributed.placement import MeshSettings, ProcessMesh
from gossamer.training.distributed.processes import (
    Timeouts,
    joined,
    shared_checkpoint,
    world_of_environment,
)
from gossamer.training.loop import LearningRate, Loop, LoopSettings, Surroundings
from gossamer.training.optim import SideBySide
from gossamer.zoo import DLRM

PATIENT = Timeouts(start=240, step=240, heartbeat=2)
ROWS, WIDTH = 300_000, 32
WHOLE = 4 * ROWS * WIDTH
ID = 7


class Watch:
    """The most memory, that of files apart, that this process has had since it was made."""

    def __init__(self):
        self.most = self.start = self._now()
        self._is_over = threading.Event()
        self._thread = threading.Thread(target=self._look, daemon=True)
        self._thread.start()

    @staticmethod
    def _now():
        text = Path("/proc/self/status").read_text()
        return 1024 * int(text.split("RssAnon:")[1].split()[0])

    def _look(self):
        while not self._is_over.wait(0.002):
            self.most = max(self.most, self._now())

    def grown(self):
        self._is_over.set()
        self._thread.join()
        return self.most - self.start


def make_loop(mesh, steps, rows, folder):
    torch.manual_seed(3)
    with late_rows():
        net = DLRM(2, (rows, 10), width=WIDTH, bottom=(4,), top=(4,))
    for table in net.tables:
        table.sparse = True
    weights = [table.weight for table in net.tables]
    held = [weight.data for weight in weights]
    for weight in weights:
        weight.data = weight.data.new_empty(0, WIDTH)
    by_rows = torch.optim.Adagrad(weights, lr=0.1)
    for weight, data in zip(weights, held, strict=True):
        weight.data = data
        by_rows.state[weight]["sum"] = untouched(*data.shape)
    rest = [p for n, p in net.named_parameters() if not n.startswith("tables")]
    optimizer = SideBySide([torch.optim.AdamW(rest, lr=0.01), by_rows])
    generator = torch.Generator().manual_seed(1)
    batch = {
        "numbers": torch.randn(12, 2, generator=generator),
        "ids": torch.randint(0, 10, (12, 2), generator=generator),
        "clicks": torch.randint(0, 2, (12,), generator=generator).float(),
    }
    # Rows of every rank.
    batch["ids"][:, 0] = torch.linspace(ID, rows - 1, 12).long()

    def loss(model, given):
        logits = model(given["numbers"], given["ids"])
        return torch.nn.functional.binary_cross_entropy_with_logits(logits, given["clicks"])

    settings = LoopSettings(
        steps=steps, rate=LearningRate("constant", steps, 0), log_every=1, checkpoint_every=2
    )
    store = CheckpointStore(folder, keep=10)
    around = Surroundings(writer=CheckpointWriter(store))
    return Loop(net, optimizer, loss, RepeatedBatches([batch]), settings, around=around,
                processes=mesh)  # fmt: skip


def train(folder, room, *, resume=False, is_watched=False, how="row", rows=ROWS):
    """Four steps; resumed, the last two."""
    world, folder = world_of_environment(), Path(folder)
    with joined(MeshSizes(data=world), PATIENT) as session:
        watch = Watch() if is_watched else None
        checkpoint = None
        if resume:
            store = CheckpointStore(folder, keep=10)
            held = store.newest(pytest.fail, mapped=True) if session.is_lead else None
            checkpoint = shared_checkpoint(session, held, Path(room))
        settings = MeshSettings(shard_tables=how, room=Path(room) if session.is_lead else None)
        loop = make_loop(ProcessMesh(session, settings), 4, rows, folder)
        if checkpoint is not None:
            loop.restore(checkpoint)
            assert loop.step == 2
        loop.train()
        if session.is_lead:
            assert loop.model.tables[0].weight.shape == (rows, WIDTH)
        if watch is not None:
            # Its rows, their sums, what travels, what libraries take. Whole: 128 MB.
            grown = watch.grown()
            assert grown < 2 * WHOLE / world + WHOLE / 2, (grown, WHOLE)


def end_of(folder):
    """The last checkpoint; then it is gone."""
    store = CheckpointStore(folder, keep=10)
    assert store.steps() == [2, 4]
    last = store.newest(pytest.fail)
    shutil.rmtree(last.path)
    return [*last.state["model"].values(), *_sums(last.state)]


def _sums(state):
    entries = state["optimizer"]["state"].values()
    return [entry["sum"] for entry in entries if "sum" in entry]


@pytest.mark.timeout(900)
def test_a_rank_never_holds_a_table(tmp_path):
    """Trained on 4 ranks, saved, resumed on 4 to the same bits, and on 3."""
    (room := tmp_path / "room").mkdir()
    folder = tmp_path / "run"
    run_on_ranks(_watched, [(4, str(folder), str(room), False)], 4)
    whole = end_of(folder)
    with late_rows():
        torch.manual_seed(3)
        net = DLRM(2, (ROWS, 10), width=WIDTH, bottom=(4,), top=(4,))
    rows = late_of(net.tables[0]).rows(0, 2 * ID)
    found = next(t for t in whole if t.shape == (ROWS, WIDTH))
    assert torch.equal(found[:ID], rows[:ID])
    assert not torch.equal(found[ID], rows[ID])
    run_on_ranks(_watched, [(4, str(folder), str(room), True)], 4)
    for one, other in zip(end_of(folder), whole, strict=True):
        assert torch.equal(one, other)
    run_on_ranks(_watched, [(3, str(folder), str(room), True)], 3)
    for one, other in zip(end_of(folder), whole, strict=True):
        torch.testing.assert_close(one, other, rtol=1e-4, atol=1e-5)
    assert not list(room.iterdir())


def _watched(folder, room, resume):
    train(folder, room, resume=resume, is_watched=True)


SMALL = 9_000  # above a megabyte, which is what goes to disk


def without_the_file(folder, room):
    """Only the leading rank has the run's folder: the others get rows on a disk of their own."""
    world, folder = world_of_environment(), Path(folder)
    with joined(MeshSizes(data=world), PATIENT) as session:
        held = None
        if session.is_lead:
            held = CheckpointStore(folder, keep=10).newest(pytest.fail, mapped=True)
            # The others look for it under a name that is not there.
            held = type(held)(folder / "elsewhere", held.step, held.run, held.state, held.sha256)
        own = Path(room) / f"host{session.rank}"
        checkpoint = shared_checkpoint(session, held, own)
        assert own.exists() != session.is_lead
        sums = _sums(checkpoint.state)
        large = [checkpoint.state["model"]["tables.0.weight"], sums[0]]
        assert all(is_on_disk(tensor) for tensor in large)
        wanted = read_checkpoint(folder / "step_00000004")
        assert torch.equal(large[0], wanted.state["model"]["tables.0.weight"])
        assert torch.equal(large[1], _sums(wanted.state)[0])
        # What is written there stays in this process.
        large[0].zero_()
        read_checkpoint(folder / "step_00000004")


@pytest.mark.timeout(600)
def test_hosts_that_do_not_see_the_checkpoint(tmp_path):
    (room := tmp_path / "room").mkdir()
    run_on_ranks(_small, [(2, str(tmp_path / "run"), str(room), "row")], 2)
    run_on_ranks(without_the_file, [(3, str(tmp_path / "run"), str(room))], 3)


def _small(folder, room, how):
    train(folder, room, how=how, rows=SMALL)


def test_a_full_disk_is_said(tmp_path):
    with pytest.raises(ResourceError, match=r"bytes of table rows.*do not fit the disk"):
        tensor_on_disk(torch.Size([2**50]), torch.float32, tmp_path)
    assert not list(tmp_path.iterdir())
    empty = tensor_on_disk(torch.Size([0, 4]), torch.float32, tmp_path)
    assert empty.shape == (0, 4)
