"""Experts are pruned with the tokens that each of them saw."""

import copy

import pytest
import torch
from torch import nn

import gossamer
from gossamer.errors import InputError
from gossamer.nn.layers.experts import GroupedLinear
from gossamer.nn.moe import ExpertFFN
from gossamer.ops.experts import Routes

EXPERTS, WIDTH, INNER = 3, 8, 12


class Routed(nn.Module):
    """Tokens name their expert in their first entry."""

    def __init__(self):
        super().__init__()
        self.ffn = ExpertFFN(EXPERTS, WIDTH, INNER, activation="relu", bias=False)

    def forward(self, x):
        index = x[:, :1].long().clamp(0, EXPERTS - 1)
        routes = Routes.of_choice(index, EXPERTS)
        return self.ffn(x, routes, torch.ones(len(x)))


class Single(nn.Module):
    """One expert as ordinary layers."""

    def __init__(self, ffn, expert):
        super().__init__()
        self.up, self.down = nn.Linear(WIDTH, INNER, False), nn.Linear(INNER, WIDTH, False)
        with torch.no_grad():
            self.up.weight.copy_(ffn.up.weight.chunk(EXPERTS)[expert])
            self.down.weight.copy_(ffn.down.weight.chunk(EXPERTS)[expert])

    def forward(self, x):
        return self.down(self.up(x).relu())


def tokens_of(expert, count, seed):
    x = torch.randn(count, WIDTH, generator=torch.Generator().manual_seed(seed))
    # Inputs of every expert have sizes of their own, so that shared statistics would show.
    x *= torch.rand(WIDTH, generator=torch.Generator().manual_seed(100 + expert)) * 4
    x[:, 0] = expert
    return x


def model_and_data(counts):
    torch.manual_seed(0)
    model = Routed()
    data = [
        torch.cat([tokens_of(e, n, 10 * batch + e) for e, n in enumerate(counts)])
        for batch in range(2)
    ]
    return model, data


@pytest.mark.parametrize("scorer", ["wanda", "sparsegpt", "admm"])
def test_every_expert_is_solved_as_a_layer_of_its_own(scorer):
    model, data = model_and_data((70, 90, 80))
    singles = [Single(model.ffn, expert) for expert in range(EXPERTS)]
    gossamer.sparsify(model, sparsity=0.5, scorer=scorer, data=data)
    for expert, single in enumerate(singles):
        own = [batch[batch[:, 0] == expert] for batch in data]
        gossamer.sparsify(single, sparsity=0.5, scorer=scorer, data=own)
        for layer, alone in ((model.ffn.up, single.up), (model.ffn.down, single.down)):
            assert torch.equal(layer.mask().chunk(EXPERTS)[expert], alone.mask())
            torch.testing.assert_close(
                layer.dense_weight().chunk(EXPERTS)[expert],
                alone.dense_weight(),
                rtol=0,
                atol=1e-5,
            )


def test_experts_that_saw_nothing_or_little_are_named():
    model, data = model_and_data((70, 0, 3))
    before = model.ffn.up.weight.detach().clone()
    report = gossamer.sparsify(model, sparsity=0.5, scorer="wanda", data=data)
    said = " ".join(report.notes)
    assert "expert 1 saw no token of the data: pruned by magnitude" in said
    assert "expert 2 saw fewer than 64 tokens (fewest 6)" in said
    unseen = before.chunk(EXPERTS)[1].abs()
    kept = model.ffn.up.mask().chunk(EXPERTS)[1]
    assert kept.sum() == unseen.numel() // 2
    assert unseen[kept].min() >= unseen[~kept].max()


def test_data_that_reaches_no_expert_is_refused_and_nothing_changes():
    model, _ = model_and_data((1, 1, 1))
    before = copy.deepcopy(model.state_dict())
    with pytest.raises(InputError, match="no row of the calibration data"):
        gossamer.sparsify(model, sparsity=0.5, scorer="wanda", data=[torch.randn(0, WIDTH)])
    assert isinstance(model.ffn.up, GroupedLinear)
    assert all(torch.equal(value, before[name]) for name, value in model.state_dict().items())


@pytest.mark.parametrize("budget", ["global", "erk", "owl", "sensitivity"])
def test_budgets_share_what_is_kept_among_layers_of_experts(budget):
    model, data = model_and_data((70, 0, 40))
    report = gossamer.sparsify(model, sparsity=0.5, budget=budget, data=data)
    assert report.sparsity == pytest.approx(0.5, abs=0.01)


def test_pruning_further_stays_inside_the_mask_of_each_expert():
    model, data = model_and_data((70, 90, 80))
    gossamer.sparsify(model, sparsity=0.5)  # by magnitude: experts keep unequal numbers
    first = model.ffn.up.mask()
    assert len({int(part.sum()) for part in first.chunk(EXPERTS)}) > 1
    gossamer.sparsify(model, sparsity=0.7, scorer="wanda", data=data)
    assert not (model.ffn.up.mask() & ~first).any()
    assert model.ffn.up.nnz == round(0.3 * first.numel())


@pytest.mark.parametrize("scorer", ["taylor", "fisher"])
def test_gradients_of_experts_rank_their_weights(scorer):
    model, data = model_and_data((20, 10, 5))
    report = gossamer.sparsify(
        model,
        sparsity=0.5,
        scorer=scorer,
        data=data,
        loss=lambda made, batch: made(batch).square().mean(),
    )
    assert report.sparsity == pytest.approx(0.5, abs=0.01)
