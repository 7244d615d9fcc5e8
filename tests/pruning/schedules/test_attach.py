# SPDX-License-Identifier: Apache-2.0
"""What `gossamer.attach` refuses, and how."""

import copy
import subprocess
import sys

import pytest
import torch
from pydantic import TypeAdapter
from schedule_runs import attach, make_model, make_optimizer, run, schedule
from torch import nn

import gossamer
from gossamer.errors import GossamerError, InputError, PatternError, RecipeError, TargetError
from gossamer.recipes.stages import schedules as schema

GRADUAL = {"kind": "gradual", "sparsity": 0.9}


def attach_to(model, given, steps=100, **more):
    optimizer = torch.optim.SGD(model.parameters(), 0.1)
    return gossamer.attach(model, given, optimizer, total_steps=steps, **more)


@pytest.mark.parametrize(
    ("given", "words"),
    [
        ({}, "kind: is missing"),
        ({"kind": "gradul"}, "Did you mean 'gradual'"),
        ({"kind": ["gradual"]}, "unknown kind"),
        ({"kind": "gradual"}, "sparsity: is missing"),
        ({**GRADUAL, "sparsty": 1}, "unknown key 'sparsty'. Did you mean 'sparsity'"),
        ({**GRADUAL, "sparsity": 90}, "sparsity"),
        ({**GRADUAL, "sparsity": "0.9"}, "sparsity"),
        ({**GRADUAL, "initial_sparsity": 0.95}, "never goes backwards"),
        ({**GRADUAL, "begin": 0.8, "end": 0.2}, "never goes back"),
        ({**GRADUAL, "begin": 80, "end": 20}, "never goes back"),
        ({**GRADUAL, "begin": -1}, "at least 0"),
        ({**GRADUAL, "begin": True}, "whole number"),
        ({**GRADUAL, "end": 1.5}, "fraction of the run"),
        ({**GRADUAL, "every": 0}, "at least one step"),
        ({**GRADUAL, "pattern": "2:4"}, "prunes exactly 0.5"),
        ({**GRADUAL, "pattern": "5:4"}, "pattern"),
        ({"kind": "gradual", "pattern": "2:4", "budget": "erk"}, "budget"),
        ({"kind": "rigl", "sparsity": 0.9, "budget": "global"}, "budget: global"),
        ({"kind": "acdc", "sparsity": 0.9, "last_dense": 0.9}, "never goes back"),
        ({"kind": "acdc", "sparsity": 0.9, "phase": 0}, "phase"),
        (
            {"kind": "early_bird", "form": "channels", "sparsity": 0.5, "budget": "erk"},
            "channels are cut whole",
        ),
    ],
)
def test_faults_of_the_schedule(given, words):
    model = make_model()
    with pytest.raises(RecipeError, match=words):
        attach_to(model, given)
    assert type(model[0]) is nn.Linear


def test_all_faults_are_told_at_once():
    with pytest.raises(RecipeError) as caught:
        attach_to(make_model(), {**GRADUAL, "sparsity": 2.0, "evry": 3, "seed": -1})
    assert len(str(caught.value).splitlines()) == 3


@pytest.mark.parametrize(
    ("given", "steps", "words"),
    [
        ({**GRADUAL, "end": 101}, 100, "end is step 101, past the 100 steps"),
        ({**GRADUAL, "begin": 90}, 100, "end is step 70, before begin, step 90"),
        ({"kind": "oneshot", "sparsity": 0.9, "at": 500}, 100, "past the 100"),
        ({"kind": "iterative", "sparsity": 0.9, "rounds": 50}, 20, "do not fit into 20"),
        ({"kind": "iterative", "sparsity": 0.9, "to": 60, "rounds": 1}, 40, "do not fit into 40"),
        (GRADUAL, 0, "total_steps"),
        (GRADUAL, 10.0, "total_steps"),
        (GRADUAL, True, "total_steps"),
    ],
)
def test_schedules_that_do_not_fit_the_run(given, steps, words):
    model = make_model()
    with pytest.raises(InputError, match=words):
        attach_to(model, given, steps)
    assert type(model[0]) is nn.Linear


def test_targets_that_match_nothing():
    with pytest.raises(TargetError, match="matched 0 of"):
        attach_to(make_model(), {**GRADUAL, "targets": ["layers.*"]})
    with pytest.raises(TargetError):
        attach_to(nn.Sequential(nn.LayerNorm(4)), GRADUAL)
    with pytest.raises(PatternError, match="divisible"):
        attach_to(nn.Sequential(nn.Linear(7, 4)), {"kind": "set", "pattern": "2:4"})
    with pytest.raises(InputError, match="N:M or block:RxC"):
        attach_to(nn.Sequential(nn.Linear(64, 64)), {"kind": "gradual", "pattern": "64:2:8"})


def test_wrong_models_and_optimizers():
    model = make_model()
    with pytest.raises(InputError, match="expected a torch"):
        gossamer.attach([], GRADUAL, make_optimizer("sgd", model), total_steps=10)
    with pytest.raises(InputError, match="expected a torch optimizer"):
        gossamer.attach(model, GRADUAL, "adam", total_steps=10)
    with pytest.raises(RecipeError, match="a mapping such as"):
        attach_to(model, 0.9)
    assert type(model[0]) is nn.Linear


def test_layers_that_are_pruned_or_compact_already():
    model = make_model()
    gossamer.sparsify(model, sparsity=0.5)
    with pytest.raises(InputError, match="pruned already"):
        attach_to(model, GRADUAL)
    gossamer.compact(model)
    with pytest.raises(InputError, match=r"Attach before gossamer\.compact"):
        attach_to(model, GRADUAL)


def test_compaction_before_the_masks_settle_is_told_at_the_next_step():
    model = make_model()
    optimizer = make_optimizer("sgd", model)
    ctl = attach(model, optimizer, schedule("acdc"))
    for _ in range(5):
        optimizer.step()
        ctl.step()
    gossamer.compact(model, optimizer)
    optimizer.step()
    with pytest.raises(GossamerError, match="is_settled"):
        ctl.step()


def test_more_steps_than_promised():
    model = make_model()
    ctl = attach_to(model, {"kind": "random", "sparsity": 0.5}, steps=2)
    ctl.step()
    ctl.step()
    with pytest.raises(InputError, match="all 2 steps"):
        ctl.step()


def test_a_diverged_model_is_named():
    model = make_model()
    ctl = attach_to(model, {"kind": "oneshot", "sparsity": 0.5, "at": 1})
    with torch.no_grad():
        model[2].weight[0, 0] = torch.nan
    with pytest.raises(InputError, match=r"2\.weight: 1 of 384 scores are NaN"):
        ctl.step()


def test_fractions_and_steps_are_the_same_moments():
    fractions, _, _ = run({**GRADUAL, "begin": 0.1, "end": 0.7, "every": 0.1})
    steps, _, _ = run({**GRADUAL, "begin": 4, "end": 28, "every": 4})
    for a, b in zip(fractions.parameters(), steps.parameters(), strict=True):
        assert torch.equal(a, b)


def test_schedules_are_frozen_closed_and_survive_json():
    adapter = TypeAdapter(schema.Schedule)
    for kind in schema.SCHEDULES:
        made = adapter.validate_python({"kind": kind, "sparsity": 0.5})
        assert adapter.validate_json(made.model_dump_json()) == made
        with pytest.raises(ValueError, match="frozen"):
            made.sparsity = 0.1
        with pytest.raises(ValueError, match="extra"):
            adapter.validate_python({"kind": kind, "sparsity": 0.5, "more": 1})
    adapter.json_schema()


def test_a_schedule_object_is_accepted():
    ctl = attach_to(make_model(), schema.RandomSettings(sparsity=0.5))
    assert ctl.sparsity() == pytest.approx(0.5, abs=1e-3)


def test_the_schema_needs_no_torch():
    probe = "import sys, gossamer.recipes.stages.schedules; print('torch' in sys.modules)"
    done = subprocess.run([sys.executable, "-c", probe], capture_output=True, text=True, timeout=60)
    assert done.stdout == "False\n", done.stderr


def test_only_targets_become_masked():
    model = make_model()
    twin = copy.deepcopy(model)
    attach_to(model, {"kind": "random", "sparsity": 0.5, "targets": ["2"]})
    assert type(model[0]) is nn.Linear
    assert model[2].nnz == 192
    x = torch.randn(3, 16)
    assert torch.equal(model[:2](x), twin[:2](x))
