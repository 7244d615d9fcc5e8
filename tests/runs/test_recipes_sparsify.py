# SPDX-License-Identifier: Apache-2.0
import copy
import json

import pytest
import torch
from torch import nn

import gossamer.nn as gnn
from gossamer.errors import InputError, RecipeError
from gossamer.formats import encode
from gossamer.nn.surgery.compaction import compact
from gossamer.recipes import Recipe, builtin_text, load_recipe
from gossamer.recipes.schema import Stage
from gossamer.recipes.stages import Prune
from gossamer.report import LayerRow, Report, format_bytes
from gossamer.runs import sparsify


def network():
    torch.manual_seed(0)
    return nn.Sequential(
        nn.Conv2d(1, 8, 3), nn.BatchNorm2d(8), nn.Flatten(), nn.Linear(32, 40), nn.Linear(40, 4)
    )


def test_report_counts_and_bytes():
    model = network()
    parameters = sum(p.numel() for p in model.parameters())
    bytes_dense = sum(t.numel() * t.element_size() for t in model.state_dict().values())
    report = sparsify(model, sparsity=0.9)
    counts = {"0": 72, "3": 32 * 40, "4": 160}
    kept = {name: round((1 - 0.9) * count) for name, count in counts.items()}
    assert {row.name: row.nnz for row in report.layers} == kept
    dropped = sum(counts.values()) - sum(kept.values())
    assert report.sparsity == pytest.approx(dropped / sum(counts.values()))
    assert report.global_sparsity == pytest.approx(dropped / parameters)
    assert report.bytes_dense == bytes_dense
    packed = 0
    for name in counts:
        layer = model[int(name)]
        _, arrays = encode(layer.matrix())
        packed += sum(array.nbytes for array in arrays.values())
    assert report.bytes_sparse == bytes_dense - 4 * sum(counts.values()) + packed
    assert sum(row.bytes_sparse for row in report.layers) == packed
    assert report.ms_dense is None
    assert report.quality_sparse is None


def test_bytes_stay_the_same_when_nothing_changes():
    model = network()
    first = sparsify(model, sparsity=0.9)
    assert sparsify(model, sparsity=0.9) == first


def test_tied_weights_are_counted_once():
    model = nn.Sequential(nn.Linear(8, 8), nn.Linear(8, 8))
    model[1].weight = model[0].weight
    report = sparsify(model, sparsity=0.5)
    assert len(report.layers) == 1
    assert report.bytes_dense == 4 * (64 + 8 + 8)
    assert report.global_sparsity == pytest.approx(32 / 80)
    assert "shares its weight with 1" in report.layers[0].note


def test_evaluate_is_called_before_and_after():
    model = network()
    seen = []

    def evaluate(model):
        seen.append(isinstance(model[3], gnn.MaskedLinear))
        return torch.tensor(len(seen) / 4)

    report = sparsify(model, sparsity=0.9, evaluate=evaluate)
    assert seen == [False, True]
    assert (report.quality_dense, report.quality_sparse) == (0.25, 0.5)


def test_evaluate_is_not_called_when_the_request_is_wrong():
    def evaluate(model):
        raise AssertionError("called")

    with pytest.raises(InputError, match=r"Write 0\.9 for 90 %"):
        sparsify(network(), sparsity=90, evaluate=evaluate)


def test_evaluate_must_return_a_number_and_fails_before_pruning():
    model = network()
    before = copy.deepcopy(model.state_dict())
    with pytest.raises(InputError, match="one number, got NoneType before pruning"):
        sparsify(model, sparsity=0.9, evaluate=lambda model: None)
    assert set(model.state_dict()) == set(before)


def test_text_shows_bytes_time_and_quality_beside_sparsity():
    text = str(sparsify(network(), sparsity=0.9, evaluate=lambda model: 0.75))
    lines = text.splitlines()
    for word in ("sparsity of pruned layers", "bytes", "time, ms", "quality"):
        assert any(line.startswith(word) for line in lines)
    assert "not measured" in text
    assert "0.75" in text
    assert "compile(model, example=x)" in text
    assert lines[-1].startswith("Speed is unchanged until gossamer.compile(model)")
    head = next(line for line in lines if line.startswith("layer"))
    assert head.index("sparsity") < head.index("dense") < head.index("sparse", 60)
    assert text.isascii()


def test_attention_that_stays_dense_is_said():
    model = nn.Sequential(nn.TransformerEncoderLayer(8, 2, 16, batch_first=True))
    text = str(sparsify(model, sparsity=0.5))
    assert "q, k and v of MultiheadAttention" in text
    assert "0.self_attn.in_proj_weight." in text


def test_to_dict_is_json():
    report = sparsify(network(), sparsity=0.9)
    data = json.loads(json.dumps(report.to_dict()))
    assert data["layers"][0]["shape"] == [8, 1, 3, 3]
    assert data["quality_dense"] is None
    assert data["bytes_sparse"] == report.bytes_sparse


def test_ratios_are_dense_over_sparse():
    row = LayerRow("a", "Linear", (2, 2), "unstructured", 0.5, 2, 16, 10, "bitmask")
    report = Report(0.5, 0.5, 1000, 250, 3.0, 2.0, 0.9, 0.89, [row])
    text = str(report)
    assert "4.00x" in text
    assert "1.50x" in text
    assert "not measured" not in text


@pytest.mark.parametrize(
    ("count", "text"),
    [
        (0, "0 B"),
        (1023, "1023 B"),
        (1536, "1.5 KiB"),
        (3 << 20, "3.0 MiB"),
        (1 << 40, "1024.0 GiB"),
    ],
)
def test_format_bytes(count, text):
    assert format_bytes(count) == text


def test_recipe_mapping_equals_arguments():
    a, b = network(), network()
    arguments = {"sparsity": 0.75, "budget": "global", "ignore": ["Conv2d"]}
    assert sparsify(a, arguments) == sparsify(b, **arguments)
    assert torch.equal(a[3].mask(), b[3].mask())


@pytest.mark.parametrize(
    ("recipe", "options", "words"),
    [
        ("magic.yaml", {}, "magic.yaml: there is no such file"),
        (["magnitude-50"], {}, "expected a mapping.*got list"),
        ("sparsegpt-50", {}, "method 'sparsegpt' looks at what data .* needs calibration data"),
        ("magnitude-50", {"sparsity": 0.9}, "sparsity is given beside a whole recipe"),
        ({"sparcity": 0.5}, {}, "unknown key 'sparcity'. Did you mean 'sparsity'"),
        ({"sparsity": 0.5}, {"sparsity": 0.9}, "0.5 in the recipe and 0.9 in the call"),
        ({3: 0.5}, {}, "unknown key 3"),
    ],
)
def test_bad_recipes_are_refused(recipe, options, words):
    model = network()
    with pytest.raises(RecipeError, match=words):
        sparsify(model, recipe, **options)
    assert type(model[3]) is nn.Linear


def test_a_built_in_name_a_file_and_a_recipe_equal_the_arguments(tmp_path):
    file = tmp_path / "mine.yaml"
    file.write_text(builtin_text("magnitude-50"))
    models = [network() for _ in range(4)]
    expected = sparsify(models[0], sparsity=0.5)
    for model, recipe in zip(
        models[1:], ["magnitude-50", file, load_recipe("magnitude-50")], strict=True
    ):
        assert sparsify(model, recipe) == expected
        assert torch.equal(model[3].mask(), models[0][3].mask())


def test_rules_and_a_registered_scorer_of_a_recipe_reach_the_pruner():
    step = Prune(
        method="random", kind="scorer", pattern="block:4x4", sparsity=0.5, targets=["Linear"]
    )
    model = network()
    report = sparsify(model, Recipe(gossamer=1, stages=(Stage(prune=step),)), ignore=None)
    assert [row.pattern for row in report.layers] == ["block:4x4"] * 2
    assert type(model[0]) is nn.Conv2d


def test_a_refit_needs_data():
    model = network()
    step = Prune(method="magnitude", sparsity=0.5, refit=True)
    with pytest.raises(RecipeError, match="needs calibration data"):
        sparsify(model, Recipe(gossamer=1, stages=(Stage(prune=step),)))
    assert type(model[3]) is nn.Linear


def test_prune_train_compact_train_end_to_end():
    model = network().eval()
    optimizer = torch.optim.AdamW(model.parameters(), 0.01)
    x = torch.randn(6, 1, 4, 4)
    target = torch.randn(6, 4)

    def step():
        optimizer.zero_grad()
        loss = nn.functional.mse_loss(model(x), target)
        loss.backward()
        optimizer.step()
        return loss.item()

    first = step()
    sparsify(model, sparsity=0.5)
    for _ in range(20):
        step()
    result = compact(model, optimizer)
    assert result.compacted == ["0", "3", "4"]
    assert not result.left_masked
    for _ in range(20):
        last = step()
    assert last < first / 2
    with pytest.raises(InputError, match="it is compact"):
        sparsify(model, sparsity=0.9)


@pytest.mark.parametrize("wrap", [lambda x: x, lambda x: (x,), lambda x: {"input": x}])
def test_data_times_the_model_beside_dense(wrap):
    model = nn.Sequential(nn.Linear(64, 128), nn.ReLU(), nn.Linear(128, 8))
    report = sparsify(model, sparsity=0.9, data=iter([wrap(torch.randn(16, 64))] * 3))
    assert report.ms_dense > 0
    assert report.ms_sparse > 0
    assert model.training


def test_data_that_the_model_cannot_read_changes_nothing():
    model = nn.Sequential(nn.Linear(64, 8))
    with pytest.raises(RuntimeError):
        sparsify(model, sparsity=0.5, data=[torch.randn(3, 7)])
    assert type(model[0]) is nn.Linear
    assert model.training


def test_empty_data_times_nothing():
    report = sparsify(nn.Sequential(nn.Linear(8, 8)), sparsity=0.5, data=[])
    assert report.ms_dense is None
