# SPDX-License-Identifier: Apache-2.0
"""AdamW with 8-bit moments in native code: codes beside those of torch, equal bits everywhere."""

import copy

import pytest
import torch
from torch import nn

from gossamer.ops import _native
from gossamer.ops.training.optimizer_passes import NativeMoment, adamw_step
from gossamer.training.optim import AdamW, codes
from gossamer.training.optim.pieces import native_dither, offsets

STILL = (0.0, 0.0, 0.0, 1e-8, 0.0)  # mean becomes the gradient, square its square


def coded(values, dtype, number=1, settings=STILL):
    """Codes and exponents that a step writes for moments of these gradients."""
    count = values.numel()
    mean, square = (torch.zeros(count, dtype=dt) for dt in (torch.int8, torch.uint8))
    made = [
        NativeMoment(m, torch.zeros(codes.num_blocks(count), dtype=torch.int8))
        for m in (mean, square)
    ]
    adamw_step(torch.zeros(count), None, values.clone(), *made, settings, number,
               native_dither(count, number))  # fmt: skip
    return made[0] if dtype is torch.int8 else made[1]


def spread_out(count, seed=0):
    """Numbers of either sign over many octaves, some of them 0."""
    generator = torch.Generator().manual_seed(seed)
    values = torch.randn(count, generator=generator)
    values *= torch.rand(count, generator=generator).mul(-40).exp2()
    return values.masked_fill(torch.rand(count, generator=generator) < 0.05, 0.0)


@pytest.mark.parametrize("count", [0, 1, 255, 256, 257, 65_536, 70_001])
@pytest.mark.parametrize("dtype", [torch.int8, torch.uint8])
def test_codes_are_those_of_torch(count, dtype):
    values = spread_out(count)
    wanted = values if dtype is torch.int8 else values * values
    offset = torch.cat([offsets(s, min(65_536, count - s), 1, values.device)
                        for s in range(0, count, 65_536)] or [torch.zeros(0)])  # fmt: skip
    expected, exponents = codes.encode(wanted, dtype, offset)
    found = coded(values, dtype)
    assert torch.equal(found.exponents, exponents)
    differ = found.entries != expected
    # Two logarithms may round to different sides of a step, and no further.
    assert int(differ.sum()) <= 1 + count // 2000
    assert int((found.entries.int() - expected.int()).abs().max() if count else 0) <= 1


@pytest.mark.parametrize("dtype", [torch.int8, torch.uint8])
@pytest.mark.parametrize("exponent", [-126, -60, 0, 126])
def test_every_code_is_read_as_torch_reads_it_and_written_back(dtype, exponent, monkeypatch):
    entries = torch.arange(256).to(torch.uint8).view(dtype)
    if dtype is torch.int8:
        entries[128] = -126  # -128 is no code
    # The largest code is a power of two itself, for which the block would take the next exponent.
    top = 127 if dtype is torch.int8 else 255
    entries[top], entries[256 - top] = top - 1, 1 - top if dtype is torch.int8 else 1
    other = torch.zeros(256, dtype=torch.uint8 if dtype is torch.int8 else torch.int8)
    for kernels in _native.available_kernels():
        monkeypatch.setattr(
            "gossamer.ops.training.optimizer_passes.active_kernels", lambda name=kernels: name
        )
        for number in (1, 2, 3):
            kept = NativeMoment(entries.clone(), torch.full((1,), exponent, dtype=torch.int8))
            zeros = NativeMoment(other.clone(), torch.zeros(1, dtype=torch.int8))
            pair = (kept, zeros) if dtype is torch.int8 else (zeros, kept)
            # Both averages keep what they are: beta1 and beta2 are 1 to float32.
            settings = (0.0, 1.0 - 1e-12, 1.0 - 1e-12, 1e-8, 0.0)
            adamw_step(torch.zeros(256), None, torch.zeros(256), *pair, settings, number,
                       native_dither(256, number))  # fmt: skip
            before = codes.decode(entries, torch.full((1,), exponent, dtype=torch.int8))
            after = codes.decode(*kept)
            normal = before.abs() >= 2.0**-126
            assert torch.equal(after[normal], before[normal]), (kernels, number)


def test_what_is_not_finite_has_no_code():
    values = torch.tensor([1.0, float("nan"), float("inf"), -float("inf"), -1.0, 0.0, 1e-42])
    quarters = values * 0.25
    expected, exponents = codes.encode(quarters, torch.int8, offsets(0, 7, 1, values.device))
    found = coded(values, torch.int8, settings=(0.0, 0.75, 0.0, 1e-8, 0.0))
    assert torch.equal(found.entries, expected)
    assert torch.equal(found.exponents, exponents)


MASTERS = ["none", "split", "split8"]


def parameter(count, master, seed=0):
    torch.manual_seed(seed)
    weight = torch.randn(count)
    return nn.Parameter(weight if master == "none" else weight.bfloat16())


def optimizer_of(param, master, fused, moments="8bit"):
    kind = "split" if master == "none" else master
    return AdamW([param], 1e-2, weight_decay=0.1, master=kind, moments=moments, fused=fused)


def run(param, optimizer, steps, seed=1):
    generator = torch.Generator().manual_seed(seed)
    for _ in range(steps):
        param.grad = torch.randn(param.shape, generator=generator).to(param.dtype)
        optimizer.step()


@pytest.mark.parametrize("count", [1, 300, 66_000])
@pytest.mark.parametrize("master", MASTERS)
@pytest.mark.parametrize("moments", ["8bit", "fp32"])
def test_one_step_is_that_of_torch_to_a_rounding(count, master, moments):
    found = []
    for fused in (False, True):
        param = parameter(count, master)
        optimizer = optimizer_of(param, master, fused, moments)
        run(param, optimizer, 1)
        found.append((optimizer.master_of(param), optimizer.state[param]))
    (plain, plain_state), (native, native_state) = found
    # A master of 24 bits may fall on the other side of its last one.
    torch.testing.assert_close(
        native, plain, rtol=2**-15 if master == "split8" else 3e-7, atol=1e-7
    )
    assert set(native_state) == set(plain_state)
    for key in ("exp_avg", "exp_avg_sq"):
        if moments == "8bit":
            off = (native_state[key].int() - plain_state[key].int()).abs()
            assert int(off.max()) <= 1
            assert int((off > 0).sum()) <= 1 + count // 2000


@pytest.mark.parametrize("master", MASTERS)
def test_many_steps_stay_beside_torch(master):
    found = []
    for fused in (False, True):
        param = parameter(2000, master)
        optimizer = optimizer_of(param, master, fused)
        run(param, optimizer, 60)
        found.append(optimizer.master_of(param))
    start = parameter(2000, master).detach().float()
    moved = (found[0] - start).norm()
    assert float((found[0] - found[1]).norm()) < 0.02 * float(moved)


@pytest.mark.parametrize("master", MASTERS)
def test_instruction_sets_give_the_same_bits(master, monkeypatch):
    results = []
    for kernels in _native.available_kernels():
        monkeypatch.setattr(
            "gossamer.ops.training.optimizer_passes.active_kernels", lambda name=kernels: name
        )
        param = parameter(70_003, master)
        optimizer = optimizer_of(param, master, True)
        run(param, optimizer, 4)
        results.append([param.detach(), *optimizer.state[param].values()])
    for other in results[1:]:
        assert all(torch.equal(a, b) for a, b in zip(results[0], other, strict=True))


def test_saved_state_goes_on_to_the_same_bits():
    param = parameter(3000, "split8")
    optimizer = optimizer_of(param, "split8", True)
    run(param, optimizer, 3)
    twin = nn.Parameter(param.detach().clone())
    other = AdamW([twin])
    other.load_state_dict(copy.deepcopy(optimizer.state_dict()))
    run(param, optimizer, 3, seed=2)
    run(twin, other, 3, seed=2)
    assert torch.equal(param, twin)
    assert torch.equal(optimizer.state[param]["exp_avg_sq"], other.state[twin]["exp_avg_sq"])


def test_nan_shows_in_the_weight_and_not_in_the_moments():
    param = parameter(600, "split8")
    optimizer = optimizer_of(param, "split8", True)
    param.grad = torch.zeros_like(param)
    param.grad[300] = float("nan")
    optimizer.step()
    assert param.isnan().nonzero().flatten().tolist() == [300]
    assert int(optimizer.state[param]["exp_avg"][300]) == 0
