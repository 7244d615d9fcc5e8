"""Models we did not write: pruned right with any method, or refused by name and left alone."""

import copy

import pytest
import torch
import torch.nn.utils.prune
from torch import nn
from torch.nn.utils import parametrizations

import gossamer
from gossamer.errors import GossamerError
from gossamer.io import adopt_pruned
from gossamer.nn.layers import MaskedWeight

METHODS = ("magnitude", "wanda", "sparsegpt", "admm", "taylor", "obert")


class UsedTwice(nn.Module):
    def __init__(self):
        super().__init__()
        self.twice, self.once = nn.Linear(16, 16), nn.Linear(16, 16)

    def forward(self, x):
        return self.once(self.twice(torch.relu(self.twice(x))))


class TiedHead(nn.Module):
    def __init__(self):
        super().__init__()
        self.embedding, self.inner = nn.Embedding(20, 16), nn.Linear(16, 16)
        self.out = nn.Linear(16, 20, bias=False)
        self.out.weight = self.embedding.weight

    def forward(self, ids):
        return self.out(self.inner(self.embedding(ids)))


class Attention(nn.Module):
    def __init__(self):
        super().__init__()
        self.attention = nn.MultiheadAttention(16, 4, batch_first=True)
        self.after = nn.Linear(16, 16)

    def forward(self, x):
        return self.after(self.attention(x, x, x, need_weights=False)[0])


def encoder():
    layer = nn.TransformerEncoderLayer(16, 4, 32, batch_first=True)
    return nn.TransformerEncoder(layer, 2)


def weight_normed():
    return nn.Sequential(
        parametrizations.weight_norm(nn.Linear(16, 16)), nn.ReLU(), nn.Linear(16, 16)
    )


def pruned_by_torch():
    model = nn.Sequential(nn.Linear(16, 16), nn.ReLU(), nn.Linear(16, 16))
    torch.nn.utils.prune.l1_unstructured(model[0], "weight", 0.75)
    return model


def rows():
    return torch.randn(24, 16)


MODELS = {
    "used twice": (UsedTwice, rows),
    "tied head": (TiedHead, lambda: torch.randint(20, (4, 6))),
    "attention": (Attention, lambda: torch.randn(4, 6, 16)),
    "encoder": (encoder, lambda: torch.randn(4, 6, 16)),
    "weight norm": (weight_normed, rows),
    "pruned by torch": (pruned_by_torch, rows),
}


@pytest.mark.parametrize("method", METHODS)
@pytest.mark.parametrize("name", MODELS)
def test_right_or_refused(name, method):
    torch.manual_seed(0)
    make, make_input = MODELS[name]
    model = make().eval()
    data = [make_input() for _ in range(4)]
    before = {key: value.clone() for key, value in model.state_dict().items()}
    refusal = None
    try:
        report = gossamer.sparsify(model, scorer=method, sparsity=0.5, data=data)
    except GossamerError as error:
        refusal = str(error)
    if refusal is None:
        check_zeros_are_used(model, report, data[0])
        return
    assert any(name and name in refusal for name, _ in model.named_modules()), refusal
    after = model.state_dict()
    assert list(after) == list(before)
    assert all(torch.equal(after[key], before[key]) for key in before)


def check_zeros_are_used(model, report, x):
    """Every reported layer is masked, half of it is zero, and the output follows its weight."""
    modules = dict(model.named_modules())
    assert report.layers
    for row in report.layers:
        layer = modules[row.name]
        assert isinstance(layer, MaskedWeight)
        assert layer.density == 0.5
        # Don't-cares must not reach the output, whichever way the model reads the weight.
        with torch.no_grad():
            expected = model(x)
            layer.weight_parameter()[~layer.mask()] = 1e6
            torch.testing.assert_close(model(x), expected, rtol=0, atol=0)


@pytest.mark.parametrize("method", ["wanda", "sparsegpt", "admm"])
def test_an_encoder_whose_output_projections_are_left_alone(method):
    torch.manual_seed(0)
    dense = encoder().eval()
    data = [torch.randn(4, 6, 16) for _ in range(8)]
    errors = {}
    for name in ("random", method):
        model = copy.deepcopy(dense)
        gossamer.sparsify(model, scorer=name, sparsity=0.5, data=data, ignore=["*.out_proj"])
        with torch.no_grad():
            errors[name] = sum(float((model(x) - dense(x)).square().sum()) for x in data)
    assert errors[method] < 0.8 * errors["random"]


def test_a_model_that_torch_pruned_goes_on_inside_its_masks():
    torch.manual_seed(0)
    model = pruned_by_torch()
    adopt_pruned(model)
    old = model[0].mask()
    gossamer.sparsify(model, scorer="sparsegpt", sparsity=0.9, data=[rows()])
    assert model[0].density == pytest.approx(0.1, abs=0.01)
    assert not (model[0].mask() & ~old).any()
