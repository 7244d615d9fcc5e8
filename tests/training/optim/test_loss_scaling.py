# SPDX-License-Identifier: Apache-2.0
"""Loss scaling against torch's GradScaler, and of float16 Parameters, which that one refuses."""

import math

import pytest
import torch
from torch import nn

from gossamer.errors import ArtifactError, InputError
from gossamer.training.optim import SGD, AdamW
from gossamer.training.optim.scaling import LossScaler, LossScaleUnderflow


def steps_of(model, optimizer, scaler, step, inputs):
    """Train on `inputs`; for each of them whether a step was taken, and the scale after it."""
    found = []
    for x in inputs:
        optimizer.zero_grad()
        with torch.autocast("cpu", torch.float16):
            loss = (model(x).float() - x).square().mean()
        scaler.scale(loss).backward()
        found.append(step())
    return found


def network():
    torch.manual_seed(0)
    return nn.Sequential(nn.Linear(24, 40), nn.GELU(), nn.Linear(40, 24))


def inputs(count=30):
    generator = torch.Generator().manual_seed(1)
    return [3 * torch.randn(16, 24, generator=generator) for _ in range(count)]


def test_fp32_parameters_take_the_steps_of_torchs_scaler_to_the_bit():
    one, two = network(), network()
    first = torch.optim.AdamW(one.parameters(), 1e-2, foreach=False)
    second = torch.optim.AdamW(two.parameters(), 1e-2, foreach=False)
    torchs = torch.amp.GradScaler("cpu", init_scale=2.0**20, growth_interval=3)
    ours = LossScaler(2.0**20, interval=3)

    def torchs_step():
        before = torchs.get_scale()
        torchs.step(first)
        torchs.update()
        return torchs.get_scale() >= before, torchs.get_scale()

    expected = steps_of(one, first, torchs, torchs_step, inputs())
    found = steps_of(two, second, ours, lambda: (ours.step(second), ours.factor), inputs())
    assert found == expected
    taken = [was_taken for was_taken, _ in found]
    assert 2 <= taken.count(False) <= 20
    for a, b in zip(one.parameters(), two.parameters(), strict=True):
        assert torch.equal(a, b)


@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16])
def test_16_bit_gradients_are_unscaled_in_float32(dtype):
    param = nn.Parameter(torch.ones(4, dtype=dtype))
    optimizer = SGD([param], 1.0, master="wide")
    scaler = LossScaler(2.0**20)
    # In 16 bits 2^-23 would be a multiple of 2^-24, and 3 * 2^-25 would not be at all.
    param.grad = torch.tensor([2.0**-3, 3 * 2.0**-5, -1.0, 0.0], dtype=dtype)
    scaler.unscale(optimizer)
    expected = torch.tensor([2.0**-23, 3 * 2.0**-25, -(2.0**-20), 0.0])
    assert torch.equal(optimizer.gradient_of(param), expected)
    optimizer.step()
    assert torch.equal(optimizer.master_of(param), 1 - expected)
    assert optimizer.gradient_of(param) is param.grad


def test_float16_without_a_float32_gradient_is_refused():
    param = nn.Parameter(torch.ones(4, dtype=torch.float16))
    param.grad = torch.ones_like(param)
    for optimizer in (AdamW([param], master="fp32"), torch.optim.SGD([param], 0.1)):
        with pytest.raises(InputError, match=r'float16.*master="wide"'):
            LossScaler().unscale(optimizer)


def test_what_was_raised_is_forgotten_with_the_gradient():
    param = nn.Parameter(torch.ones(2, dtype=torch.float16))
    optimizer = SGD([param], 1.0, master="wide")
    param.grad = torch.tensor([math.inf, 1.0], dtype=torch.float16)
    assert not LossScaler(4.0).step(optimizer)
    assert torch.equal(param.detach(), torch.ones(2, dtype=torch.float16))
    param.grad = torch.tensor([4.0, 2.0], dtype=torch.float16)
    assert LossScaler(4.0).step(optimizer)
    assert torch.equal(optimizer.master_of(param), torch.tensor([0.0, 0.5]))


def test_a_scale_that_falls_to_nothing_is_an_error():
    param = nn.Parameter(torch.ones(1))
    optimizer = torch.optim.SGD([param], 0.1)
    scaler = LossScaler(2.0**-20)

    def overflow():
        param.grad = torch.tensor([math.nan])
        return scaler.step(optimizer)

    for count in range(1, 5):
        assert not overflow()
        assert scaler.factor == 2.0 ** (-20 - count)
    with pytest.raises(LossScaleUnderflow, match=r"5 times in a row.*below which they are 0"):
        overflow()
    assert scaler.factor == 2.0**-24


def test_the_scale_grows_after_good_steps_and_not_beyond_the_most():
    scaler = LossScaler(4.0, interval=2, most=8.0)
    seen = []
    for is_finite in (True, True, True, True, False, True, False, True, True):
        scaler.follow(is_finite)
        seen.append(scaler.factor)
    assert seen == [4, 8, 8, 8, 4, 4, 2, 2, 4]


def test_state_goes_on_and_nonsense_is_refused():
    scaler, other = LossScaler(interval=3), LossScaler(interval=3)
    for is_finite in (False, True, True):
        scaler.follow(is_finite)
    other.load_state_dict(scaler.state_dict())
    for one in (scaler, other):
        one.follow(True)
    assert scaler.state_dict() == other.state_dict()
    assert scaler.factor == 2.0**16
    for bad in ({}, {**scaler.state_dict(), "scale": 0.0}, {**scaler.state_dict(), "in_a_row": -1}):
        with pytest.raises(ArtifactError, match="loss scale"):
            other.load_state_dict(bad)
    for words in ({"start": 0.0}, {"growth": 0.5}, {"backoff": 1.0}, {"interval": 0}):
        with pytest.raises(InputError, match="LossScaler"):
            LossScaler(**words)
