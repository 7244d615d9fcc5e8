# SPDX-License-Identifier: Apache-2.0
"""Recipes of SparseML and llm-compressor: what they become, what is refused, and hostile ones."""

import contextlib

import pytest
import yaml
from hypothesis import given, settings
from hypothesis import strategies as st

from gossamer.errors import RecipeError
from gossamer.recipes.foreign import convert_recipe

GRADUAL = """\
<!-- a licence -->

---
num_epochs: &epochs 40
first: &first 2
training_modifiers:
  - !EpochRangeModifier
    start_epoch: 0.0
    end_epoch: *epochs
  - !SetLearningRateModifier
    start_epoch: 0.0
    learning_rate: 0.01
pruning_modifiers:
  - !GMPruningModifier
    params: [re:net.layer.*.query.weight, net.head.0.weight]
    init_sparsity: 0.1
    final_sparsity: 0.8
    start_epoch: *first
    end_epoch: eval(num_epochs / 2)
    update_frequency: 0.5
    mask_type: [1, 4]
    log_types: __ALL__
---

# A page about it
"""
SURGEON = """\
pruning_modifiers:
  - !EpochRangeModifier {start_epoch: 0, end_epoch: 10}
  - !OBSPruningModifier
    params: __ALL_PRUNABLE__
    final_sparsity: 0.5
    start_epoch: 1
    end_epoch: 9
    damp: 1e-8
    num_grads: 512
  - !DistillationModifier {hardness: 0.75, temperature: 4.0, distill_output_keys: [logits]}
"""
ONCE = """\
prune_stage:
  sparsity_modifiers:
    SparseGPTModifier:
      sparsity: 0.5
      mask_structure: "2:4"
      dampening_frac: 0.02
      sequential_update: true
      targets: ['re:model.layers.\\d+$', model.norm_free]
      ignore: [lm_head]
"""


def stages(text, **given):
    return yaml.safe_load(convert_recipe(text.encode(), "r.yaml", **given).text)["stages"]


def faults(text, **given):
    with pytest.raises(RecipeError) as caught:
        convert_recipe(text.encode(), "r.yaml", **given)
    return str(caught.value).splitlines()


def test_a_gradual_recipe_becomes_a_train_stage_in_fractions_of_the_run():
    (stage,) = stages(GRADUAL, task="images")
    assert stage["train"] == {
        "task": "images",
        "epochs": 40.0,
        "optimizer": {"lr": 0.01},
        "rate": {"shape": "constant", "warmup": 0.0},
        "schedule": {
            "kind": "gradual",
            "pattern": "block:1x4",
            "sparsity": 0.8,
            "budget": "uniform",
            "initial_sparsity": 0.1,
            "begin": 0.05,
            "end": 0.5,
            "every": 0.0125,
            "targets": ["re:net.layer.*.query$", "net.head.0"],
        },
    }


def test_pruning_once_becomes_a_prune_stage():
    (stage,) = stages(ONCE)
    assert stage["prune"] == {
        "method": "sparsegpt",
        "pattern": "2:4",
        "damping": 0.02,
        "block": 128,
        "targets": ["re:model.layers.\\d+(\\..*)?$", "model.norm_free"],
        "ignore": ["lm_head"],
    }


def test_a_teacher_becomes_recovery_and_its_share_turns_around():
    text = SURGEON.replace("!OBSPruningModifier", "!ConstantPruningModifier")
    for field in ("final_sparsity: 0.5", "damp: 1e-8", "num_grads: 512"):
        text = text.replace(f"    {field}\n", "")
    (stage,) = stages(text, steps_per_epoch=50)
    assert stage["recover"] == {
        "steps": 500,
        "logits": 1.0,
        "temperature": 4.0,
        "hardness": 0.25,
    }
    assert "--steps-per-epoch" in faults(text)[0]


def test_differences_are_refused_or_told_in_the_file():
    found = faults(SURGEON, steps_per_epoch=50)
    assert [line.split(":")[1].split(" ")[1] for line in found] == [
        "OBSPruningModifier.num_grads",
        "OBSPruningModifier.damp",
        "OBSPruningModifier.end_epoch",
    ]
    assert all("--nearest" in line for line in found)
    made = convert_recipe(SURGEON.encode(), "r.yaml", steps_per_epoch=50, nearest=True)
    assert len(made.differences) == 3
    assert made.text.startswith("# differs: r.yaml:3 OBSPruningModifier.num_grads")
    assert [stage.step.__class__.__name__ for stage in made.recipe.stages] == ["Prune", "Recover"]


@pytest.mark.parametrize(
    ("change", "words"),
    [
        (("!GMPruningModifier", "!MovementPruningModifier"), "has no equal here"),
        (("final_sparsity: 0.8", "final_sparsity: eval(nowhere + 1)"), "nowhere is not defined"),
        (("final_sparsity: 0.8", "final_sparsity: {0.8: [a]}"), "a schedule has one"),
        (("final_sparsity: 0.8", "final_sparsity: high"), "expected a number, got 'high'"),
        (("mask_type: [1, 4]", "mask_type: filter"), "'filter' has no equal here"),
        (("mask_type: [1, 4]", "leave_enabled: false"), "here they stay"),
        (("mask_type: [1, 4]", "colour: red"), "this field is not known"),
        (("eval(num_epochs / 2)", "eval(__import__('os'))"), "only + - * / min max are known"),
        (("eval(num_epochs / 2)", "eval(num_epochs ** 99)"), "only + - * / min max are known"),
        (("eval(num_epochs / 2)", "eval(num_epochs / 0)"), "cannot be computed"),
    ],
)
def test_what_has_no_equal_is_named_with_its_line(change, words):
    text = GRADUAL.replace(*change)
    assert text != GRADUAL
    (line,) = faults(text, task="images")
    assert words in line
    assert line.startswith("r.yaml:14"), line


HELD = """\
modifiers:
  - !EpochRangeModifier {start_epoch: 0, end_epoch: 4}
  - !ConstantPruningModifier {params: __ALL_PRUNABLE__}
  - !DistillationModifier {hardness: 1.0}
  - !QuantizationModifier {start_epoch: 0}
"""
WITHOUT_TEACHER = "\n".join(SURGEON.splitlines()[:-1]) + "\n"


@pytest.mark.parametrize(
    ("text", "change", "words"),
    [
        (ONCE, ("sequential_update: true", "sequential_update: false"), "the pruned layers before"),
        (ONCE, ("sequential_update", "preserve_sparsity_mask"), "not the start of new ones"),
        (HELD, ("__ALL_PRUNABLE__", "[a.weight]"), "masks of all layers"),
        (HELD, ("hardness: 1.0", "hardness: 1.0, start_epoch: 2"), "the teacher takes part"),
        (HELD, ("{start_epoch: 0}", "{start_epoch: 3}"), "weights are rounded"),
        (HELD, ("{start_epoch: 0}", "{quantize_embeddings: 1}"), "int8 only"),
        (HELD, ("{start_epoch: 0}", "{freeze_bn_stats_epoch: 1}"), "batch-norm statistics"),
        (WITHOUT_TEACHER, ("num_grads: 512", ""), "training after pruning is left out"),
    ],
)
def test_no_setting_is_passed_by(text, change, words):
    changed = text.replace(*change)
    assert changed != text
    assert any(words in line and "--nearest" in line for line in faults(changed, steps_per_epoch=5))
    if text is not WITHOUT_TEACHER:
        assert stages(text, steps_per_epoch=5)  # without the change there is nothing to tell


def test_bits_of_a_solver_follow_the_scheme_and_tables_stay():
    text = ONCE.replace("sequential_update: true", "quantize: true")
    text += "    QuantizationModifier: {scheme: W4A16, quantize_embeddings: true}\n"
    prune, rounding = stages(text)
    assert prune["prune"]["quantise"] == 4
    assert rounding["round"] == {"layers": None, "embeddings": "int8"}


def test_two_schedules_are_one_if_they_agree_and_refused_if_not():
    head, entry, tail = GRADUAL.partition("  - !GMPruningModifier")
    more = tail.partition("---")[0].replace(
        "[re:net.layer.*.query.weight, net.head.0.weight]", "[b]"
    )
    twice = head + entry + more + entry + tail
    assert stages(twice, task="images")[0]["train"]["schedule"]["targets"][0] == "b"
    (line,) = faults(twice.replace("0.8", "0.9", 1), task="images")
    assert "one schedule" in line


def test_n_of_m_is_read_by_its_sparsity():
    text = ONCE.replace('"2:4"', '"1:4"')
    assert "kept or pruned" in faults(text)[0]
    assert stages(text.replace("sparsity: 0.5", "sparsity: 0.25"))[0]["prune"]["pattern"] == "3:4"
    assert stages(text.replace("sparsity: 0.5", "sparsity: 0.75"))[0]["prune"]["pattern"] == "1:4"


def test_a_run_must_say_on_what_and_how_long():
    assert "--task" in faults(GRADUAL)[0]
    without = "\n".join(GRADUAL.splitlines()[:6] + GRADUAL.splitlines()[9:])
    assert "EpochRangeModifier" in faults(without, task="images")[0]


@pytest.mark.parametrize(
    "text",
    [
        "",
        "a: 1",
        "[" * 5000,
        "modifiers: 3",
        "modifiers:\n  - 3",
        "modifiers:\n  - !A [1]",
        "modifiers: &a\n  - *a",
        "a: &a [x, x]\nmodifiers:\n  - !EpochRangeModifier {end_epoch: *a}",
        "x: eval(y)\ny: eval(x)\nmodifiers:\n  - !EpochRangeModifier {end_epoch: eval(x)}",
        "modifiers:\n  - !EpochRangeModifier {end_epoch: !x 3}",
        "modifiers:\n  - !EpochRangeModifier {end_epoch: " + "1" * 70000 + "}",
        "a_stage:\n  b_stage:\n    c_stage:\n      d_stage: {modifiers: []}",
    ],
)
def test_hostile_and_empty_files_are_refused(text):
    assert faults(text, task="images")


@settings(max_examples=60)
@given(st.data())
def test_damaged_files_give_recipes_or_recipe_errors(data):
    text = data.draw(st.sampled_from([GRADUAL, SURGEON, ONCE]))
    for _ in range(data.draw(st.integers(1, 4))):
        at = data.draw(st.integers(0, len(text)))
        cut = data.draw(st.integers(0, 12))
        new = data.draw(
            st.sampled_from(["", "-", "{", "[", ": ", "!x ", "*a", "&a ", "eval(", "\n", "9"])
        )
        text = text[:at] + new + text[at + cut :]
    with contextlib.suppress(RecipeError):
        convert_recipe(text.encode(), "r.yaml", task="images", steps_per_epoch=3, nearest=True)
