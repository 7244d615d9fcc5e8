# SPDX-License-Identifier: Apache-2.0
"""The accountant against the formulas, and the formulas against the figures they stand for."""

import subprocess
import sys

import pytest
import torch
from torch import nn
from torch.nn.functional import cross_entropy

import gossamer
from gossamer.errors import InputError
from gossamer.training.memory import measure
from gossamer.training.memory.formulas import VARIANTS, moment_bytes, state_cost
from gossamer.training.optim import LAMB, LARS, SGD, AdamW, halves
from gossamer.zoo import GPT

SPARSITIES = (0.8, 0.9, 0.95)
# name -> mode, optimizer, whether masters are split and values given up, most bytes per parameter
MODES = {
    "fp32": ("kernel", torch.optim.AdamW, False, lambda f: 16 * f + 0.3),
    "exact": ("jit", AdamW, True, lambda f: 14 * f + 0.15),
    "8bit": (
        "jit",
        lambda p: AdamW(p, moments="8bit", master="split8"),
        True,
        lambda f: 7.1 * f + 0.15,
    ),
    "resident": ("resident", AdamW, True, lambda f: 12 * f + 2.2),
}


def sparse_layers(model):
    return [m for m in model.modules() if isinstance(m, gossamer.nn.Linear)]


def stepped(sparsity, mode, build, split, give_up=False, width=256):
    """A GPT after one step, gradients still there."""
    torch.manual_seed(0)
    model = GPT(64, width=width, num_heads=4, num_layers=2, context=16)
    gossamer.sparsify(model, sparsity=sparsity)
    gossamer.compact(model, mode=mode)
    optimizer = build(model.parameters())
    if split:
        optimizer.split_masters(layer.values for layer in sparse_layers(model))
    if give_up:
        for layer in sparse_layers(model):
            layer.give_up_values()
    ids = torch.arange(32).view(2, 16) % 64
    cross_entropy(model(ids).flatten(0, 1), ids.flatten()).backward()
    optimizer.step()
    return model, optimizer


@pytest.mark.parametrize("sparsity", SPARSITIES)
@pytest.mark.parametrize("name", MODES)
def test_measured_is_the_formula_within_one_percent(name, sparsity):
    mode, build, split, allowed = MODES[name]
    use = measure(*stepped(sparsity, mode, build, split, give_up=name == "resident"))
    part = use.pruned
    assert part.num_parameters == 2 * 12 * 256**2
    assert part.density == pytest.approx(1 - sparsity, abs=1e-4)
    found = part.bytes_per_parameter
    assert found == pytest.approx(VARIANTS[name].bytes_per_parameter(part.density), rel=0.01)
    assert found == pytest.approx(part.predicted_per_parameter, rel=0.01)
    assert found <= allowed(1 - sparsity)
    for kind, value in part.predicted.items():
        assert part.measured.get(kind, 0) == pytest.approx(value, rel=0.02, abs=400), kind
    assert use.rest.bytes_per_parameter == pytest.approx(use.rest.predicted_per_parameter, rel=0.01)


@pytest.mark.parametrize("sparsity", SPARSITIES)
def test_samo_as_published(sparsity):
    model, optimizer = stepped(sparsity, "resident", AdamW, split=True, give_up=True)
    ours = measure(model, optimizer)
    published = measure(model, optimizer, accounting="samo")
    f = ours.pruned.density
    assert published.pruned.bytes_per_parameter == pytest.approx(24 * f + 2, rel=1e-6)
    assert ours.pruned.bytes_per_parameter < published.pruned.bytes_per_parameter
    saved = 1 - published.pruned.bytes_per_parameter / 20
    assert saved == pytest.approx(1.2 * sparsity - 0.3, abs=1e-3)


@pytest.mark.parametrize(
    "build",
    [
        lambda p: torch.optim.SGD(p, 0.1),
        lambda p: torch.optim.SGD(p, 0.1, momentum=0.9),
        lambda p: torch.optim.AdamW(p, amsgrad=True),
        lambda p: SGD(p),
        lambda p: SGD(p, momentum=0.9, moments="8bit"),
        lambda p: LAMB(p),
        lambda p: LARS(p, moments="8bit"),
        lambda p: AdamW(p, master="fp32"),
    ],
)
def test_every_optimizer_has_its_formula(build):
    optimizer_kind = type(build([nn.Parameter(torch.ones(1))]))
    split = optimizer_kind.__module__.startswith("gossamer")
    for mode in ("jit", "resident"):
        use = measure(*stepped(0.9, mode, build, split, width=128))
        assert use.pruned.bytes_per_parameter == pytest.approx(
            use.pruned.predicted_per_parameter, rel=0.01
        )


def test_masked_and_dense_models_and_the_whole_float64():
    model = nn.Sequential(nn.Linear(200, 100), nn.Linear(100, 50)).double()
    gossamer.sparsify(model, sparsity=0.9, targets=["0"])
    optimizer = AdamW(model.parameters())
    model(torch.ones(2, 200, dtype=torch.float64)).sum().backward()
    optimizer.step()
    use = measure(model, optimizer)
    assert use.pruned.num_parameters == 20_000
    assert use.pruned.bytes_per_parameter == pytest.approx(8 * 4 + 1.125, rel=0.01)
    assert use.pruned.predicted_per_parameter == pytest.approx(8 * 4 + 1.125, rel=0.01)
    assert use.rest.bytes_per_parameter == pytest.approx(8 * 4, rel=0.01)


def test_shared_storage_counts_once_and_nothing_stepped_costs_nothing():
    model = GPT(64, width=32, num_heads=2, num_layers=1, context=8, tied=True)
    alone = measure(model)
    assert alone.total_bytes == sum(p.numel() * 4 for p in model.parameters())
    assert alone.rest.predicted_per_parameter == pytest.approx(4)
    assert alone.pruned.num_parameters == 0


def test_optimizers_without_a_formula_are_measured_all_the_same():
    model = nn.Sequential(nn.Linear(64, 64))
    optimizer = torch.optim.Adagrad(model.parameters())
    model(torch.ones(1, 64)).sum().backward()
    optimizer.step()
    use = measure(model, optimizer)
    assert use.rest.predicted_per_parameter is None
    assert use.rest.bytes_per_parameter == pytest.approx(12, rel=0.01)
    assert "together" in str(use)


def test_the_table_names_every_kind():
    text = str(measure(*stepped(0.9, "resident", AdamW, True, width=64)))
    for word in ("weights", "gradients", "masters", "moments", "positions", "dense copies"):
        assert word in text
    assert "formula" in text


def test_formulas():
    assert str(VARIANTS["samo"]) == "24 f + 2"
    assert VARIANTS["dense, mixed precision"].bytes_per_parameter(0.1) == 20
    assert VARIANTS["exact"].bytes_per_parameter(0.1) == pytest.approx(1.525)
    assert VARIANTS["resident"].bytes_per_parameter(0.1) == pytest.approx(3.325)
    assert moment_bytes(2, eight_bit=True) == pytest.approx(2, rel=0.01)
    assert state_cost(moment_bytes=4).bytes_per_parameter(0.5) == pytest.approx(6.125)


@pytest.mark.parametrize("density", [-0.1, 1.1, float("nan")])
def test_densities_are_fractions(density):
    with pytest.raises(InputError, match="density"):
        VARIANTS["exact"].by_kind(density)


def test_unknown_accounting_is_refused():
    with pytest.raises(InputError, match="storages, samo; got 'zero'"):
        measure(nn.Linear(2, 2), accounting="zero")


def test_formulas_do_not_import_torch():
    probe = "import sys, gossamer.training.memory.formulas; print('torch' in sys.modules)"
    done = subprocess.run([sys.executable, "-c", probe], capture_output=True, text=True, timeout=60)
    assert done.stdout == "False\n", done.stderr


class PublishedSamo:
    """One layer as arXiv 2302.05045 holds it: dense 16-bit weights, all else compressed."""

    def __init__(self, weight, mask):
        self.index = mask.flatten().nonzero().squeeze(1).to(torch.int32)
        self.theta16 = (weight * mask).to(torch.bfloat16)
        self.theta32 = self.theta16.flatten()[self.index.long()].float()
        self.mean, self.square = torch.zeros_like(self.theta32), torch.zeros_like(self.theta32)
        self.grad16 = self.grad32 = self.copy16 = None
        self.steps = 0

    def step(self, dense_grad, lr=1e-3, beta1=0.9, beta2=0.999, eps=1e-8, decay=0.01):
        self.steps += 1
        self.grad16 = dense_grad.flatten()[self.index.long()].to(torch.bfloat16)
        self.grad32 = self.grad16.float()
        self.theta32.mul_(1 - lr * decay)
        self.mean.lerp_(self.grad32, 1 - beta1)
        self.square.mul_(beta2).addcmul_(self.grad32, self.grad32, value=1 - beta2)
        root = (self.square.sqrt() / (1 - beta2**self.steps) ** 0.5).add_(eps)
        self.theta32.addcdiv_(self.mean, root, value=-lr / (1 - beta1**self.steps))
        self.copy16 = halves.rounded(self.theta32)
        self.theta16.view(-1)[self.index.long()] = self.copy16

    def nbytes(self):
        return sum(t.untyped_storage().nbytes() for t in vars(self).values() if torch.is_tensor(t))


@pytest.mark.parametrize("sparsity", SPARSITIES)
def test_the_published_scheme_holds_24f_plus_2_and_ours_takes_the_same_steps(sparsity):
    torch.manual_seed(0)
    model = nn.Sequential(nn.Linear(300, 200, bias=False))
    gossamer.sparsify(model, sparsity=sparsity)
    gossamer.compact(model, mode="resident")
    layer, optimizer = model[0], AdamW(model.parameters())
    layer.values.data = layer.values.data.to(torch.bfloat16)
    published = PublishedSamo(layer.dense_weight().float(), layer.mask())
    layer.give_up_values()
    for _ in range(5):
        grad = torch.randn(200, 300)
        published.step(grad)
        layer.values.grad = grad[layer.mask()].to(torch.bfloat16)
        optimizer.step()
    assert torch.equal(layer.dense_weight(), published.theta16)
    use = measure(model, optimizer, accounting="samo")
    assert published.nbytes() == sum(use.pruned.measured.values())
    assert published.nbytes() / 60_000 == pytest.approx(24 * (1 - sparsity) + 2, rel=1e-3)
