# SPDX-License-Identifier: Apache-2.0
"""A run that grows, at a step or by the slope, and is resumed to the bit."""

import json

import pytest
import torch

import gossamer
from gossamer.errors import GossamerError, InputError, RecipeError
from gossamer.nn.prunable import active_parameters
from gossamer.training.growth import Growth, GrowthStep, GrowthWatch, SlopeMonitor
from gossamer.training.loop import LearningRate, Loop, LoopSettings
from gossamer.training.loop.run import NoControl
from gossamer.zoo import GPT


@pytest.fixture(autouse=True)
def _modes_by_rule(monkeypatch):
    """Two runs that measure the modes of their layers on a busy machine may choose others."""
    monkeypatch.setenv("GOSSAMER_TUNE", "off")


def recipe(*growths, **changed):
    train = {
        "task": "text",
        "model": {"name": "gpt", "width": 16, "layers": 1, "heads": 2, "context": 16},
        "steps": 12,
        "batch": 4,
        "log_every": 1,
        "grow": list(growths),
        "checkpoint": {"every": 3},
        "evaluation": {"every": 2},
        **changed,
    }
    return {"gossamer": 1, "stages": [{"train": train}]}


def records(out, kind):
    lines = (out.parent / f"{out.name}.run" / "metrics.jsonl").read_text().splitlines()
    return [r for r in map(json.loads, lines) if r["kind"] == kind]


def digest(path):
    return {f.name: f.read_bytes() for f in path.iterdir() if f.suffix == ".safetensors"}


GROWTHS = {
    "depth": [{"at": 6, "layers": 3}],
    "width": [{"at": 0.5, "width": 2}],
    "twice": [
        {"at": 4, "depth": 2, "lr_factor": 0.5},
        {"at": 8, "width": 2, "rho": 1.8, "rewarm": 3},
    ],
    "sparse": [{"at": 6, "width": 2, "opened": 0.3}],
    "slope": [{"slope": -0.4, "depth": 2}],
    "at the start": [{"at": 0, "depth": 2}],
    "mup": [{"at": 6, "width": 2, "mup": True}],
}


REOPEN = {
    "width": [{"at": 4, "width": 2, "opened": 0.1}],
    "twice": [{"at": 2, "depth": 2}, {"at": 5, "width": 3, "opened": 0.0}],
}
SCHEDULE = {"kind": "reopen", "begin": 6, "end": 10, "every": 2, "sparsity": 0.2}


@pytest.mark.parametrize("name", GROWTHS)
def test_a_run_grows_and_its_loss_does_not_jump(name, tmp_path):
    steps = 40 if name == "slope" else 12
    gossamer.train(recipe(*GROWTHS[name], steps=steps), "zoo:text", out=tmp_path / "out")
    grown = records(tmp_path / "out", "growth")
    assert len(grown) == len(GROWTHS[name])
    for record in grown:
        assert record["loss_after"] == pytest.approx(record["loss_before"], rel=1e-5)
        assert record["parameters_after"] > record["parameters_before"]
    flops = [r["flops"] for r in records(tmp_path / "out", "evaluation")]
    assert flops == sorted(flops)
    assert flops[-1] > 0
    model = gossamer.load(tmp_path / "out")
    first = GROWTHS[name][0]
    if "layers" in first:
        assert len(model.blocks) == first["layers"]
    if name == "sparse":
        assert model.blocks[0].up.form == "compact"
        assert records(tmp_path / "out", "compaction")


def killed_at(stop, wanted, out, monkeypatch):
    class Killed(Exception):
        pass

    once = Loop._one_step

    def until(self, *args):
        if self.step == stop:
            raise Killed
        return once(self, *args)

    with monkeypatch.context() as patch:
        patch.setattr(Loop, "_one_step", until)
        with pytest.raises(Killed):
            gossamer.train(wanted, "zoo:text", out=out)


@pytest.mark.parametrize("name", ["depth", "twice", "sparse", "slope", "mup"])
@pytest.mark.parametrize("stop", [3, 6, 9])
def test_a_killed_run_goes_on_to_the_same_bytes(name, stop, tmp_path, monkeypatch):
    steps = 40 if name == "slope" else 12
    wanted = recipe(*GROWTHS[name], steps=steps)
    gossamer.train(wanted, "zoo:text", out=tmp_path / "whole")
    killed_at(stop, wanted, tmp_path / "killed", monkeypatch)
    gossamer.train(wanted, "zoo:text", out=tmp_path / "killed", resume=True)
    assert digest(tmp_path / "killed") == digest(tmp_path / "whole")


@pytest.mark.parametrize("name", REOPEN)
def test_zeros_between_copies_open_while_the_run_goes_on(name, tmp_path):
    wanted = recipe(*REOPEN[name], schedule=SCHEDULE)
    gossamer.train(wanted, "zoo:text", out=tmp_path / "out")
    grown = records(tmp_path / "out", "growth")
    assert all(r["loss_after"] == pytest.approx(r["loss_before"], rel=1e-5) for r in grown)
    moved = records(tmp_path / "out", "schedule")
    assert [r["step"] for r in moved] == [6, 8, 10]
    zeros = [r["sparsity"] for r in moved]
    assert zeros == sorted(zeros, reverse=True)
    assert zeros[0] > 0.4 > zeros[-1] == pytest.approx(0.2, abs=0.02)
    (compacted,) = records(tmp_path / "out", "compaction")
    assert compacted["step"] == 10
    # Compute follows the masks: a step after all have opened costs more than one before.
    flops = {r["step"]: r["flops"] for r in records(tmp_path / "out", "evaluation")}
    assert flops[12] - flops[10] > flops[8] - flops[6] > 0


@pytest.mark.parametrize("name", REOPEN)
@pytest.mark.parametrize("stop", [3, 6, 7, 9, 11])
def test_a_killed_run_reopens_to_the_same_bytes(name, stop, tmp_path, monkeypatch):
    wanted = recipe(*REOPEN[name], schedule={**SCHEDULE, "drop": 0.2, "gradient_steps": 2})
    wanted["stages"][0]["train"]["checkpoint"] = {"every": 1}
    gossamer.train(wanted, "zoo:text", out=tmp_path / "whole")
    killed_at(stop, wanted, tmp_path / "killed", monkeypatch)
    gossamer.train(wanted, "zoo:text", out=tmp_path / "killed", resume=True)
    assert digest(tmp_path / "killed") == digest(tmp_path / "whole")


def test_a_grown_model_is_pruned_by_a_schedule_that_comes_later(tmp_path):
    wanted = recipe({"at": 4, "depth": 2}, schedule={"kind": "oneshot", "at": 8, "sparsity": 0.5})
    gossamer.train(wanted, "zoo:text", out=tmp_path / "out")
    (event,) = records(tmp_path / "out", "schedule")
    assert (event["step"], event["sparsity"]) == (8, 0.5)


def test_a_wide_sparse_model_of_a_dense_small_one_has_as_many_active_parameters(tmp_path):
    wanted = recipe(
        {"at": 4, "width": 3, "opened": 0.0},
        schedule={**SCHEDULE, "sparsity": 8 / 9},
        model={"name": "gpt", "width": 24, "layers": 1, "heads": 2, "context": 16},
    )
    gossamer.train(wanted, "zoo:text", out=tmp_path / "out")
    model = gossamer.load(tmp_path / "out")
    block = model.blocks[0]
    kept = sum(layer.nnz for layer in (block.qkv, block.output, block.up, block.down))
    assert kept == pytest.approx(12 * 24**2, rel=0.01)


def test_eight_bit_moments_and_split_masters_grow_in_a_run(tmp_path):
    small = {"name": "adamw", "lr": 1e-3, "master": "split", "moments": "8bit"}
    wanted = recipe({"at": 6, "width": 2, "opened": 0.2}, optimizer=small)
    gossamer.train(wanted, "zoo:text", out=tmp_path / "out")
    (grown,) = records(tmp_path / "out", "growth")
    assert grown["loss_after"] == pytest.approx(grown["loss_before"], rel=1e-4)


def test_recompute_and_growth(tmp_path):
    wanted = recipe({"at": 6, "depth": 2}, recompute=True)
    gossamer.train(wanted, "zoo:text", out=tmp_path / "again")
    gossamer.train(recipe({"at": 6, "depth": 2}), "zoo:text", out=tmp_path / "plain")
    assert digest(tmp_path / "again") == digest(tmp_path / "plain")


@pytest.mark.parametrize(
    ("growths", "changed", "words"),
    [
        ([{"depth": 2}], {}, "exactly one of them"),
        ([{"at": 3, "slope": -0.1, "depth": 2}], {}, "exactly one of them"),
        ([{"at": 12, "depth": 2}], {}, "leaves nothing"),
        ([{"at": 6, "depth": 2}, {"at": 3, "depth": 2}], {}, "lies before"),
        (
            [{"at": 6, "depth": 2}],
            {"schedule": {"kind": "oneshot", "sparsity": 0.5}},
            "is not after the growth",
        ),
        (
            [{"at": 6, "width": 2, "opened": 0.0}],
            {"schedule": {"kind": "reopen", "begin": 6, "sparsity": 0.2}},
            "6 is not after the growth at 6; masks move once the model has its last size",
        ),
        (
            [{"at": 6, "depth": 2}],
            {"schedule": {"kind": "rigl", "sparsity": 0.5}},
            "rigl moves masks from the first step on, before the model grows",
        ),
        (
            [{"slope": -0.1, "width": 2, "opened": 0.0}],
            {"schedule": {"kind": "reopen", "begin": 8, "sparsity": 0.2}},
            "a growth by slope has no moment",
        ),
        (
            [{"at": 6, "width": 2, "opened": 0.0}],
            {"schedule": {"kind": "oneshot", "at": 8, "sparsity": 0.5}},
            "opened leaves masks, which oneshot would undo",
        ),
        (
            [{"at": 6, "width": 2}],
            {"schedule": {"kind": "reopen", "begin": 8, "sparsity": 0.2}},
            "reopen needs the zeros",
        ),
        ([{"at": 6, "depht": 2}], {}, "depht"),
        ([{"at": 6, "width": 65}], {}, "width"),
    ],
)
def test_recipes_that_cannot_grow_are_refused_before_anything_is_written(
    growths, changed, words, tmp_path
):
    with pytest.raises(RecipeError, match=words):
        gossamer.train(recipe(*growths, **changed), "zoo:text", out=tmp_path / "out")
    assert not list(tmp_path.iterdir())


def test_a_schedule_too_early_is_refused_where_only_the_data_say_how_long_a_run_is(tmp_path):
    wanted = recipe(
        {"at": 6, "width": 2, "opened": 0.1}, schedule={**SCHEDULE, "begin": 0.0}, epochs=1.0
    )
    del wanted["stages"][0]["train"]["steps"]
    with pytest.raises(InputError, match=r"from step 0 on, and it has its model only after step 6"):
        gossamer.train(wanted, "zoo:text", out=tmp_path / "out")
    assert not (tmp_path / "out.run" / "metrics.jsonl").exists()


def test_a_loop_that_grows_takes_no_schedule_that_is_there_already():
    model = GPT(16, width=8, num_heads=2, num_layers=1, context=8)
    optimizer = torch.optim.AdamW(model.parameters())
    settings = LoopSettings(
        steps=4, rate=LearningRate("constant", 4), grow=(GrowthStep(Growth(depth=2), at=2),)
    )
    with pytest.raises(InputError, match="after the last growth"):
        Loop(model, optimizer, None, [], settings, control=NoControl(model))


def test_a_growth_that_cannot_be_is_an_error_with_the_run_kept(tmp_path):
    wanted = recipe({"at": 6, "heads": 2})
    with pytest.raises(GossamerError, match="width / heads"):
        gossamer.train(wanted, "zoo:text", out=tmp_path / "out")
    assert (tmp_path / "out.run").is_dir()


# --- when ----------------------------------------------------------------------------------------


def test_a_power_law_has_its_exponent_as_slope():
    monitor = SlopeMonitor(window=1)
    for step in range(1, 20):
        monitor.add(10.0 * step, 5.0 * step**-0.25)
    assert monitor.slopes() == pytest.approx([-0.25] * 18)
    assert not monitor.is_flat(-0.2)


def test_a_curve_is_flat_only_after_its_steepest_place():
    monitor = SlopeMonitor(window=1)
    losses = [5.0, 4.9, 4.0, 3.0, 2.6, 2.5, 2.49]
    seen = []
    for step, loss in enumerate(losses, start=1):
        monitor.add(step, loss)
        seen.append(monitor.is_flat(-0.5))
    assert seen == [False, False, False, False, False, True, True]


def test_jumps_and_nonsense_are_left_out():
    monitor = SlopeMonitor()
    for compute, loss in ((0, 1.0), (1, 5.0), (2, 5.2), (3, float("nan")), (4, 4.0), (5, -1.0)):
        monitor.add(compute, loss)
    assert monitor.points == [(1, 5.0), (4, 4.0)]


def test_the_rate_rises_again_after_each_growth():
    watch = GrowthWatch([GrowthStep(Growth(depth=2), at=4, rewarm=4)], tokens=1)
    assert watch.due(3) is None
    assert watch.due(4) is watch.steps[0]
    watch.grown(4)
    assert [watch.rate(step) for step in (4, 5, 6, 7, 8)] == [0.25, 0.5, 0.75, 1.0, 1.0]
    assert not watch.is_pending


def test_the_rate_of_the_larger_model_may_be_smaller():
    growths = [GrowthStep(Growth(depth=2), at=at, rewarm=2, lr_factor=0.5) for at in (2, 6)]
    watch, rates = GrowthWatch(growths, tokens=1), []
    for step in range(9):
        if watch.due(step):
            watch.grown(step)
        rates.append(watch.rate(step))
    assert rates == [1.0, 1.0, 0.25, 0.5, 0.5, 0.5, 0.125, 0.25, 0.25]


def test_stable_rates_fall_at_the_end_only():
    rate = LearningRate("wsd", 100, warmup=10, decay=0.2)
    assert rate.factor(0) == 0.1
    assert rate.factor(9) == rate.factor(50) == rate.factor(80) == 1.0
    assert rate.factor(90) == pytest.approx(0.5)
    assert rate.factor(100) == 0.0


def test_active_parameters_leave_tables_out_and_count_kept_weights():
    model = GPT(32, width=16, num_heads=2, num_layers=1, context=8)
    whole = sum(p.numel() for p in model.parameters())
    assert active_parameters(model) == whole - (32 + 8) * 16
    tied = GPT(32, width=16, num_heads=2, num_layers=1, context=8, tied=True)
    assert active_parameters(tied) == active_parameters(model)
    gossamer.sparsify(model, sparsity=0.5)
    assert active_parameters(model) == whole - (32 + 8) * 16 - 12 * 16 * 16 // 2
    torch.manual_seed(0)
