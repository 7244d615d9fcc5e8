# SPDX-License-Identifier: Apache-2.0
"""Active neurons: the result of the dense block, whatever is active."""

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from gossamer.errors import InputError, KernelError
from gossamer.ops.engines import PackedNeurons
from gossamer.ops.kernels import available_kernels


@pytest.fixture(params=available_kernels())
def kernels(request, monkeypatch):
    monkeypatch.setenv("GOSSAMER_KERNELS", request.param)
    return request.param


def block(neurons, features, seed=0, gated=True, biased=True):
    generator = torch.Generator().manual_seed(seed)
    shapes = {"gate_ND": (neurons, features), "down_ND": (neurons, features)}
    made = {name: torch.randn(shape, generator=generator) for name, shape in shapes.items()}
    made["up_ND"] = torch.randn(neurons, features, generator=generator) if gated else None
    if biased:
        made["gate_bias_N"] = torch.randn(neurons, generator=generator)
        made["up_bias_N"] = torch.randn(neurons, generator=generator) if gated else None
    return made


def dense(parts, x, cut=(0.0, 0.0), power=1):
    """In float64: output, active neurons, and what its rounding errors are measured by."""
    parts = {name: None if part is None else part.double() for name, part in parts.items()}
    x = x.double()
    g = x @ parts["gate_ND"].T
    if parts.get("gate_bias_N") is not None:
        g = g + parts["gate_bias_N"]
    shift, threshold = cut
    h = torch.where(g > threshold, g - shift, 0) ** power
    if parts["up_ND"] is not None:
        u = x @ parts["up_ND"].T
        h = h * (u if parts.get("up_bias_N") is None else u + parts["up_bias_N"])
    return h @ parts["down_ND"], int((g > threshold).sum()), h.abs() @ parts["down_ND"].abs()


def check(parts, x, **options):
    y, active = PackedNeurons(**parts, **options)(x)
    wanted, expected, scale = dense(parts, x, **options)
    assert y.shape == x.shape
    assert abs(active - expected) <= 1
    assert bool(((y.double() - wanted).abs() <= 2e-5 * (scale + 1)).all())


@pytest.mark.parametrize("gated", [True, False])
@pytest.mark.parametrize("sizes", [(1, 1), (3, 7), (40, 16), (33, 65), (130, 64), (64, 200)])
def test_equals_the_dense_block(kernels, sizes, gated):
    parts = block(*sizes, gated=gated)
    check(parts, torch.randn(3, sizes[1]))


@pytest.mark.parametrize("power", [1, 2])
@pytest.mark.parametrize("cut", [(0.0, 0.0), (3.0, 3.0), (0.0, 3.0), (1e9, 1e9)])
def test_shift_threshold_and_power(kernels, cut, power):
    check(block(90, 40), torch.randn(2, 40), cut=cut, power=power)


@settings(deadline=None, max_examples=30)
@given(
    neurons=st.integers(0, 70),
    features=st.integers(1, 90),
    shift=st.floats(0, 30),
    scale=st.sampled_from([1e-30, 1e-3, 1.0, 1e4]),
    seed=st.integers(0, 99),
)
def test_any_block(neurons, features, shift, scale, seed):
    generator = torch.Generator().manual_seed(seed)
    x = torch.randn(1, features, generator=generator) * scale
    check(block(neurons, features, seed, biased=bool(seed % 2)), x, cut=(shift, shift))


def test_all_and_no_neurons():
    parts = block(50, 30, biased=False)
    x = torch.randn(1, 30)
    parts["gate_ND"] = parts["gate_ND"].abs() * x.sign()
    assert PackedNeurons(**parts)(x)[1] == 50
    check(parts, x)
    assert PackedNeurons(**parts)(-x)[1] == 0
    assert bool((PackedNeurons(**parts)(-x)[0] == 0).all())


def test_rows_in_bf16_are_rounded_and_half_as_large():
    parts = block(300, 128)
    x = torch.randn(1, 128)
    full, half = PackedNeurons(**parts), PackedNeurons(**parts, rows="bf16")
    assert half.nbytes < 0.65 * full.nbytes
    rounded = {
        name: part.bfloat16().float() if name.endswith("_ND") else part
        for name, part in parts.items()
    }
    wanted, _, scale = dense(rounded, x)
    assert bool(((half(x)[0].double() - wanted).abs() <= 2e-3 * (scale + 1)).all())


@pytest.mark.parametrize("gated", [True, False])
@pytest.mark.parametrize("sizes", [(1, 1), (3, 7), (40, 16), (33, 129), (130, 128), (64, 200)])
def test_int8_rows_are_codes_of_the_weights(kernels, sizes, gated):
    parts, x = block(*sizes, gated=gated), torch.randn(3, sizes[1])
    packed = PackedNeurons(**parts, rows="int8")
    coded = dict(parts)
    for name, top in {"gate_ND": 119, "up_ND": 127, "down_ND": 127}.items():
        if parts[name] is not None:
            scale = parts[name].double().abs().amax(1, keepdim=True) / top
            coded[name] = (parts[name].double() / scale).round() * scale
    wanted, _, scale = dense(coded, x)
    y, _ = packed(x)
    # x has 16 bits.
    assert bool(((y.double() - wanted).abs() <= 1e-3 * (scale + 1)).all())
    known = torch.arange(sizes[0])
    torch.testing.assert_close(packed(x, known)[0], y, rtol=1e-4, atol=1e-3)


def test_inputs_above_zero_do_not_fool_the_high_bits(kernels):
    # What 4 bits leave out has a mean, and such inputs add it up.
    parts, x = block(300, 2048, biased=False), torch.rand(4, 2048)
    check(parts, x, cut=(40.0, 40.0))


def test_an_unknown_type_of_rows_is_refused():
    with pytest.raises(InputError, match="rows must be one of fp32, bf16, int8"):
        PackedNeurons(**block(3, 4), rows="int4")


def test_one_outlier_in_x_does_not_hide_neurons():
    parts = block(400, 256, biased=False)
    x = torch.randn(1, 256)
    x[0, 0] = 1e5
    parts["gate_ND"][:, 0] = 0.0
    check(parts, x)


def test_nan_and_infinity_are_seen():
    parts = block(20, 30)
    for bad in (torch.nan, torch.inf):
        x = torch.randn(1, 30)
        x[0, 3] = bad
        for rows in ("fp32", "bf16", "int8"):
            assert not bool(PackedNeurons(**parts, rows=rows)(x)[0].isfinite().any())


def test_threads_give_the_same_bits():
    parts, x = block(500, 100), torch.randn(1, 100)
    packed, before = PackedNeurons(**parts), torch.get_num_threads()
    try:
        results = []
        for threads in (1, 2):
            torch.set_num_threads(threads)
            results.append(packed(x)[0])
    finally:
        torch.set_num_threads(before)
    assert torch.equal(*results)


def test_known_neurons_are_all_that_is_read(kernels):
    parts, x = block(90, 40), torch.randn(1, 40)
    packed = PackedNeurons(**parts)
    g = x @ parts["gate_ND"].T + parts["gate_bias_N"]
    known = (g[0] > 0).nonzero().flatten()
    y, active = packed(x, known)
    assert active == len(known)
    torch.testing.assert_close(y, packed(x)[0], rtol=1e-5, atol=1e-4)
    few = known[::2]
    kept = {name: part if part is None else part[few] for name, part in parts.items()}
    torch.testing.assert_close(packed(x, few)[0], dense(kept, x)[0].float(), rtol=1e-4, atol=1e-4)
    assert bool((packed(x, known[:0])[0] == 0).all())
    for wrong in (known.flip(0), torch.tensor([90]), torch.tensor([-1]), known.double()):
        with pytest.raises(InputError, match="known must"):
            packed(x, wrong)


def test_bad_blocks_and_inputs_are_refused():
    parts = block(20, 30)
    with pytest.raises(KernelError, match=r"down must be \[20, 30\] like gate, got \[30, 20\]"):
        PackedNeurons(**{**parts, "down_ND": parts["down_ND"].T})
    with pytest.raises(KernelError, match="gate must be a float32 matrix"):
        PackedNeurons(**{**parts, "gate_ND": parts["gate_ND"].double()})
    with pytest.raises(KernelError, match="up holds NaN"):
        PackedNeurons(**{**parts, "up_ND": parts["up_ND"] * torch.nan})
    with pytest.raises(InputError, match=r"x must be float32 \[..., 30\]"):
        PackedNeurons(**parts)(torch.randn(1, 31))
