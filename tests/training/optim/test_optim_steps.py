# SPDX-License-Identifier: Apache-2.0
"""Steps against torch's own optimizers, by hand, and against a masked dense fp32 master."""

import copy

import pytest
import torch
from torch import nn

import gossamer
from gossamer.errors import InputError
from gossamer.nn import MaskedLinear
from gossamer.training.optim import LAMB, LARS, SGD, AdamW, halves

BUILDERS = {
    "adamw": lambda params, **kw: AdamW(params, 1e-2, **kw),
    "sgd": lambda params, **kw: SGD(params, 0.05, 0.9, weight_decay=0.1, **kw),
    "nesterov": lambda params, **kw: SGD(params, 0.05, 0.9, nesterov=True, **kw),
    "plain sgd": lambda params, **kw: SGD(params, 0.05, **kw),
    "lamb": lambda params, **kw: LAMB(params, 1e-2, **kw),
    "lars": lambda params, **kw: LARS(params, 1.0, trust=0.02, weight_decay=0.01, **kw),
}


def parameters(dtype=torch.float32, seed=0):
    generator = torch.Generator().manual_seed(seed)
    shapes = [(7, 5), (300,), (1,), (0,), (70_000,)]
    made = [torch.randn(s, generator=generator, dtype=torch.float64).to(dtype) for s in shapes]
    return [nn.Parameter(p) for p in made]


def give_gradients(params, step):
    generator = torch.Generator().manual_seed(100 + step)
    for param in params:
        shape = param.shape
        param.grad = torch.randn(shape, generator=generator, dtype=torch.float64).to(param.dtype)


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
@pytest.mark.parametrize(
    ("ours", "theirs"),
    [
        (
            lambda p: AdamW(p, 1e-2, (0.8, 0.99), weight_decay=0.1),
            lambda p: torch.optim.AdamW(p, 1e-2, (0.8, 0.99), weight_decay=0.1, foreach=False),
        ),
        (
            lambda p: SGD(p, 0.05, 0.9),
            lambda p: torch.optim.SGD(p, 0.05, 0.9, foreach=False),
        ),
        (
            lambda p: SGD(p, 0.05, 0.9, nesterov=True),
            lambda p: torch.optim.SGD(p, 0.05, 0.9, nesterov=True, foreach=False),
        ),
        (lambda p: SGD(p, 0.05), lambda p: torch.optim.SGD(p, 0.05, foreach=False)),
    ],
)
def test_full_precision_equals_torch_bit_by_bit(ours, theirs, dtype):
    first, second = parameters(dtype), parameters(dtype)
    one, other = ours(first), theirs(second)
    for step in range(5):
        give_gradients(first, step)
        give_gradients(second, step)
        one.step()
        other.step()
    assert all(torch.equal(a, b) for a, b in zip(first, second, strict=True))


class MaskedDenseMaster:
    """Test 1 of the specification: a dense fp32 master that steps in torch's AdamW."""

    def __init__(self, weight, mask, lr):
        self.mask = mask
        self.master = nn.Parameter(weight.clone() * mask)
        self.optimizer = torch.optim.AdamW([self.master], lr, foreach=False)

    def step(self, dense_grad):
        self.master.grad = torch.where(self.mask, dense_grad.to(torch.bfloat16).float(), 0.0)
        self.optimizer.step()


@pytest.mark.parametrize("kept", [0.0, 0.1, 1.0])
def test_split_master_equals_a_masked_dense_one_bit_by_bit(kept):
    generator = torch.Generator().manual_seed(0)
    mask = torch.rand(64, 96, generator=generator) < kept
    weight = torch.randn(64, 96, generator=generator)
    dense = MaskedDenseMaster(weight, mask, 3e-3)
    values = nn.Parameter(weight[mask])
    optimizer = AdamW([values], 3e-3)
    assert optimizer.split_masters() == 1
    assert values.dtype is torch.bfloat16
    ties = 0
    for _ in range(100):
        grad = torch.randn(64, 96, generator=generator)
        dense.step(grad)
        values.grad = grad[mask].to(torch.bfloat16)
        optimizer.step()
        expected = dense.master.detach()[mask]
        assert torch.equal(
            optimizer.master_of(values).view(torch.int32), expected.view(torch.int32)
        )
        assert torch.equal(values.detach(), halves.rounded(expected))
        differs = values.detach() != expected.to(torch.bfloat16)
        is_tie = (expected.view(torch.int32) & 0xFFFF) == 0x8000
        assert not bool((differs & ~is_tie).any())
        ties += int(is_tie.sum())
    assert bool((dense.master.detach()[~mask] == 0).all())
    # 100 steps of 614 numbers hit a tie once in 65536.
    assert ties <= 30


@pytest.mark.parametrize("name", BUILDERS)
def test_fp32_master_and_split_master_are_the_same_numbers(name):
    first, second = parameters(torch.bfloat16), parameters(torch.bfloat16)
    split, whole = BUILDERS[name](first), BUILDERS[name](second, master="fp32")
    for step in range(6):
        give_gradients(first, step)
        give_gradients(second, step)
        split.step()
        whole.step()
    for a, b in zip(first, second, strict=True):
        assert torch.equal(split.master_of(a), whole.master_of(b))
        assert torch.equal(a, b)
    assert not torch.equal(first[0].float(), parameters(torch.bfloat16)[0].float())


def test_lamb_by_hand():
    param = nn.Parameter(torch.tensor([3.0, 4.0]))
    optimizer = LAMB([param], lr=0.1, betas=(0.5, 0.5), eps=0.0, weight_decay=0.5)
    param.grad = torch.tensor([2.0, -1.0])
    optimizer.step()
    # m^ = g, v^ = g^2: r = sign(g) + 0.5 w = (2.5, 1); |w| = 5, |r| = sqrt(7.25).
    ratio = 5 / 7.25**0.5
    expected = torch.tensor([3 - 0.1 * ratio * 2.5, 4 - 0.1 * ratio * 1.0])
    torch.testing.assert_close(param.detach(), expected)


def test_lars_by_hand():
    param = nn.Parameter(torch.tensor([3.0, 4.0]))
    optimizer = LARS([param], lr=2.0, momentum=0.5, weight_decay=0.1, trust=0.01)
    param.grad = torch.tensor([0.6, 0.8])
    optimizer.step()
    # |w| = 5, |g| = 1: local = 0.01 * 5 / 1.5; step = 2 local (g + 0.1 w) = 2 local (0.9, 1.2).
    local = 0.01 * 5 / 1.5
    step = torch.tensor([0.9, 1.2]) * 2 * local
    expected = torch.tensor([3.0, 4.0]) - step
    torch.testing.assert_close(param.detach(), expected)
    param.grad = torch.zeros(2)
    optimizer.step()  # no gradient: local is 1
    expected = expected - (0.5 * step + 2 * 0.1 * expected)
    torch.testing.assert_close(param.detach(), expected)


def moved(build, weight, grads):
    param = nn.Parameter(weight.clone())
    optimizer = build([param])
    for grad in grads:
        param.grad = grad.clone()
        optimizer.step()
    return param.detach() - weight


@pytest.mark.parametrize(
    "build",
    [
        lambda p: LAMB(p, 0.1, eps=0.0, weight_decay=0.0),
        lambda p: LARS(p, 1.0, trust=0.1),
    ],
    ids=["lamb", "lars"],
)
def test_the_scale_of_gradients_does_not_matter_and_that_of_weights_does(build):
    generator = torch.Generator().manual_seed(0)
    weight = torch.randn(50, generator=generator, dtype=torch.float64)
    grads = [torch.randn(50, generator=generator, dtype=torch.float64) for _ in range(4)]
    once = moved(build, weight, grads)
    torch.testing.assert_close(moved(build, weight, [g * 1e3 for g in grads]), once)
    torch.testing.assert_close(moved(build, weight * 8, grads), once * 8)


def test_ratios_can_be_bounded_and_switched_off():
    weight, grad = torch.full((4,), 100.0), torch.ones(4)
    free = moved(lambda p: LAMB(p, 0.1, weight_decay=0.0), weight, [grad])
    bounded = moved(lambda p: LAMB(p, 0.1, weight_decay=0.0, max_ratio=2.0), weight, [grad])
    off = moved(lambda p: LAMB(p, 0.1, weight_decay=0.0, adapt=False), weight, [grad])
    torch.testing.assert_close(free, torch.full((4,), -10.0), rtol=1e-5, atol=0)
    torch.testing.assert_close(bounded, torch.full((4,), -0.2), rtol=1e-4, atol=0)
    torch.testing.assert_close(off, torch.full((4,), -0.1), rtol=1e-4, atol=0)
    plain = moved(lambda p: LARS(p, 0.5, 0.0, adapt=False), weight, [grad])
    torch.testing.assert_close(plain, torch.full((4,), -0.5), rtol=1e-4, atol=0)


def test_variants_of_lamb_and_lars_by_hand():
    weight, grads = torch.tensor([3.0, 4.0]), [torch.tensor([2.0, -1.0])]
    plain = {"betas": (0.5, 0.75), "eps": 0.0, "weight_decay": 0.0}
    # Uncorrected: m = g / 2, v = g^2 / 4, so r = sign(g); with |w| = 5, |r| = sqrt(2).
    found = moved(lambda p: LAMB(p, 0.1, **plain, corrected=False, adapt=False), weight, grads)
    torch.testing.assert_close(found, torch.tensor([-0.1, 0.1]))
    found = moved(lambda p: LAMB(p, 0.1, **plain, max_size=2.0), weight, grads)
    torch.testing.assert_close(found, torch.tensor([-0.1, 0.1]) * 2 / 2**0.5)
    # |w| = 5, |g| = sqrt(5), trust 0.1: local = 0.5 / sqrt(5), which is below lr 2 and above 0.1.
    local = 0.5 / 5**0.5
    for lr, rate in ((2.0, local), (0.1, 0.1)):
        given = {"lr": lr, "momentum": 0.0, "trust": 0.1, "clipped": True}
        found = moved(lambda p, given=given: LARS(p, **given), weight, grads)
        torch.testing.assert_close(found, grads[0] * -rate)


def test_normalised_lamb_divides_by_the_norm_of_all_gradients():
    first, second = nn.Parameter(torch.ones(2)), nn.Parameter(torch.ones(3))
    optimizer = LAMB([first, second], normalised=True)
    first.grad, second.grad = torch.tensor([3.0, 0.0]), torch.tensor([0.0, 4.0, 0.0])
    optimizer.step()
    means = [optimizer.state[p]["exp_avg"] for p in (first, second)]
    torch.testing.assert_close(means[0], torch.tensor([0.06, 0.0]))
    torch.testing.assert_close(means[1], torch.tensor([0.0, 0.08, 0.0]))
    first.grad, second.grad = torch.zeros(2), None
    optimizer.step()  # nothing to divide by
    assert torch.isfinite(first).all()


@pytest.mark.parametrize("name", ["lamb", "lars"])
@pytest.mark.parametrize("history", [False, True])
def test_layerwise_optimizers_take_the_same_steps_masked_and_compact(name, history):
    torch.manual_seed(0)
    masked = nn.Sequential(nn.Linear(40, 30).double())
    optimizer = BUILDERS[name](masked.parameters())
    if history:  # moments of pruned entries go on pushing them
        give_gradients(masked.parameters(), 1)
        optimizer.step()
    gossamer.sparsify(masked, sparsity=0.8)
    optimizer.follow_masks(masked)
    twin = copy.deepcopy(masked)
    other = BUILDERS[name](twin.parameters())
    other.load_state_dict(copy.deepcopy(optimizer.state_dict()))
    gossamer.compact(twin, other)
    for step in range(20):
        generator = torch.Generator().manual_seed(step)
        x = torch.randn(16, 40, generator=generator, dtype=torch.float64)
        for model, owner in ((masked, optimizer), (twin, other)):
            owner.zero_grad()
            model(x).square().mean().backward()
            owner.step()
    torch.testing.assert_close(
        twin[0].to_dense().weight, masked[0].to_dense().weight, rtol=0, atol=1e-13
    )
    assert isinstance(masked[0], MaskedLinear)


def test_weights_change_and_pruned_ones_stay_zero():
    """The published prototype wrote into a copy: weights never moved."""
    torch.manual_seed(0)
    model = nn.Sequential(nn.Linear(24, 16))
    gossamer.sparsify(model, sparsity=0.7)
    gossamer.compact(model, mode="resident")
    mask = model[0].mask()
    optimizer = AdamW(model.parameters(), 1e-2, weight_decay=0.1)
    optimizer.split_masters([model[0].values])
    before = model[0].to_dense().weight.detach().clone()
    for _ in range(100):
        optimizer.zero_grad()
        model(torch.randn(8, 24)).square().mean().backward()
        optimizer.step()
    after = model[0].to_dense().weight.detach()
    assert bool((after[~mask] == 0).all())
    assert bool((after[mask] != before[mask]).float().mean() > 0.9)


def test_groups_closures_frozen_and_missing_gradients():
    params = parameters()
    optimizer = AdamW(
        [{"params": params[:2], "lr": 0.5}, {"params": params[2:], "weight_decay": 0.0}], 1e-3
    )
    params[1].requires_grad_(False)
    before = [p.detach().clone() for p in params]

    def closure():
        optimizer.zero_grad()
        loss = (params[0] - 1).square().sum() + params[2].square().sum()
        loss.backward()
        return loss

    assert optimizer.step(closure).item() > 0
    assert float((params[0] - before[0]).detach().abs().min()) > 0.4
    assert torch.equal(params[1], before[1])
    assert torch.equal(params[4], before[4])
    assert set(optimizer.state) == {params[0], params[2]}
    scheduler = torch.optim.lr_scheduler.LambdaLR(optimizer, lambda step: 0.1)
    assert optimizer.param_groups[0]["lr"] == pytest.approx(0.05)
    del scheduler


def test_a_transposed_parameter_steps_like_a_contiguous_one():
    weight = torch.randn(6, 5)
    straight, turned = nn.Parameter(weight.clone()), nn.Parameter(weight.t().contiguous().t())
    assert not turned.is_contiguous()
    grad = torch.randn(6, 5)
    for param in (straight, turned):
        optimizer = AdamW([param], 0.1)
        param.grad = grad.clone()
        optimizer.step()
    assert torch.equal(straight, turned)


@pytest.mark.parametrize(
    ("build", "text"),
    [
        (lambda p: AdamW(p, -1.0), "lr must be in"),
        (lambda p: AdamW(p, betas=(1.0, 0.9)), r"betas\[0\]"),
        (lambda p: AdamW(p, master="fp16"), "master must be one of split, split8, fp32"),
        (lambda p: AdamW(p, moments="4bit"), "moments must be one of fp32, 8bit; got '4bit'"),
        (lambda p: SGD(p, nesterov=True), "nesterov needs momentum"),
        (lambda p: LARS(p, trust=float("nan")), "trust"),
        (lambda p: LAMB(p, max_ratio=-1), "max_ratio"),
        (lambda p: AdamW([nn.Parameter(torch.ones(2, dtype=torch.half))]), "float16.*bfloat16"),
        (lambda p: AdamW([nn.Parameter(torch.ones(2, dtype=torch.cfloat))]), "complex64"),
    ],
)
def test_bad_settings_are_refused_by_name(build, text):
    with pytest.raises(InputError, match=text):
        build(parameters())


def test_sparse_gradients_are_refused():
    embedding = nn.Embedding(10, 4, sparse=True)
    optimizer = AdamW(embedding.parameters())
    embedding(torch.tensor([1])).sum().backward()
    with pytest.raises(InputError, match=r"sparse tensor .*sparse=False"):
        optimizer.step()
