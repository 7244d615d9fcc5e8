# SPDX-License-Identifier: Apache-2.0
"""Recipes that cut channels out: at once, and in the middle of a run that can be killed."""

import copy

import pytest
import torch
from torch import nn

import gossamer
from gossamer.errors import InputError, RecipeError, TargetError
from gossamer.nn.surgery.slimming import unit_counts
from gossamer.pruning.structured.channels import prune_channels
from gossamer.recipes import load_recipe, make_recipe
from gossamer.runs.schedules import attach
from gossamer.training import loop as loops
from gossamer.training.checkpoint import CheckpointStore, CheckpointWriter, read_checkpoint
from gossamer.training.loop import Loop, LoopSettings, Surroundings
from gossamer.zoo import GPT


def cnn(width=16):
    torch.manual_seed(0)
    model = nn.Sequential(
        nn.Conv2d(1, width, 3, padding=1), nn.BatchNorm2d(width), nn.ReLU(),
        nn.Conv2d(width, width, 3, padding=1), nn.BatchNorm2d(width), nn.ReLU(),
        nn.AdaptiveAvgPool2d(1), nn.Flatten(), nn.Linear(width, 4),
    )  # fmt: skip
    for norm in (model[1], model[4]):
        nn.init.uniform_(norm.weight)
    return model.eval()


def images():
    generator = torch.Generator().manual_seed(1)
    return [torch.randn(4, 1, 8, 8, generator=generator) for _ in range(3)]


def test_the_built_in_recipe_cuts_half_of_every_layer(tmp_path):
    model = cnn()
    gammas = model[1].weight.detach().clone()
    report = gossamer.sparsify(model, load_recipe("channels-50"), data=images())
    assert [model[i].out_channels for i in (0, 3)] == [8, 8]
    assert model[8].in_features == 8
    assert torch.equal(model[1].weight, gammas[gammas >= gammas.sort().values[8]])
    assert report.bytes_sparse < report.bytes_dense / 2.5
    assert "5 layers lost channels" in report.notes[0]
    gossamer.save(model, tmp_path / "slim")
    loaded = gossamer.load(tmp_path / "slim")
    assert torch.equal(loaded(images()[0]), model(images()[0]))


@pytest.mark.parametrize("scorer", ["gamma", "magnitude"])
@pytest.mark.parametrize("budget", ["uniform", "global"])
@pytest.mark.parametrize("keep", [0.01, 0.4, 1.0])
def test_what_is_cut_is_what_scores_least(keep, budget, scorer):
    model, x = cnn(10), images()[0]
    before = copy.deepcopy(model)
    prune_channels(model, x, keep=keep, budget=budget, scorer=scorer)
    counts = [model[i].out_channels for i in (0, 3)]
    if budget == "uniform":
        assert counts == [max(1, round(keep * 10))] * 2
    else:
        assert sum(counts) == max(2, round(keep * 20))
    scores = [
        before[i + 1].weight.abs() if scorer == "gamma" else before[i].weight.flatten(1).norm(dim=1)
        for i in (0, 3)
    ]
    for i, score, count in zip((0, 3), scores, counts, strict=True):
        kept = score.detach().argsort(descending=True)[:count].sort().values
        assert torch.equal(model[i + 1].weight, before[i + 1].weight[kept])
        assert model[i].weight.shape[0] == count


def test_a_network_without_batch_norm_has_filters_only():
    model = nn.Sequential(nn.Conv2d(1, 6, 3), nn.ReLU(), nn.Conv2d(6, 2, 1))
    with pytest.raises(TargetError, match="by gamma"):
        prune_channels(model, images()[0], keep=0.5)
    prune_channels(model, images()[0], keep=0.5, scorer="magnitude")
    assert model[0].out_channels == model[2].in_channels == 3
    assert model[2].out_channels == 2


BIRD = {
    "kind": "early_bird", "form": "channels", "coupled": True, "budget": "uniform",
    "sparsity": 0.5, "every": 2, "begin": 2, "end": 6,
}  # fmt: skip


def a_loop(folder=None, checkpoint=None):
    """Twelve steps of which the sixth draws the ticket at the latest."""
    model = cnn().train()
    optimizer = torch.optim.SGD(model.parameters(), 0.05, momentum=0.9)
    x, y = torch.cat(images()), torch.arange(12) % 4
    control = attach(model, BIRD, optimizer, total_steps=12, data=[x])
    records = []

    class Kept:
        def write(self, record):
            records.append(record)

        def close(self):
            pass

    writer = None
    if folder is not None:
        writer = CheckpointWriter(CheckpointStore(folder, 20), asynchronous=False)
    loop = Loop(
        model,
        optimizer,
        lambda net, batch: nn.functional.cross_entropy(net(x), y),
        [None] * 12,
        LoopSettings(12, loops.LearningRate("constant", 12), compaction="slim", checkpoint_every=2),
        control=control,
        around=Surroundings(example=x, sinks=(Kept(),), writer=writer),
    )
    if checkpoint is not None:
        loop.restore(checkpoint)
    loop.train()
    return loop, records


def test_a_ticket_is_cut_out_in_the_middle_of_a_run():
    loop, records = a_loop()
    found = next(record for record in records if record["kind"] == "compaction")
    assert found["outputs_apart"] < 1e-6
    assert found["values"] < found["weights"] / 2.5
    assert found["bytes_after"] < found["bytes_before"]
    assert [loop.model[i].out_channels for i in (0, 3)] == [8, 8]
    assert all(type(layer) in (nn.Conv2d, nn.Linear) for layer in (loop.model[0], loop.model[8]))
    held = loop.optimizer.state[loop.model[3].weight]["momentum_buffer"]
    assert held.shape == (8, 8, 3, 3)


@pytest.mark.parametrize("step", [4, 6, 10])
def test_a_killed_run_goes_on_to_the_same_bits(step, tmp_path):
    whole, _ = a_loop(tmp_path)
    (found,) = (one for one in tmp_path.iterdir() if one.name.endswith(f"{step:08d}"))
    resumed, _ = a_loop(checkpoint=read_checkpoint(found))
    for name, tensor in whole.model.state_dict().items():
        assert torch.equal(tensor, resumed.model.state_dict()[name]), name


def a_gpt_loop(folder=None, checkpoint=None):
    """Eight steps of a GPT; heads and filters are cut out after the fourth."""
    torch.manual_seed(0)
    model = GPT(20, width=16, num_heads=4, num_layers=2, context=8)
    optimizer = torch.optim.AdamW(model.parameters(), 1e-2)
    ids = torch.randint(20, (6, 8), generator=torch.Generator().manual_seed(1))
    given = {"kind": "early_bird", "form": "units", "sparsity": 0.5, "every": 1, "end": 4}
    control = attach(model, {**given, "begin": 1}, optimizer, total_steps=8)
    writer = None
    if folder is not None:
        writer = CheckpointWriter(CheckpointStore(folder, 20), asynchronous=False)
    loop = Loop(
        model,
        optimizer,
        lambda net, batch: nn.functional.cross_entropy(net(ids)[:, :-1].mT, ids[:, 1:]),
        [None] * 8,
        LoopSettings(8, loops.LearningRate("constant", 8), compaction="slim", checkpoint_every=2),
        control=control,
        around=Surroundings(writer=writer),
    )
    if checkpoint is not None:
        loop.restore(checkpoint)
    loop.train()
    return loop


@pytest.mark.parametrize("step", [2, 4, 6])
def test_a_transformer_loses_heads_and_filters_and_can_be_killed(step, tmp_path):
    whole = a_gpt_loop(tmp_path / "runs")
    assert [sum(counts) for counts in zip(*unit_counts(whole.model), strict=True)] == [4, 64]
    (found,) = (one for one in (tmp_path / "runs").iterdir() if one.name.endswith(f"{step:08d}"))
    resumed = a_gpt_loop(checkpoint=read_checkpoint(found))
    for name, tensor in whole.model.state_dict().items():
        assert torch.equal(tensor, resumed.model.state_dict()[name]), name
    gossamer.save(whole.model.eval(), tmp_path / "slim")
    loaded = gossamer.load(tmp_path / "slim")
    ids = torch.arange(8).view(1, 8)
    assert torch.equal(loaded(ids), whole.model(ids))


def test_slim_says_early_what_it_does_not_do():
    stage = {"task": "images", "steps": 4, "compaction": "slim"}

    def recipe(**more):
        return make_recipe({"gossamer": 1, "stages": [{"train": {**stage, **more}}]}, "test")

    with pytest.raises(RecipeError, match="master"):
        recipe(optimizer={"master": "split"})
    with pytest.raises(RecipeError, match="one process"):
        recipe(mesh={"data": 2})
    with pytest.raises(InputError, match="split_masters"):
        LoopSettings(4, loops.LearningRate("constant", 4), compaction="slim", split_masters=True)
    model = nn.Sequential(nn.Identity())
    with pytest.raises(InputError, match="cannot cut this Sequential"):
        Loop(
            nn.Sequential(nn.Linear(2, 2), model),
            torch.optim.SGD(nn.Linear(1, 1).parameters(), 0.1),
            lambda net, batch: net(batch).sum(),
            [],
            LoopSettings(0, loops.LearningRate("constant", 1), compaction="slim"),
        )
