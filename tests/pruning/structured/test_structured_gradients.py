# SPDX-License-Identifier: Apache-2.0
"""Gradients of mask variables against finite differences; costs against hand counts."""

import pytest
import torch
from structured_models import FAMILY_NAMES, FILTERS, HEADS, UNEVEN, loss, make_ids, make_model

from gossamer.errors import InputError
from gossamer.pruning.structured import find_units, slim
from gossamer.pruning.structured.search import cost_tables
from gossamer.pruning.structured.units import fisher_scores, mask_gradients, scaled_units

FLOAT32_NORMS = ("llama", "qwen2", "mistral")


@pytest.mark.parametrize("name", FAMILY_NAMES)
def test_gradients_equal_finite_differences(name):
    model, ids = make_model(name, torch.float64), make_ids()
    groups = find_units(model)
    found = mask_gradients(model, groups, [ids], loss)
    assert [tuple(g.shape) for g in found] == [(1, HEADS), (1, FILTERS)] * 3
    # Llama's norms compute in float32 whatever the model's type.
    step, tolerance = (1e-2, 2e-2) if name in FLOAT32_NORMS else (1e-5, 1e-4)
    for number in (0, 3, 4):
        for unit in (0, groups[number].count - 1):
            values = []
            for sign in (1, -1):
                factors = [torch.ones(g.count, dtype=torch.float64) for g in groups]
                factors[number][unit] += sign * step
                with scaled_units(groups, factors), torch.no_grad():
                    values.append(float(loss(model, ids)))
            slope = (values[0] - values[1]) / (2 * step)
            assert float(found[number][0, unit]) == pytest.approx(
                slope, rel=tolerance, abs=tolerance**2
            )


@pytest.mark.parametrize("name", ["bert", "opt", "llama", "zoo"])
def test_per_sample_equals_batches_of_one(name):
    model, ids = make_model(name, torch.float64), make_ids(rows=3)
    tolerance = 1e-5 if name in FLOAT32_NORMS else 1e-10
    groups = find_units(model)
    together = mask_gradients(model, groups, [ids[:2], ids[2:]], loss, fisher="sample")
    alone = mask_gradients(model, groups, list(ids.split(1)), loss, fisher="batch")
    for one, other in zip(together, alone, strict=True):
        torch.testing.assert_close(one, other, rtol=tolerance, atol=tolerance)
    batch = mask_gradients(model, groups, [ids], loss, fisher="batch")
    for one, other in zip(batch, alone, strict=True):
        torch.testing.assert_close(one[0], other.mean(0), rtol=tolerance, atol=tolerance)


def test_fisher_of_a_known_gradient():
    scores = fisher_scores([torch.tensor([[1.0, 2.0], [3.0, -2.0]])])
    assert scores[0].tolist() == [5.0, 4.0]


def test_the_model_is_left_as_it_was():
    model = make_model("zoo").train()
    model.layers[1].eval()
    model.head.weight.requires_grad_(False)
    before = {name: value.clone() for name, value in model.state_dict().items()}
    mask_gradients(model, find_units(model), [make_ids()], loss)
    assert model.training
    assert not model.layers[1].training
    assert all(p.grad is None for p in model.parameters())
    assert [n for n, p in model.named_parameters() if not p.requires_grad] == ["head.weight"]
    assert all(torch.equal(before[n], value) for n, value in model.state_dict().items())
    assert not any(module._forward_pre_hooks for module in model.modules())


@pytest.mark.parametrize(
    ("bad_loss", "message"),
    [
        (lambda model, ids: 1.0, "scalar tensor"),
        (lambda model, ids: model(ids), "scalar tensor"),
        (lambda model, ids: model(ids).detach().sum(), "no gradient"),
        (lambda model, ids: model(ids).sum() * torch.nan, "nan"),
    ],
)
def test_bad_losses_are_refused_and_hooks_removed(bad_loss, message):
    model = make_model("zoo")
    with pytest.raises(InputError, match=message):
        mask_gradients(model, find_units(model), [make_ids()], bad_loss)
    assert not any(module._forward_pre_hooks for module in model.modules())


def test_groups_without_units_have_empty_gradients():
    model = make_model("zoo")
    slim(model, UNEVEN)
    for fisher in ("batch", "sample"):
        found = mask_gradients(model, find_units(model), [make_ids()], loss, fisher=fisher)
        rows = 1 if fisher == "batch" else 2
        assert [tuple(g.shape) for g in found[2:4]] == [(rows, 0)] * 2
    slim(model, [[]] * 6)
    with pytest.raises(InputError, match="nothing to prune"):
        mask_gradients(model, find_units(model), [make_ids()], loss)


def test_no_data_and_a_wrong_fisher():
    model = make_model("zoo")
    with pytest.raises(InputError, match="none"):
        mask_gradients(model, find_units(model), [], loss)
    with pytest.raises(InputError, match="fisher"):
        mask_gradients(model, find_units(model), [make_ids()], loss, fisher="exact")


def test_costs_of_bert_by_hand():
    tables = cost_tables(find_units(make_model("bert")), "macs", 10.0)
    # Four products of 16 x 4 per head and token, and two of 10 x 4 with every other token.
    assert float(tables[0][1]) == 4 * 10 * 16 * 4 + 2 * 10**2 * 4
    assert float(tables[1][-1]) == FILTERS * 2 * 10 * 16
    parameters = cost_tables(find_units(make_model("bert")), "parameters", 10.0)
    assert float(parameters[0][2]) == 2 * (4 * 16 * 4 + 3 * 4)
    assert float(parameters[1][1]) == 2 * 16 + 1


def test_costs_of_grouped_heads_and_gated_filters():
    groups = find_units(make_model("llama"))
    tables = cost_tables(groups, "macs", 1.0)
    # Two query heads of 2, one key and one value head of 2, and their part of the output.
    assert float(tables[0][1]) == 16 * (4 + 2 + 2 + 4) + 2 * 4
    assert float(tables[1][1]) == 3 * 16


@pytest.mark.parametrize("name", ["bert", "gpt2", "zoo"])
def test_all_parameters_are_counted(name):
    model = make_model(name)
    groups = find_units(model)
    counted = sum(float(t[-1]) for t in cost_tables(groups, "parameters", 1.0))
    layers = {layer for group in groups for layer in (*group.producers, group.consumer)}
    total = sum(p.numel() for layer in layers for p in layer.parameters())
    assert counted == total - 16 * len(groups)  # biases of consumers stay


def test_latency_tables_are_monotone_and_start_at_zero():
    groups = find_units(make_model("zoo"))
    tables = cost_tables(groups, "latency", 8.4)
    for group, table in zip(groups, tables, strict=True):
        assert len(table) == group.count + 1
        assert float(table[0]) == 0
        assert float(table[1]) > 0
        assert bool((table.diff() >= 0).all())
    assert tables[0] is tables[2]


def test_bad_costs():
    groups = find_units(make_model("zoo"))
    for tokens in (0, -1, float("nan")):
        with pytest.raises(InputError, match="tokens"):
            cost_tables(groups, "macs", tokens)
    with pytest.raises(InputError, match="cost"):
        cost_tables(groups, "joules", 1.0)
