# SPDX-License-Identifier: Apache-2.0
"""metrics.jsonl tells the whole model's figures, whatever a rank holds of it."""

import grid_tiny as tiny
import pytest
from grid_ranks import run_on_ranks

import gossamer
from gossamer.training.distributed import MeshSizes
from gossamer.training.distributed.placement import MeshSettings, ProcessMesh
from gossamer.training.distributed.processes import Timeouts, joined
from gossamer.training.loop import Surroundings

TIMEOUTS = Timeouts(start=60, step=60, heartbeat=1)
# data, pipeline, shard, tensor
GRIDS = [(2, 1, 1, 1), (1, 2, 1, 1), (1, 1, 2, 1), (1, 1, 1, 2)]
SPARSITY, STEPS, POISONED = 0.9, 14, 5


class Records(list):
    def write(self, record) -> None:
        self.append(dict(record))

    def close(self) -> None: ...

    def of(self, kind, *names):
        return [[r[name] for name in names] for r in self if r["kind"] == kind]


def loss(model, ids_BT):
    """The sixth batch has a token that makes the loss infinite minus infinite."""
    value = tiny.loss(model, ids_BT)
    return value * float("nan") if bool((ids_BT[:, 0] == 10).all()) else value


class Poisoned:
    """Batches of the tiny model, one of them as `loss` fears it."""

    def __init__(self) -> None:
        self._good = tiny.batches()

    def __getitem__(self, number):
        batch = self._good[number].clone()
        if number == POISONED:
            batch[:, 0] = 10
        return batch


def trained(processes=None, *, scheduled: bool) -> Records:
    """A run that settles its masks at step 2, or one that holds masks from the start."""
    records = Records()
    model = tiny.build("dense" if scheduled else "compact")
    around = Surroundings(sinks=(records,), evaluate=lambda model: {"one": 1.0})
    loop = tiny.make_loop(model, processes, steps=STEPS, around=around)
    loop.objective, loop.batches = loss, Poisoned()
    if scheduled:
        given = {"kind": "oneshot", "at": 2, "sparsity": SPARSITY}
        loop.control = gossamer.attach(model, given, loop.optimizer, total_steps=STEPS)
    loop.train()
    return records


def compare_on(mesh, scheduled) -> None:
    with joined(MeshSizes(*mesh), TIMEOUTS) as session:
        records = trained(ProcessMesh(session, MeshSettings(microbatches=2)), scheduled=scheduled)
    # Every rank says the same: figures are those of the model, not of the rank that writes.
    expected = trained(scheduled=scheduled)
    for kind in ("step", "evaluation"):
        found, wanted = records.of(kind, "sparsity"), expected.of(kind, "sparsity")
        assert found == wanted, (kind, found, wanted)
    names = ("loss", "gradient_norm", "skipped")
    for found, wanted in zip(records.of("step", *names), expected.of("step", *names), strict=True):
        assert found == pytest.approx(wanted, abs=1e-9)
    (found,), (wanted,) = (sorted(r.of("skipped", "layers")[0]) for r in (records, expected))
    assert set(found) <= all_faults(scheduled), found
    assert len(found) == len(wanted)
    if scheduled:
        counts = ("layers", "weights", "values", "sparsity", "bytes_before", "bytes_after")
        assert records.of("compaction", *counts) == expected.of("compaction", *counts)
        ((found,),) = records.of("compaction-effect", "bytes_after")
        ((wanted,),) = expected.of("compaction-effect", "bytes_after")
        assert found == pytest.approx(wanted, rel=1e-3)


def all_faults(scheduled: bool) -> set[str]:
    """What a whole NaN gradient is told as, of every parameter that may be named first."""
    model = tiny.build("dense" if scheduled else "compact")
    if scheduled:
        gossamer.sparsify(model, sparsity=SPARSITY)
        gossamer.compact(model)
    return {f"{n} ({p.numel()} of {p.numel()})" for n, p in model.named_parameters()}


@pytest.mark.timeout(300)
def test_figures_of_a_grid_are_those_of_the_whole_model():
    cases = [(MeshSizes(*mesh).num_ranks, mesh, True) for mesh in GRIDS]
    cases.append((2, (1, 2, 1, 1), False))
    run_on_ranks(compare_on, cases, 2)


def test_masks_that_no_schedule_moves_are_counted_too():
    records = trained(scheduled=False)
    layers = [m for m in tiny.build("compact").modules() if isinstance(m, gossamer.nn.Linear)]
    kept = sum(m.nnz for m in layers)
    weights = sum(m.in_features * m.out_features for m in layers)
    found = {value for (value,) in records.of("step", "sparsity")}
    assert found == {1 - kept / weights}
