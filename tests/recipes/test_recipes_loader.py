# SPDX-License-Identifier: Apache-2.0
"""From file to Recipe: every fault at once, with file, line, path, value and what is expected."""

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from pydantic import ValidationError

import gossamer
from gossamer.errors import RecipeError
from gossamer.method_table import METHODS
from gossamer.patterns import Unstructured
from gossamer.patterns.text import PATTERNS
from gossamer.recipes import Calibration, Recipe, builtin_names, builtin_text, load_recipe
from gossamer.recipes.faults import MAX_FAULTS_SHOWN
from gossamer.recipes.loader import parse_recipe
from gossamer.recipes.schema import Stage
from gossamer.recipes.stages import Prune, Structured

HEAD = "gossamer: 1\nstages:\n  - "


def load(text, *overrides):
    return parse_recipe(text.encode(), "r.yaml", overrides)


def faults(text, *overrides):
    with pytest.raises(RecipeError) as caught:
        load(text, *overrides)
    assert caught.value.exit_code == 2
    return str(caught.value).splitlines()


def prune(fields):
    return f"{HEAD}prune: {{{fields}}}\n"


def only(fields):
    """The one fault of a prune stage, after its place."""
    lines = faults(prune(fields))
    assert len(lines) == 1, lines
    place, _, message = lines[0].partition(": ")
    assert place.startswith("r.yaml:3 stages[0].prune."), lines
    return place.removeprefix("r.yaml:3 stages[0].prune."), message


def test_defaults_are_filled_in_per_method():
    step = load(prune("method: sparsegpt, sparsity: 0.5")).stages[0].step
    assert (step.damping, step.block, step.quantise, step.match) == (0.01, 128, None, "pruned")
    step = load(prune("method: admm, sparsity: 0, damping: null")).stages[0].step
    assert (step.damping, step.block, step.match, step.sparsity) == (0.01, None, "pruned", 0.0)
    assert isinstance(step.sparsity, float)
    step = load(prune("method: wanda, sparsity: 0.5")).stages[0].step
    assert (step.damping, step.block, step.match) == (None, None, None)
    step = load(prune("method: wanda, sparsity: 0.5, refit: true, match: dense")).stages[0].step
    assert step.match == "dense"
    recipe = load(HEAD + "structured: {budget: 0.5}\n")
    assert recipe.stages[0].step == Structured(budget=0.5)
    assert recipe.calibration == Calibration(samples=64, tokens=512, seed=0)


@pytest.mark.parametrize("text", ["2:4", "64:2:8", "nmg:2:4:16", "1:1"])
def test_patterns_of_numbers_are_text_without_quotes(text):
    assert load(prune(f"method: wanda, pattern: {text}")).stages[0].prune.pattern == text


def test_patterns_are_canonical():
    assert load(prune("method: wanda, pattern: 02:04")).stages[0].prune.pattern == "2:4"


def test_rules_may_be_one_or_many():
    step = load(prune("method: wanda, sparsity: 0.5, targets: Linear, ignore: ['a.*', 're:b']"))
    assert step.stages[0].prune.targets == ("Linear",)
    assert step.stages[0].prune.ignore == ("a.*", "re:b")


@pytest.mark.parametrize(
    ("fields", "field", "words"),
    [
        ("sparsity: 0.5", "method", "is missing"),
        ("method: 3, sparsity: 0.5", "method", "expected text, got 3"),
        ("method: SparseGPT, sparsity: 0.5", "method", "Did you mean 'sparsegpt'?"),
        ("method: '', sparsity: 0.5", "method", "unknown method ''. Expected one of"),
        ("method: wanda", "sparsity", "is missing; pattern unstructured needs one"),
        ("method: wanda, sparsity: 50", "sparsity", "got 50. Write 0.5 for 50 %."),
        ("method: wanda, sparsity: 97.5", "sparsity", "Write 0.975 for 97.5 %."),
        ("method: wanda, sparsity: 100", "sparsity", "must be in [0, 1), got 100."),
        ("method: wanda, sparsity: 1.0", "sparsity", "got 1.0. At 1.0 nothing would be left"),
        ("method: wanda, sparsity: -0.1", "sparsity", "must be in [0, 1), got -0.1"),
        ("method: wanda, sparsity: .nan", "sparsity", "must be in [0, 1), got nan"),
        ("method: wanda, sparsity: .inf", "sparsity", "must be in [0, 1), got inf"),
        ("method: wanda, sparsity: true", "sparsity", "expected a number, got true"),
        ("method: wanda, sparsity: '0.5'", "sparsity", "got '0.5'. Remove the quotes."),
        ("method: wanda, sparsity: 50 %", "sparsity", "Write a fraction such as 0.5"),
        ("method: wanda, sparsity: [0.5]", "sparsity", "expected a number, got a list of 1"),
        ("method: wanda, pattern: 5:4", "pattern", "1 <= N <= M <= 32, got N=5, M=4"),
        ("method: wanda, pattern: 2of4", "pattern", "expected two numbers N:M"),
        ("method: wanda, pattern: blok:4x4", "pattern", "Did you mean 'block'?"),
        ("method: wanda, pattern: 2:4, sparsity: 0.7", "sparsity", "prunes exactly 0.5, got 0.7"),
        ("method: wanda, pattern: 2:4, budget: erk", "budget", "fixes it at 0.5"),
        ("method: wanda, sparsity: 0.5, budget: owls", "budget", "Did you mean 'owl'?"),
        ("method: wanda, sparsity: 0.5, targets: []", "targets", "at least 1 long"),
        ("method: wanda, sparsity: 0.5, targets: ['']", "targets[0]", "at least 1 character"),
        ("method: wanda, sparsity: 0.5, targets: [3]", "targets[0]", "expected text, got 3"),
        ("method: wanda, sparsity: 0.5, ignore: 're:('", "ignore", "not a regular expression"),
        ("method: wanda, sparsity: 0.5, refit: yes", "refit", "expected true or false, got 'yes'"),
        ("method: admm, sparsity: 0.5, damping: 0", "damping", "must be more than 0.0, got 0"),
        ("method: admm, sparsity: 0.5, damping: .nan", "damping", "got nan"),
        ("method: sparsegpt, sparsity: 0.5, block: 1.5", "block", "expected a whole number"),
        ("method: sparsegpt, sparsity: 0.5, quantise: 5", "quantise", "one of 4, 8, got 5"),
        ("method: sparsegpt, sparsity: 0.5, quantise: 8.0", "quantise", "whole number, got 8.0"),
        ("method: sparsegpt, sparsity: 0.5, quantise: true", "quantise", "whole number, got true"),
        ("method: '', kind: scorer, sparsity: 0.5", "method", "name of a registered scorer"),
        ("method: sparsegpt, sparsity: 0.5, match: dens", "match", "Did you mean 'dense'?"),
        ("method: x, kind: scorers, sparsity: 0.5", "kind", "Did you mean 'scorer'?"),
        ("method: wanda, sparcity: 0.5, sparsity: 0.5", "sparcity", "Did you mean 'sparsity'?"),
    ],
)
def test_one_wrong_value_is_one_fault(fields, field, words):
    found, message = only(fields)
    assert found == field
    assert words in message


@pytest.mark.parametrize("rule", ["a{99999999999999999999}", "(" * 3000 + ")" * 3000])
def test_expressions_that_cannot_be_compiled_are_faults(rule):
    field, message = only(f"method: wanda, sparsity: 0.5, targets: 're:{rule}'")
    assert field == "targets"
    assert "is not a regular expression" in message
    assert len(message) < 300


def test_settings_belong_to_their_methods():
    field, message = only("method: wanda, sparsity: 0.5, damping: 0.01")
    assert field == "damping"
    assert message.startswith(
        "damping is a setting of sparsegpt, admm, exact-obs and obert, not of wanda."
    )
    for name, value in (("block", 64), ("quantise", 8)):
        field, message = only(f"method: admm, sparsity: 0.5, {name}: {value}")
        assert (field, message) == (
            name,
            f"{name} is a setting of sparsegpt, not of admm. Remove it.",
        )
    assert only("method: wanda, sparsity: 0.5, match: dense")[0] == "match"
    assert only("method: mine, kind: scorer, sparsity: 0.5, block: 4")[0] == "block"


@pytest.mark.parametrize(
    ("fields", "field", "words"),
    [
        ("", "budget", "is missing"),
        ("budget: 50", "budget", "must be in (0, 1], got 50. Write 0.5 for 50 %."),
        ("budget: 0", "budget", "must be in (0, 1], got 0"),
        ("budget: 0.5, cost: flops", "cost", "unknown cost 'flops'"),
        ("budget: 0.5, fisher: samples", "fisher", "Did you mean 'sample'?"),
        ("budget: 0.5, multiple: 0", "multiple", "must be at least 1, got 0"),
        ("budget: 0.5, min_units: -1", "min_units", "must be at least 0, got -1"),
        ("budget: 0.5, method: wanda", "method", "unknown key 'method'"),
    ],
)
def test_faults_of_structured_stages(fields, field, words):
    (line,) = faults(f"{HEAD}structured: {{{fields}}}\n")
    assert line.startswith(f"r.yaml:3 stages[0].structured.{field}: ")
    assert words in line


@pytest.mark.parametrize(
    ("text", "words"),
    [
        ("", "r.yaml: is empty"),
        ("# nothing\n", "r.yaml: is empty"),
        ("- a\n", "r.yaml:1: expected a mapping"),
        ("text\n", "r.yaml:1: expected a mapping"),
        ("gossamer: 1\n", "stages: is missing"),
        ("gossamer: 1\nstages: []\n", "r.yaml:2 stages: must be at least 1 long"),
        ("gossamer: 1\nstages: {}\n", "r.yaml:2 stages: expected a list, got a mapping"),
        ("gossamer: 1\nstages:\n", "r.yaml:2 stages: expected a list, got nothing"),
        ("gossamer: 1\nstages:\n  - prune\n", "stages[0]: expected a mapping, got 'prune'"),
        ("gossamer: 1\nstages:\n  - prune:\n", "stages[0].prune: expected a mapping"),
        ("gossamer: 1\nstages:\n  - {}\n", "stages[0]: a stage is one of prune, structured"),
        ("gossamer: 1\nstages:\n  - pruna: {}\n", "Did you mean 'prune'?"),
        (
            prune("method: wanda, sparsity: 0.5").replace("gossamer: 1", "gossamer: 2"),
            "r.yaml:1 gossamer: unknown version 2; expected 'gossamer: 1'",
        ),
        (
            prune("method: wanda, sparsity: 0.5").replace("gossamer: 1", "gossamer: true"),
            "unknown version true",
        ),
        (
            prune("method: wanda, sparsity: 0.5").replace("gossamer: 1\n", ""),
            "gossamer: is missing; expected 'gossamer: 1'",
        ),
        (
            prune("method: wanda, sparsity: 0.5") + "calibraton: {}\n",
            "r.yaml:4 calibraton: unknown key 'calibraton'. Did you mean 'calibration'?",
        ),
        (
            prune("method: wanda, sparsity: 0.5") + "calibration: {samples: 0}\n",
            "r.yaml:4 calibration.samples: must be at least 1, got 0",
        ),
        (
            prune("method: wanda, sparsity: 0.5") + "variables: {a b: 1}\n",
            "'a b' is no name",
        ),
        (
            prune("method: wanda, sparsity: '${a}'") + "variables: {a: {b: 1}}\n",
            "r.yaml:4 variables.a: expected a number, text, true, false or null",
        ),
        (
            prune("method: wanda, sparsity: 0.5") + "variables: 3\n",
            "r.yaml:4 variables: expected a mapping, got 3",
        ),
    ],
    ids=lambda value: ascii(value)[:50],
)
def test_faults_outside_of_stages(text, words):
    assert words in "\n".join(faults(text))


def test_all_faults_are_told_in_the_order_of_the_file():
    text = (
        "gossamer: 2\nvariables: {unused: 1}\ncalibration: {tokens: 0}\nstages:\n"
        "  - prune: {method: wandaa, sparsity: 50, budget: erkk}\n  - structured: {budgt: 1}\n"
    )
    places = [line.partition(": ")[0] for line in faults(text)]
    assert places == [
        "r.yaml:1 gossamer",
        "r.yaml:2 variables.unused",
        "r.yaml:3 calibration.tokens",
        "r.yaml:5 stages[0].prune.budget",
        "r.yaml:5 stages[0].prune.method",
        "r.yaml:5 stages[0].prune.sparsity",
        "r.yaml:6 stages[1].structured.budget",
        "r.yaml:6 stages[1].structured.budgt",
    ]


def test_very_many_faults_are_cut():
    keys = "".join(f"k{index}: 1\n" for index in range(100))
    lines = faults(prune("method: wanda, sparsity: 0.5") + keys)
    assert len(lines) == MAX_FAULTS_SHOWN + 1
    assert lines[-1] == f"and {100 - MAX_FAULTS_SHOWN} more faults."


def test_hostile_names_are_printed_safely():
    (line,) = faults(prune('method: "\\e[31mred\\u202e", sparsity: 0.5'))
    assert line.isprintable()


VARIABLES = "gossamer: 1\nvariables: {s: 0.5, t: [a, b], on: true}\nstages:\n  - prune:\n"
USES = (
    "      method: wanda\n      sparsity: ${s}\n      targets: ${t}\n      refit: ${on}\n"
    "      ignore: ['x']\n"
)


def test_variables_keep_their_type():
    step = load(VARIABLES + USES).stages[0].prune
    assert (step.sparsity, step.targets, step.refit) == (0.5, ("a", "b"), True)


def test_variables_that_are_undefined_unused_nested_or_partial_are_faults():
    assert "undefined variable 'r'" in faults(VARIABLES + USES.replace("${s}", "${r}"))[-1]
    lines = faults(VARIABLES + USES.replace("${s}", "0.5"))
    assert lines == [
        "r.yaml:2 variables.s: is never used. Write ${s} where it belongs, or remove it."
    ]
    assert "cannot hold another" in faults((VARIABLES + USES).replace("0.5", "'${on}'"))[0]
    assert "must be the whole value" in faults(VARIABLES + USES.replace("'x'", "'x${s}'"))[0]


def test_a_wrong_variable_is_told_where_it_is_used():
    (line,) = faults((VARIABLES + USES).replace("0.5", "50"))
    assert line == (
        "r.yaml:6 stages[0].prune.sparsity: must be in [0, 1), got 50. Write 0.5 for 50 %."
        " (${s} of line 2)"
    )


@pytest.mark.parametrize("name", builtin_names())
def test_built_in_recipes_are_valid_and_explain_every_field(name):
    recipe = load_recipe(name)
    assert recipe.description
    lines = builtin_text(name).splitlines()
    assert max(map(len, lines)) <= 100
    bare = [line for line in lines if "#" not in line]
    assert all(line.startswith(("description:", "variables:")) for line in bare), bare


def test_there_is_a_built_in_recipe_for_every_method_and_budget():
    steps = [stage.step for name in builtin_names() for stage in load_recipe(name).stages]
    prunes = [step for step in steps if isinstance(step, Prune)]
    assert {step.method for step in prunes} == set(METHODS)
    assert {"uniform", "global", "owl", "sensitivity"} <= {step.budget for step in prunes}
    assert {s.cost for s in steps if isinstance(s, Structured)} == {"macs", "parameters", "latency"}


def test_a_recipe_says_whether_it_needs_data():
    def needs(fields):
        return load(prune(fields)).needs_data

    assert not needs("method: magnitude, sparsity: 0.5")
    assert not needs("method: random, sparsity: 0.5, budget: global")
    assert needs("method: magnitude, sparsity: 0.5, refit: true")
    assert needs("method: magnitude, sparsity: 0.5, budget: owl")
    assert needs("method: wanda, sparsity: 0.5")
    assert load_recipe("structured-mac-50").needs_data


def test_paths_names_and_what_is_neither(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    (tmp_path / "wanda-50").write_text("not a recipe")
    assert load_recipe("wanda-50").stages[0].prune.method == "wanda"
    with pytest.raises(RecipeError, match=r"wanda-50:1: expected a mapping"):
        load_recipe("./wanda-50")
    with pytest.raises(RecipeError, match="'wanda-50' is a built-in recipe: name it so"):
        load_recipe("wanda-50.yaml")
    with pytest.raises(RecipeError, match=r"or built-in recipe\. Did you mean 'wanda-50'"):
        load_recipe("wnda-50")
    with pytest.raises(RecipeError, match="is not a file"):
        load_recipe(tmp_path)
    with pytest.raises(RecipeError, match=r"cannot be read|no such file"):
        load_recipe("a\0b")
    (tmp_path / "big.yaml").write_bytes(b"#" * (1 << 20))
    with pytest.raises(RecipeError, match="more than 65536 bytes"):
        load_recipe(tmp_path / "big.yaml")


def test_a_registered_pattern_is_legal_in_a_recipe():
    gossamer.register.pattern("own", lambda text: Unstructured())
    try:
        step = load(prune("method: wanda, pattern: 'own:3', sparsity: 0.5")).stages[0].prune
        assert step.pattern == "unstructured"
    finally:
        PATTERNS.remove("own")


def test_models_made_in_python_obey_the_same_rules():
    with pytest.raises(ValidationError, match="not of wanda"):
        Prune(method="wanda", sparsity=0.5, damping=0.1)
    with pytest.raises(ValidationError, match="unknown method"):
        Prune(method="wandaa", sparsity=0.5)
    with pytest.raises(ValidationError, match=r"one of prune, .*, relufy, round and train"):
        Stage()
    step = Prune(method="wanda", sparsity=0.5)
    with pytest.raises(ValidationError, match="frozen"):
        step.sparsity = 0.7
    recipe = Recipe(gossamer=1, stages=(Stage(prune=step),))
    assert Recipe.model_validate(recipe.model_dump()) == recipe
    assert Recipe.model_validate_json(recipe.model_dump_json()) == recipe


SCALARS = st.one_of(
    st.none(),
    st.booleans(),
    st.integers(-3, 200),
    st.floats(),
    st.sampled_from(["wanda", "sparsegpt", "2:4", "uniform", "${s}", "re:(", "dense"]),
    st.text(max_size=5),
)
FIELDS = st.sampled_from([*Prune.model_fields, *Structured.model_fields, "other"])


@settings(deadline=None, max_examples=150)
@given(
    step=st.sampled_from(["prune", "structured"]),
    fields=st.dictionaries(FIELDS, st.one_of(SCALARS, st.lists(SCALARS, max_size=2)), max_size=6),
)
def test_any_stage_is_a_recipe_or_a_list_of_faults(step, fields):
    from gossamer.recipes.wording import recipe_findings

    recipe, found = recipe_findings({"gossamer": 1, "stages": [{step: fields}]})
    assert (recipe is None) == bool(found)
    for path, message in found:
        assert path[:2] == ("stages", 0)
        assert message
