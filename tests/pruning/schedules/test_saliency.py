# SPDX-License-Identifier: Apache-2.0
"""SNIP, GraSP and SynFlow against their definitions, in float64."""

import copy
import itertools

import pytest
import torch
from schedule_runs import attach, batch_loss, batch_of, make_model, make_optimizer, schedule
from torch import nn
from torch.func import functional_call

import gossamer
from gossamer.errors import InputError
from gossamer.nn.batch import Batch
from gossamer.pruning import apply_plan, plan_oneshot
from gossamer.pruning.schedules.early.before_training import (
    grasp,
    hessian_times_gradient,
    snip,
    synflow,
    user_passes,
)
from gossamer.pruning.targets import find_targets


def smooth_model():
    torch.manual_seed(0)
    return nn.Sequential(nn.Linear(16, 12), nn.Tanh(), nn.Linear(12, 8)).double()


def passes(model, num=2):
    batches = [batch_of(i, torch.float64) for i in range(num)]
    return user_passes(model, batches, batch_loss)


def test_snip_is_the_gradient_of_an_explicit_mask():
    model = smooth_model()
    found = snip(passes(model), find_targets(model))
    weights = {f"{i}.weight": model[i].weight.detach() for i in (0, 2)}
    masks = {name: torch.ones_like(w, requires_grad=True) for name, w in weights.items()}
    loss = 0.0
    for i in range(2):
        x, y = batch_of(i, torch.float64)
        masked = {name: weights[name] * masks[name] for name in weights}
        loss = loss + nn.functional.cross_entropy(functional_call(model, masked, (x,)), y)
    loss.backward()
    for score, mask in zip(found, masks.values(), strict=True):
        torch.testing.assert_close(score, mask.grad.abs(), rtol=1e-9, atol=1e-12)


def test_grasp_is_the_finite_difference_of_the_gradient():
    model = smooth_model()
    targets = find_targets(model)
    products = hessian_times_gradient(passes(model), targets)
    weights = [target.weight for target in targets]

    def gradient():
        loss = sum(batch_loss(model, batch_of(i, torch.float64)) for i in range(2))
        return torch.autograd.grad(loss, weights)

    direction, small = gradient(), 1e-5
    sides = []
    for sign in (1, -1):
        with torch.no_grad():
            for weight, part in zip(weights, direction, strict=True):
                weight.add_(sign * small * part)
        sides.append(gradient())
        with torch.no_grad():
            for weight, part in zip(weights, direction, strict=True):
                weight.sub_(sign * small * part)
    for product, up, down in zip(products, *sides, strict=True):
        torch.testing.assert_close(product, (up - down) / (2 * small), rtol=1e-5, atol=1e-8)
    scores = grasp(passes(model), targets, 1.0)
    for score, product, weight in zip(scores, products, weights, strict=True):
        ratio = score / (product * weight.detach())
        assert torch.allclose(ratio, ratio[0, 0].expand_as(ratio), rtol=1e-6)
        assert float(ratio[0, 0]) > 0


def test_grasp_divides_logits_and_puts_the_model_back():
    model = smooth_model()
    targets = find_targets(model)
    assert not torch.allclose(
        grasp(passes(model), targets, 200.0)[0], grasp(passes(model), targets, 1.0)[0]
    )
    assert not model._forward_hooks
    assert all(p.requires_grad and p.grad is None for p in model.parameters())

    class Named(nn.Module):
        def __init__(self):
            super().__init__()
            self.inner = smooth_model()

        def forward(self, x):
            return {"logits": self.inner(x)}

    named = Named()
    broken = user_passes(named, [batch_of(0, torch.float64)], lambda m, b: m(b[0])["logits"].sum())
    with pytest.raises(InputError, match="temperature: 1"):
        grasp(broken, find_targets(named), 200.0)
    assert not named._forward_hooks


def bias_free_mlp():
    torch.manual_seed(0)
    sizes = [(10, 32), (32, 16), (16, 4)]
    layers = [part for a, b in sizes for part in (nn.Linear(a, b, bias=False), nn.ReLU())]
    return nn.Sequential(*layers[:-1])


def test_synflow_is_conserved_at_every_hidden_unit():
    model = bias_free_mlp()
    apply_plan(model, plan_oneshot(model, sparsity=0.0))
    before = copy.deepcopy(model.state_dict())
    scores = synflow(model, ["0", "2", "4"], Batch(torch.zeros(3, 10)))
    for first, second in itertools.pairwise(scores):
        torch.testing.assert_close(first.sum(1), second.sum(0), rtol=1e-9, atol=0)
    for name, tensor in model.state_dict().items():
        assert torch.equal(tensor, before[name])


def test_synflow_never_empties_a_layer():
    torch.manual_seed(0)
    model = nn.Sequential(*(nn.Linear(50, 50, bias=False) for _ in range(4)))
    optimizer = torch.optim.SGD(model.parameters(), 0.1)
    given = {"kind": "synflow", "sparsity": 0.999, "rounds": 100}
    ctl = gossamer.attach(model, given, optimizer, total_steps=10, data=[torch.zeros(1, 50)])
    assert [layer.nnz > 0 for layer in model] == [True] * 4
    assert sum(layer.nnz for layer in model) == 10
    assert ctl.is_settled


class Attends(nn.Module):
    """Attention, whose output projection shows a computed weight once it is masked."""

    def __init__(self):
        super().__init__()
        self.attention = nn.MultiheadAttention(8, 2, batch_first=True)
        self.head = nn.Linear(8, 4)

    def forward(self, x):
        return self.head(self.attention(x, x, x, need_weights=False)[0])


def test_synflow_scores_the_output_of_attention():
    torch.manual_seed(0)
    model = Attends()
    dense = copy.deepcopy(model).double().eval()
    names = ["attention.out_proj", "head"]
    apply_plan(model, plan_oneshot(model, sparsity=0.0, targets=names))
    scores = synflow(model, names, Batch(torch.zeros(5, 3, 8)))
    for parameter in dense.parameters():
        parameter.data.abs_()
    dense(torch.ones(1, 3, 8, dtype=torch.float64)).sum().backward()
    for name, score in zip(names, scores, strict=True):
        weight = dense.get_submodule(name).weight
        torch.testing.assert_close(score, weight.grad * weight.detach(), rtol=1e-12, atol=0)


def test_synflow_names_a_layer_that_a_copy_of_the_model_loses():
    class Forgets(nn.Sequential):
        def __deepcopy__(self, memo):
            return nn.Sequential(nn.Linear(4, 4))

    model = Forgets(nn.Linear(4, 4))
    apply_plan(model, plan_oneshot(model, sparsity=0.0, ignore=[]))
    with pytest.raises(InputError, match="0 is no masked layer in a deep copy"):
        synflow(model, ["0"], Batch(torch.zeros(3, 4)))


@pytest.mark.parametrize("name", ["snip", "grasp"])
@pytest.mark.parametrize(
    ("loss", "words"),
    [
        (lambda model, batch: 1.0, "one number for a batch, got float"),
        (lambda model, batch: model(batch[0]), r"one number for a batch, got \[32, 8\]"),
        (lambda model, batch: model(batch[0]).sum().detach(), "does not depend on the weights"),
        (lambda model, batch: model(batch[0]).sum() * float("nan"), "loss: is nan in backward"),
    ],
)
def test_a_loss_without_a_gradient_is_named(name, loss, words):
    model = make_model()
    given = schedule(name)
    with pytest.raises(InputError, match=words):
        gossamer.attach(
            model,
            given,
            make_optimizer("sgd", model),
            total_steps=10,
            data=[batch_of(0)],
            loss=loss,
        )


def test_synflow_needs_an_input_of_numbers_that_can_be_one():
    model = nn.Sequential(nn.Embedding(10, 8), nn.Linear(8, 4))
    optimizer = torch.optim.SGD(model.parameters(), 0.1)
    with pytest.raises(InputError, match="token numbers"):
        gossamer.attach(
            model, schedule("synflow"), optimizer, total_steps=10, data=[torch.zeros(2, 3).long()]
        )


@pytest.mark.parametrize("name", ["snip", "grasp", "synflow"])
def test_scoring_leaves_statistics_random_state_and_gradients_alone(name):
    torch.manual_seed(0)
    model = nn.Sequential(nn.Linear(16, 12), nn.BatchNorm1d(12), nn.Dropout(), nn.Linear(12, 8))
    before = copy.deepcopy(model.state_dict())
    state = torch.get_rng_state()
    attach(model, make_optimizer("sgd", model), schedule(name))
    assert torch.equal(torch.get_rng_state(), state)
    for key in ("1.running_mean", "1.running_var", "1.num_batches_tracked"):
        assert torch.equal(model.state_dict()[key], before[key])
    assert model.training
    assert all(p.grad is None and p.requires_grad for p in model.parameters())


@pytest.mark.parametrize("name", ["snip", "grasp", "synflow"])
def test_shuffling_keeps_the_counts_and_the_initial_weights(name):
    found = {}
    for shuffle in (False, True):
        model = make_model()
        weights = [p.detach().clone() for p in model.parameters() if p.ndim == 2]
        optimizer = make_optimizer("sgd", model)
        attach(model, optimizer, schedule(name, shuffle_within_layer=shuffle))
        layers = [model[i] for i in (0, 2, 4)]
        found[shuffle] = [layer.mask() for layer in layers]
        for layer, weight in zip(layers, weights, strict=True):
            assert torch.equal(layer.weight, torch.where(layer.mask(), weight, 0.0))
    for kept, drawn in zip(found[False], found[True], strict=True):
        assert int(kept.sum()) == int(drawn.sum())
    assert any(not torch.equal(a, b) for a, b in zip(found[False], found[True], strict=True))


@pytest.mark.parametrize(
    ("given", "words"),
    [
        ({"data": None, "loss": batch_loss}, "needs batches and a loss"),
        ({"data": [], "loss": batch_loss}, "needs batches and a loss"),
        ({"data": [batch_of(0)], "loss": None}, "needs a loss"),
    ],
)
def test_snip_says_what_it_needs(given, words):
    model = make_model()
    with pytest.raises(InputError, match=words):
        gossamer.attach(
            model, schedule("snip"), make_optimizer("sgd", model), total_steps=10, **given
        )
    assert type(model[0]) is nn.Linear
