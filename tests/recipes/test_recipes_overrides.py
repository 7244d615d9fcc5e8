# SPDX-License-Identifier: Apache-2.0
"""`--set`: variables and fields, and what cannot be set."""

import pytest

from gossamer.errors import RecipeError
from gossamer.recipes import load_recipe
from gossamer.recipes.loader import apply_overrides
from gossamer.recipes.yaml_lines import parse_yaml


def test_a_variable_and_fields_are_set():
    recipe = load_recipe(
        "sparsegpt-50",
        ["sparsity=0.7", "stages.0.prune.damping=0.1", "stages[0].prune.targets=[a, 're:b']"],
    )
    step = recipe.stages[0].prune
    assert (step.sparsity, step.damping, step.targets) == (0.7, 0.1, ("a", "re:b"))
    assert recipe.variables == {"sparsity": 0.7}


def test_a_field_that_was_a_variable_may_be_set_itself():
    recipe = load_recipe("sparsegpt-50", ["stages.0.prune.sparsity=0.9"])
    assert recipe.stages[0].prune.sparsity == 0.9


def test_a_section_that_is_left_out_is_made():
    recipe = load_recipe("magnitude-50", ["calibration.samples=3"])
    assert recipe.calibration.samples == 3


def test_the_last_one_wins_and_the_document_stays():
    document = parse_yaml(b"variables: {s: 1}\nstages: [{a: {b: 2}}]\n", "r.yaml")
    changed = apply_overrides(document, ["s=2", "s=3", "stages.0.a={c: 4}", "stages.0.a.d=x=y"])
    assert changed.data == {"variables": {"s": 3}, "stages": [{"a": {"c": 4, "d": "x=y"}}]}
    assert document.data == {"variables": {"s": 1}, "stages": [{"a": {"b": 2}}]}
    assert str(changed.fault(("stages", 0, "a", "c"), "no.")) == (
        "--set stages.0.a={c: 4} stages[0].a.c: no."
    )
    assert str(changed.fault(("stages", 0), "no.")) == "r.yaml:2 stages[0]: no."


@pytest.mark.parametrize(
    ("override", "words"),
    [
        ("sparsity", "expected NAME=VALUE"),
        ("=0.5", "expected NAME=VALUE"),
        ("stages..prune=1", "expected NAME=VALUE"),
        ("sparcity=0.5", "no variable 'sparcity'. Did you mean 'sparsity'? Defined: sparsity."),
        ("variables.other=0.5", "no variable 'other'"),
        ("stages.1.prune.sparsity=0.5", "stages has 1 item(s), counted from 0; there is no 1"),
        ("stages.prune.sparsity=0.5", "there is no 'prune'. Write stages.0 for the first."),
        ("description.x=1", "description is 'SparseGPT at 50 %, unstructured' and has no 'x'"),
        ("sparsity=[1", "the value cannot be read"),
        ("sparsity=!!python/name:os.system x", "is not allowed"),
        ("sparsity=50", "--set sparsity=50 stages[0].prune.sparsity: must be in [0, 1), got 50"),
        ("stages.0.prune.dampin=0.5", "Did you mean 'damping'?"),
        ("gossamer.x=2", "gossamer is 1 and has no 'x'"),
    ],
)
def test_what_cannot_be_set_is_refused(override, words):
    with pytest.raises(RecipeError) as caught:
        load_recipe("sparsegpt-50", [override])
    assert words in str(caught.value)
    assert str(caught.value).startswith(f"--set {override}")


def test_all_bad_overrides_are_told_at_once():
    with pytest.raises(RecipeError) as caught:
        load_recipe("sparsegpt-50", ["a=1", "b=1", "sparsity=0.5"])
    assert len(str(caught.value).splitlines()) == 2
