# SPDX-License-Identifier: Apache-2.0
"""Which compact layers train on sparse kernels: measured, by rule, or not at all."""

import pytest
import torch
import torch.distributed as dist
from torch import nn

import gossamer.nn as gnn
from gossamer.errors import InputError
from gossamer.ops.timing import Duel
from gossamer.training import choose_modes


def model_of(*densities, dtype=torch.float32):
    torch.manual_seed(0)
    layers = []
    for density in densities:
        linear = nn.Linear(24, 24, dtype=dtype)
        mask = torch.zeros(24 * 24, dtype=torch.bool)
        mask[torch.randperm(24 * 24)[: round(density * 24 * 24)]] = True
        layers.append(gnn.Linear.from_dense(linear, mask.view(24, 24)))
    return nn.Sequential(*layers, nn.ReLU())


def timer_with(jit_us, kernel_us, calls=None):
    def timer(first, second):
        if calls is not None:
            calls.append((first(), second()))
        return Duel(jit_us, kernel_us)

    return timer


def test_the_faster_mode_is_set_and_explained(monkeypatch):
    monkeypatch.delenv("GOSSAMER_TUNE", raising=False)
    model = model_of(0.1)
    (choice,) = choose_modes(model, 32, timer=timer_with(30.0, 10.0))
    assert model[0].mode == choice.mode == "kernel"
    assert (choice.layer, choice.jit_us, choice.kernel_us) == ("0", 30.0, 10.0)
    assert str(choice) == "0: kernel, kernel is 3.00x jit at 32 tokens"
    (choice,) = choose_modes(model, 32, timer=timer_with(10.0, 9.9))
    assert model[0].mode == choice.mode == "jit"


def test_equal_layers_are_measured_once_and_both_modes_compute_the_same(monkeypatch):
    monkeypatch.delenv("GOSSAMER_TUNE", raising=False)
    calls = []
    model = model_of(0.1, 0.1, 0.5)
    assert len(choose_modes(model, 7, timer=timer_with(2.0, 1.0, calls))) == 3
    assert len(calls) == 2
    for jit, kernel in calls:
        assert len(jit) == 2
        torch.testing.assert_close(jit, kernel, rtol=1e-5, atol=1e-5)
    assert all(layer.values.grad is None for layer in model[:3])


def test_a_real_measurement_gives_a_mode(monkeypatch):
    monkeypatch.delenv("GOSSAMER_TUNE", raising=False)
    (choice,) = choose_modes(model_of(0.1), 8)
    assert choice.mode in ("jit", "kernel")
    assert choice.jit_us > 0
    assert choice.kernel_us > 0


def test_fixed_rule_without_tuning(monkeypatch):
    monkeypatch.setenv("GOSSAMER_TUNE", "off")
    model = model_of(0.1, 0.9)
    assert [c.mode for c in choose_modes(model, 1024)] == ["kernel", "jit"]
    assert [c.mode for c in choose_modes(model, 1)] == ["jit", "jit"]
    assert "fixed rule" in choose_modes(model, 1)[0].why


def test_what_the_kernels_cannot_take_stays_jit(monkeypatch):
    monkeypatch.delenv("GOSSAMER_TUNE", raising=False)
    model = model_of(0.1, dtype=torch.bfloat16)
    (choice,) = choose_modes(model, 8, timer=timer_with(9.0, 1.0))
    assert choice.mode == "jit"
    assert "bfloat16" in choice.why


def test_models_without_compact_layers_and_bad_counts():
    assert choose_modes(nn.Linear(2, 2), 4) == []
    with pytest.raises(InputError, match="tokens"):
        choose_modes(model_of(0.1), 0)


def convs_of(*densities):
    torch.manual_seed(0)
    layers = []
    for density in densities:
        conv = nn.Conv2d(4, 4, 3, padding=1)
        mask = torch.rand(4, 36) < density
        layers += [gnn.Conv2d.from_dense(conv, mask), nn.BatchNorm2d(4)]
    return nn.Sequential(*layers)


def test_convolutions_are_measured_on_the_images_of_an_example(monkeypatch):
    monkeypatch.delenv("GOSSAMER_TUNE", raising=False)
    calls = []
    model = convs_of(0.2)
    before = model[1].running_mean.clone()
    (choice,) = choose_modes(
        model, 8, example=torch.randn(3, 4, 6, 5), timer=timer_with(30.0, 10.0, calls)
    )
    assert model[0].mode == "kernel"
    assert str(choice) == "0: kernel, kernel is 3.00x jit at 90 pixels"
    ((jit, kernel),) = calls
    torch.testing.assert_close(jit, kernel, rtol=1e-5, atol=1e-5)
    assert model.training
    assert torch.equal(model[1].running_mean, before)


def test_convolutions_without_an_example_or_tuning(monkeypatch):
    monkeypatch.delenv("GOSSAMER_TUNE", raising=False)
    model = convs_of(0.2, 0.9)
    choices = choose_modes(model, 8, timer=lambda *_: pytest.fail("nothing to measure"))
    assert [choice.mode for choice in choices] == ["jit", "jit"]
    assert "pass example=" in choices[0].why
    monkeypatch.setenv("GOSSAMER_TUNE", "off")
    choices = choose_modes(model, 8, example=torch.randn(1, 4, 16, 16))
    assert [choice.mode for choice in choices] == ["kernel", "jit"]
    assert "pixels >= 256 holds" in choices[0].why
    with pytest.raises(InputError, match="choose_modes: example must be a tensor"):
        choose_modes(model, 8, example=[1])


def test_in_a_process_group_rank_zero_decides(monkeypatch):
    monkeypatch.delenv("GOSSAMER_TUNE", raising=False)
    monkeypatch.setattr(dist, "is_initialized", lambda: True)
    monkeypatch.setattr(dist, "get_rank", lambda: 1)
    seen = []

    def broadcast(tensor, src):
        seen.append(src)
        tensor.copy_(torch.tensor([[40.0, 10.0]], dtype=tensor.dtype))

    monkeypatch.setattr(dist, "broadcast", broadcast)
    model = model_of(0.1)
    choose_modes(model, 8, timer=lambda first, second: pytest.fail("rank 1 must not measure"))
    assert seen == [0]
    assert model[0].mode == "kernel"


def test_split_masters_may_run_on_kernels_and_given_up_values_stay_resident(monkeypatch):
    monkeypatch.delenv("GOSSAMER_TUNE", raising=False)
    model = model_of(0.1, 0.1, 0.1)
    for layer in model[:2]:
        layer.values.data = layer.values.data.to(torch.bfloat16)
    model[1].bias.data = model[1].bias.data.to(torch.bfloat16)
    model[2].mode = "resident"
    model[2].give_up_values()
    calls = []
    choices = choose_modes(model, 32, timer=timer_with(30.0, 10.0, calls))
    assert [choice.mode for choice in choices] == ["kernel", "jit"]
    assert "float32" in choices[1].why
    assert model[2].mode == "resident"
    ((jit, kernel),) = calls
    torch.testing.assert_close(jit, kernel, rtol=1e-2, atol=1e-4)
