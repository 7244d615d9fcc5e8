# SPDX-License-Identifier: Apache-2.0
"""The growth benchmark: shared beginnings change nothing, learned growth begins exact."""

import argparse
import itertools

import pytest
import torch

import gossamer
import growth
import growth_zeros
from gossamer.zoo import GPT
from support import growing_gpt as runs
from support import growing_steps
from support.growing_learned import LearnedGrowth, learn_growth

GROWTHS = {
    "depth": {"layers": 5},
    "width": {"width": 2, "symmetry": "noise"},
    "both": {"width": 3, "depth": 2},
    "stack": {"depth": 2, "mode": "stack"},
    "ffn": {"ffn": 2},
}


@pytest.fixture
def given(tmp_path):
    return argparse.Namespace(
        width=16, heads=2, layers=4, small=1, context=16, batch=4, steps=300, rates=[1e-3, 2e-3],
        race=0.3, decay=0.1,
        bf16=False, log=tmp_path / "log.jsonl", log_only=False, trunks=tmp_path / "trunks",
        text=tmp_path / "text",
    )  # fmt: skip


@pytest.fixture
def _one_rate(monkeypatch):
    """No race for the rate after growth."""
    monkeypatch.setattr(growth.Log, "best_rate", lambda log, arm: 1e-3)


def small_model(tied=False):
    torch.manual_seed(0)
    sizes = {"width": 8, "num_heads": 2, "num_layers": 2, "context": 16}
    model = GPT(256, **sizes, tied=tied).double()
    for param in model.parameters():
        torch.nn.init.normal_(param, std=0.3)
    return model


@pytest.mark.parametrize("tied", [False, True])
@pytest.mark.parametrize("name", GROWTHS)
def test_without_a_step_the_learned_growth_is_the_exact_one(name, tied):
    small = small_model(tied)
    larger = gossamer.grow(small, **GROWTHS[name])
    weights = LearnedGrowth(small, larger).weights()
    exact = dict(larger.named_parameters())
    assert weights.keys() == exact.keys()
    for place, tensor in weights.items():
        assert torch.allclose(tensor, exact[place], rtol=1e-12, atol=1e-12), place
    before = {place: tensor.clone() for place, tensor in larger.state_dict().items()}
    assert learn_growth(small, larger, runs.loss_of, []) == 0
    for place, tensor in larger.state_dict().items():
        assert torch.allclose(tensor, before[place], rtol=1e-12, atol=1e-12)


@pytest.mark.parametrize("name", ["depth", "width"])
def test_a_few_steps_learn(name):
    small = small_model()
    larger = gossamer.grow(small, **GROWTHS[name])
    batch = torch.randint(256, (4, 17), generator=torch.Generator().manual_seed(0))
    before = runs.loss_of(larger, batch).item()
    flops = learn_growth(small, larger, runs.loss_of, [batch] * 10, rate=1e-3)
    assert flops > 0
    assert runs.loss_of(larger, batch).item() < before


def log_of(given):
    given.text.write_bytes(bytes(itertools.islice(itertools.cycle(range(97, 123)), 8000)))
    return growth.Log(given, given.trunks)


@pytest.mark.usefixtures("_one_rate")
def test_a_shared_beginning_gives_the_run_that_is_done_alone(given, tmp_path):
    key = ("small, out0", 2e-3, 1.0, 0, "report")
    log = log_of(given)
    for budget in (0.4, 1.0):
        shared = log.row(key[0], key[1], budget, *key[3:])
    assert len(list(given.trunks.iterdir())) == 2
    given.trunks, given.log = tmp_path / "other", None
    alone = log_of(given).row(*key)
    for name in ("loss", "tflop", "steps", "jump", "curve", "grown_at"):
        assert shared[name] == alone[name], name
    assert abs(alone["jump"]) < 1e-5


@pytest.mark.parametrize("writes", [2, 5])
@pytest.mark.usefixtures("_one_rate")
def test_an_interrupted_run_goes_on_to_the_same_figures(given, tmp_path, monkeypatch, writes):
    """It is interrupted in the trunk or after the growth; nothing before its last file is done
    again."""
    key = ("small, out0, late", 2e-3, 0.5, 0, "report")
    alone = log_of(given).row(*key)
    monkeypatch.setattr(runs, "STRETCH", 50)
    given.trunks, given.log = tmp_path / "other", None
    write, train, left, done = runs.Trunks._write, runs.train, [writes], []

    def stops(*args):
        write(*args)
        left[0] -= 1
        if not left[0]:
            raise KeyboardInterrupt

    def counts(given, data, state, until, *args):
        done.append(until - state.step)
        return train(given, data, state, until, *args)

    monkeypatch.setattr(runs.Trunks, "_write", stops)
    monkeypatch.setattr(runs, "train", counts)
    with pytest.raises(KeyboardInterrupt):
        log_of(given).row(*key)
    again = log_of(given).row(*key)
    assert sum(done) == alone["steps"]
    for name in ("loss", "chooses", "tflop", "steps", "jump", "curve", "grown_at"):
        assert again[name] == alone[name], name
    assert not list(given.trunks.glob("small*"))


def test_finished_runs_are_not_repeated_and_the_log_is_enough_for_the_table(given):
    first = log_of(given).row("large from scratch", 2e-3, 0.4, 0, "report")
    given.log_only = True
    log = growth.Log(given, given.trunks)
    assert log.row("large from scratch", 2e-3, 0.4, 0, "report")["loss"] == first["loss"]
    assert log.row("large from scratch", 2e-3, 0.8, 0, "report") is None
    assert log.best_rate("large from scratch") is None


def test_a_race_is_not_won_by_the_largest_rate(given, monkeypatch):
    losses = {1e-3: 3.0, 2e-3: 2.0, 4e-3: 1.0, 8e-3: 1.5}
    names = ("arm", "rate", "budget", "seed", "on")
    monkeypatch.setattr(
        growth,
        "run",
        lambda *key: {**dict(zip(names, key[3:-1], strict=True)), "loss": losses[key[4]]},
    )
    given.log = None
    assert log_of(given).best_rate("large from scratch") == 4e-3


def test_the_lead_is_the_compute_that_scratch_takes_to_the_same_loss():
    scratch = [(float(x), 4.0 - 0.2 * x) for x in range(11)]
    ahead = [(float(x), 4.0 - 0.2 * min(x + 2, 10)) for x in range(11)]
    assert growth.lead(ahead, scratch, 0.3) == (pytest.approx(3.0), pytest.approx(0.2))
    assert growth.lead(scratch, scratch, 0.5)[1] == 0
    assert growth.lead([(x, y - 2) for x, y in scratch], scratch, 0.9)[1] is None
    assert growth.smooth(scratch)[1:-1] == [pytest.approx(point) for point in scratch[1:-1]]


@pytest.mark.filterwarnings("ignore:grow. symmetry='none'")
@pytest.mark.usefixtures("_one_rate")
@pytest.mark.parametrize("arm", growth.ARMS)
def test_every_arm_has_its_compute(arm, given):
    given.width, given.heads = 64, 4
    row = log_of(given).row(arm, 2e-3, 0.2, 0, "choose")
    whole = 6 * growth.active(given, 64, 4, 4) * given.batch * given.context * given.steps
    assert row["tflop"] == pytest.approx(0.2 * whole / 1e12, rel=0.1)
    assert row["parameters"] > 0
    assert row["rate_after"] == (1e-3 if "grow" in growth.ARMS[arm] else None)


def test_runs_with_zeros_between_copies_begin_where_the_small_model_ended(given):
    given.width, given.layers = 64, 1
    given.opened, given.steps = [0.25], 12
    log_of(given)
    data = runs.parts_of(given.text)["train"]
    trunk = growth_zeros.model_at(given, data, given.width, 1e-3, 20, falls=False)
    batch = runs.batch_of(given, data, seed=3, number=0)
    before = runs.loss_of(trunk.model, batch).item()
    found, seconds = growth_zeros.contenders(given, data, trunk, 1e-3)
    assert [run.opened for run in found] == [None, "all", 0.25, 0.25, "pruned"]
    assert seconds.keys() == {None, "all", 0.25, "pruned"}
    pruned = found.pop()
    wanted = growing_steps.zeros_of(found[2].state.model)
    for share in (0.1, 0.6, 1.0):
        pruned.go_to(share)
        assert pruned.state.step == round(share * pruned.steps)
        assert (pruned.control is None) == (share > 0.5)
    assert pruned.state.model.blocks[0].up.form == "compact"
    assert growing_steps.zeros_of(pruned.state.model) == pytest.approx(wanted, abs=0.03)
    for run in found:
        assert runs.loss_of(run.state.model, batch).item() == pytest.approx(before, rel=1e-5)
        run.go_to(0.5)
        run.go_to(1.0)
        assert run.state.step == 20 + run.steps
        assert run.factor(run.state.step) == 0
    zeros = [growing_steps.zeros_of(run.state.model) for run in found]
    assert zeros[:2] == [0, 0]
    assert 0 < zeros[2] < 0.5
    assert [run.steps for run in found[1:3]] == [12, 12]
