# SPDX-License-Identifier: Apache-2.0
"""Least squares against what must come out, and reconstruction on its own objective."""

import copy

import pytest
import torch
from structured_models import FAMILY_NAMES, loss, make_ids, make_model, run

from gossamer.errors import InputError, ResourceError
from gossamer.nn.surgery.matrix_layers import matrix_of, set_matrix
from gossamer.nn.surgery.slimming import unit_counts
from gossamer.pruning.structured import find_units, prune_structured, slim
from gossamer.pruning.structured.tune import Sums, reconstruct, refitted, solve_ridge, unit_scales

HALF = [[0, 2], list(range(12))] * 3


def sums_of(x, y):
    sums = Sums.zeros(x.shape[1], y.shape[1])
    sums.add(x, y)
    return sums


@pytest.mark.parametrize("scale", [1.0, 1e-3, 1e3])
@pytest.mark.parametrize("width", [1, 2])
def test_a_pruned_duplicate_is_made_good_exactly(scale, width):
    g = torch.Generator().manual_seed(1)
    x = torch.randn(200, 4 * width, generator=g, dtype=torch.float64) * scale
    weight = torch.randn(5, 4 * width, generator=g, dtype=torch.float64)
    # Before pruning there was a copy of the first unit whose output weight was 0.7 as large.
    target = x @ weight.T + 0.7 * x[:, :width] @ weight[:, :width].T + 2
    with_bias = torch.cat([weight, torch.full((5, 1), 2.0, dtype=torch.float64)], dim=1)
    scales, note = unit_scales(sums_of(x, target), with_bias, width, ridge=0.0)
    expected = torch.tensor([1.7, 1, 1, 1], dtype=torch.float64)
    torch.testing.assert_close(scales, expected, rtol=0, atol=1e-10)
    assert note == ""


def test_the_scale_of_activations_does_not_matter():
    g = torch.Generator().manual_seed(2)
    x = torch.randn(50, 6, generator=g, dtype=torch.float64)
    weight = torch.randn(4, 7, generator=g, dtype=torch.float64)
    weight[:, -1] = 0
    y = torch.randn(50, 4, generator=g, dtype=torch.float64)
    found = [unit_scales(sums_of(x * s, y * s), weight, 2)[0] for s in (1.0, 1e-3)]
    torch.testing.assert_close(*found, rtol=1e-9, atol=1e-9)


def test_degenerate_sums_stay_finite():
    zeros = sums_of(torch.zeros(3, 4), torch.ones(3, 2))
    weight = torch.ones(2, 5, dtype=torch.float64)
    assert unit_scales(zeros, weight, 1)[0].tolist() == [1] * 4
    twice = torch.ones(8, 1).repeat(1, 4)
    scales, _ = unit_scales(sums_of(twice, torch.ones(8, 2)), weight, 1, ridge=0.0)
    assert bool(torch.isfinite(scales).all())
    none = unit_scales(sums_of(torch.zeros(3, 0), torch.ones(3, 2)), weight[:, :1], 1)
    assert none[0].shape == (0,)
    one = sums_of(torch.ones(8, 1), torch.full((8, 2), 3.0))
    single = unit_scales(one, torch.tensor([[1.0, 0], [1, 0]]).double(), 1, ridge=0.0)[0]
    assert single.tolist() == pytest.approx([3.0])


def test_scales_out_of_range_are_refused():
    x = torch.randn(20, 1, dtype=torch.float64)
    weight = torch.tensor([[1.0, 0.0]], dtype=torch.float64)
    scales, note = unit_scales(sums_of(x, 1e5 * x), weight, 1)
    assert scales.tolist() == [1.0]
    assert "left [-10, 10]" in note
    # 11 is out of range at 1e-3 but the stronger ridge pulls it back to 10 and below.
    scales, note = unit_scales(sums_of(x, 10.5 * x), weight, 1)
    assert 1 < float(scales) <= 10
    assert "ridge raised" in note


def test_refit_equals_ordinary_least_squares():
    g = torch.Generator().manual_seed(4)
    x = torch.randn(60, 5, generator=g, dtype=torch.float64)
    y = torch.randn(60, 3, generator=g, dtype=torch.float64)
    start = torch.randn(3, 6, generator=g, dtype=torch.float64)
    with_one = torch.cat([x, torch.ones(60, 1, dtype=torch.float64)], dim=1)
    expected = torch.linalg.lstsq(with_one, y).solution.T
    found = refitted(sums_of(x, y), start, 0.0, has_bias=True)
    torch.testing.assert_close(found, expected, rtol=1e-9, atol=1e-9)
    residual = (y - with_one @ found.T).square().sum() / y.square().sum()
    assert sums_of(x, y).error(found) == pytest.approx(float(residual))
    no_bias = refitted(sums_of(x, y), start, 0.0, has_bias=False)
    assert torch.equal(no_bias[:, -1], start[:, -1])
    torch.testing.assert_close(refitted(sums_of(x, y), start, 1e12, True), start)
    assert solve_ridge(torch.zeros(0, 0), torch.zeros(0, 2), 0.1).shape == (0, 2)


@pytest.mark.parametrize("name", FAMILY_NAMES)
def test_duplicate_filters_are_recovered_in_every_family(name):
    teacher = make_model(name, torch.float64)
    with torch.no_grad():
        for group in find_units(teacher)[1::2]:
            for layer in group.producers:  # filter 23 computes what filter 0 does
                matrix = matrix_of(layer).clone()
                matrix[23] = matrix[0]
                set_matrix(layer, matrix)
                if layer.bias is not None:
                    layer.bias[23] = layer.bias[0]
            matrix = matrix_of(group.consumer).clone()
            matrix[:, 23] = 0.7 * matrix[:, 0]
            set_matrix(group.consumer, matrix)
    student = copy.deepcopy(teacher)
    slim(student, [list(range(4)), list(range(23))] * 3)
    batches = [make_ids(6, 9, seed) for seed in range(8)]
    fits = reconstruct(
        student, teacher, batches, loss,
        method="scales", ridge=1e-12,
    )  # fmt: skip
    assert [fit.name.rsplit(".", 1)[1] for fit in fits] == ["heads", "filters"] * 3
    assert all(fit.error_after <= fit.error_before for fit in fits)
    ids = make_ids(2, 7, 99)
    torch.testing.assert_close(run(student, ids), run(teacher, ids), rtol=0, atol=1e-6)


@pytest.mark.parametrize("name", ["bert", "gpt2", "opt-post-norm", "llama"])
def test_refit_lowers_the_error_and_keeps_the_teacher(name):
    teacher = make_model(name)
    before = {key: value.clone() for key, value in teacher.state_dict().items()}
    student = copy.deepcopy(teacher)
    slim(student, HALF)
    batches = [make_ids(16, 9, seed) for seed in range(8)]
    fits = reconstruct(
        student, teacher, batches, loss,
        method="weights",
    )  # fmt: skip
    assert all(fit.error_after <= fit.error_before for fit in fits)
    assert sum(f.error_after for f in fits) < 0.9 * sum(f.error_before for f in fits)
    assert all(torch.equal(before[key], value) for key, value in teacher.state_dict().items())
    assert not any(m._forward_hooks or "forward" in m.__dict__ for m in teacher.modules())


def test_padding_does_not_count():
    teacher = make_model("bert")
    results = []
    mask = torch.ones(8, 9, dtype=torch.long)
    mask[:, 6:] = 0
    for noise in (0, 7):
        student = copy.deepcopy(teacher)
        slim(student, HALF)
        batches = [make_ids(8, 9, seed) for seed in range(8)]
        for ids in batches:
            ids[:, 6:] = 3 + noise
        reconstruct(
            student, teacher, batches,
            lambda model, ids: model(ids, attention_mask=mask)[0].sum(),
            method="weights", keep=lambda ids: mask,
        )  # fmt: skip
        results.append(matrix_of(find_units(student)[-1].consumer))
    torch.testing.assert_close(*results, rtol=1e-3, atol=1e-4)


def test_keep_of_a_wrong_shape_or_number():
    teacher = make_model("zoo")
    for keep, message in (
        (lambda ids: torch.ones(1, 2), "shape"),
        (lambda ids: [torch.ones(2, 7)] * 2, "2 tensors"),
    ):
        with pytest.raises(InputError, match=message):
            reconstruct(teacher, teacher, [make_ids()], loss, method="scales", keep=keep)
    with pytest.raises(InputError, match="none"):
        reconstruct(teacher, teacher, [], loss, method="scales")


@pytest.mark.parametrize("options", [{}, {"fisher": "sample", "rounds": 2, "multiple": 4}])
@pytest.mark.parametrize("cost", ["macs", "parameters", "latency"])
def test_the_pipeline_stays_within_the_budget(cost, options):
    model = make_model("zoo")
    batches = [make_ids(8, 9, seed) for seed in range(6)]
    result = prune_structured(
        model, iter(batches), loss, budget=0.5, tokens=9, cost=cost, **options
    )
    assert result.model is model
    assert 0 < result.fraction <= 0.5
    counts = [(len(block.heads), len(block.filters)) for block in result.blocks]
    assert counts == unit_counts(model)
    stages = ["gradients", "search", "rearrange", "slim", "tune", "refit"]
    assert [stage.name for stage in result.stages] == stages * options.get("rounds", 1)
    if "multiple" in options:
        assert all(filters % 4 == 0 for _, filters in counts)
    assert result.to_dict()["fraction"] == result.fraction


def test_the_better_state_is_kept():
    scores = iter([5.0, 4.0, 3.0, 6.0])  # search, rearrange, tune, refit
    model = make_model("zoo")
    batches = [make_ids(8, 9, seed) for seed in range(4)]
    options = {"budget": 0.4, "tokens": 9}
    result = prune_structured(model, batches, loss, evaluate=lambda model: next(scores), **options)
    kept = {stage.name: stage.kept for stage in result.stages}
    assert kept == {
        "gradients": True, "search": True, "rearrange": False, "slim": True, "tune": False,
        "refit": True,
    }  # fmt: skip
    other = make_model("zoo")
    prune_structured(other, batches, loss, rearrange=False, tune=False, **options)
    for name, value in other.state_dict().items():
        torch.testing.assert_close(model.state_dict()[name], value)


def test_a_full_budget_keeps_everything_and_an_impossible_one_is_refused():
    model, ids = make_model("zoo"), make_ids()
    before = run(model, ids)
    result = prune_structured(model, [ids], loss, budget=1.0, tokens=7, tune=False, refit=False)
    assert result.fraction == 1
    assert torch.equal(run(model, ids), before)
    with pytest.raises(ResourceError, match="cannot be met"):
        prune_structured(model, [ids], loss, budget=0.1, tokens=7, min_filters=24)
    for wrong in (0, -1, 1.5):
        with pytest.raises(InputError, match="budget"):
            prune_structured(model, [ids], loss, budget=wrong, tokens=7)


def test_the_sqrt_teacher_is_smaller_than_dense():
    model = make_model("zoo")
    batches = [make_ids(8, 9, seed) for seed in range(4)]
    result = prune_structured(model, batches, loss, budget=0.25, tokens=9, teacher="sqrt")
    assert result.fraction <= 0.25
    assert [stage.name for stage in result.stages].count("search") == 2
