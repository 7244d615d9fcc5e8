# SPDX-License-Identifier: Apache-2.0
"""Digest and differences of recipes."""

import hashlib
import json

import pytest

from gossamer.recipes import builtin_names, load_recipe
from gossamer.recipes.digest import content_differences, differences, recipe_content, recipe_digest
from gossamer.recipes.loader import parse_recipe

PLAIN = b"gossamer: 1\nstages: [{prune: {method: wanda, sparsity: 0.5}}]\n"
SAME = b"""
gossamer: 1
description: other words
variables: {s: 0.5}
calibration: {samples: 64}
stages:
  - prune:
      sparsity: ${s}
      method: wanda
      pattern: unstructured
"""


def test_equal_work_has_an_equal_digest():
    plain, same = parse_recipe(PLAIN, "a"), parse_recipe(SAME, "b")
    assert recipe_digest(plain) == recipe_digest(same)
    assert differences(plain, same) == []


def test_the_digest_is_that_of_the_canonical_json():
    recipe = parse_recipe(PLAIN, "a")
    text = json.dumps(recipe_content(recipe), sort_keys=True, separators=(",", ":"))
    assert recipe_digest(recipe) == hashlib.sha256(text.encode()).hexdigest()
    assert "description" not in recipe_content(recipe)


def test_built_in_recipes_differ_from_each_other():
    assert len({recipe_digest(load_recipe(name)) for name in builtin_names()}) == len(
        builtin_names()
    )


@pytest.mark.parametrize(
    ("override", "path", "before", "after"),
    [
        ("sparsity=0.7", "stages[0].prune.sparsity", 0.5, 0.7),
        ("calibration.seed=1", "calibration.seed", 0, 1),
        ("stages.0.prune.ignore=[a]", "stages[0].prune.ignore", None, ["a"]),
        ("stages.0.prune.refit=true", "stages[0].prune.refit", False, True),
    ],
)
def test_a_change_is_named_by_its_path(override, path, before, after):
    old, new = load_recipe("sparsegpt-50"), load_recipe("sparsegpt-50", [override])
    (found,) = differences(old, new)
    assert (found.path, found.before, found.after) == (path, before, after)
    assert str(found) == f"{path}: {before!r} -> {after!r}"
    assert recipe_digest(old) != recipe_digest(new)


def test_added_and_lost_items_are_told():
    one = load_recipe("sparsegpt-50", ["stages.0.prune.ignore=[a]"])
    two = load_recipe("sparsegpt-50", ["stages.0.prune.ignore=[a, b]"])
    assert [str(found) for found in differences(one, two)] == [
        "stages[0].prune.ignore[1]: None -> 'b'"
    ]
    assert differences(two, one)[0].after is None
    paths = [found.path for found in differences(one, load_recipe("structured-sparsegpt"))]
    assert "stages[1]" in paths


def test_a_field_that_did_not_exist_yet_is_no_difference() -> None:
    old, new = {"stages": [{"kind": "train"}]}, {"stages": [{"kind": "train", "round": None}]}
    assert content_differences(old, new) == []
    assert content_differences(new, {"stages": [{"kind": "train", "round": 8}]}) != []
