# SPDX-License-Identifier: Apache-2.0
from collections import OrderedDict

import pytest
import torch
from torch import nn
from torch.nn.utils import parametrizations

import gossamer.nn as gnn
from gossamer.errors import InputError, TargetError
from gossamer.patterns import Unstructured
from gossamer.pruning.targets import find_targets


class Attention(nn.Module):
    def __init__(self):
        super().__init__()
        self.query = nn.Linear(4, 4)
        self.key = nn.Linear(4, 4)
        self.norm = nn.LayerNorm(4)


class Model(nn.Module):
    def __init__(self):
        super().__init__()
        self.embed = nn.Embedding(7, 4)
        self.conv = nn.Conv2d(1, 4, 3)
        self.layers = nn.ModuleList([Attention(), Attention()])
        self.classifier = nn.Linear(4, 2)


def names(model, *args, **kwargs):
    return [target.name for target in find_targets(model, *args, **kwargs)]


ATTENTION = [f"layers.{i}.{part}" for i in (0, 1) for part in ("query", "key")]


def test_default_is_every_linear_and_convolution_but_heads():
    assert names(Model()) == ["conv", *ATTENTION]


@pytest.mark.parametrize("head", ["lm_head", "head", "classifier"])
def test_heads_are_left_out_only_by_their_last_path_component(head):
    model = nn.ModuleDict({head: nn.Linear(2, 2), "x": nn.ModuleDict({head: nn.Linear(2, 2)})})
    model["header"] = nn.Linear(2, 2)
    assert names(model) == ["header"]
    model[head + "_x"] = nn.ModuleDict({"fc": nn.Linear(2, 2)})
    assert names(model) == ["header", head + "_x.fc"]


@pytest.mark.parametrize(
    ("rules", "expected"),
    [
        (["Linear"], [*ATTENTION, "classifier"]),
        ("Linear", [*ATTENTION, "classifier"]),
        (["Conv2d"], ["conv"]),
        (["layers.*.query"], ["layers.0.query", "layers.1.query"]),
        (["layers.1"], ATTENTION[2:]),
        (["layers.*"], ATTENTION),
        (["re:.*(query|key)$"], ATTENTION),
        (["re:layers\\.0"], ATTENTION[:2]),
        (["classifier", "conv"], ["conv", "classifier"]),
        (["Attention"], []),
    ],
)
def test_targets_by_class_glob_name_and_regex(rules, expected):
    if expected:
        assert names(Model(), rules) == expected
    else:
        with pytest.raises(TargetError, match="'Attention' matched 2 modules, none of which"):
            find_targets(Model(), rules)


@pytest.mark.parametrize(
    ("ignore", "expected"),
    [
        (["conv"], ATTENTION),
        (["Conv2d"], ATTENTION),
        (["layers"], ["conv"]),
        ("layers.0", ["conv", *ATTENTION[2:]]),
        (["re:.*key"], ["conv", "layers.0.query", "layers.1.query"]),
        (["LayerNorm"], ["conv", *ATTENTION]),
    ],
)
def test_ignore(ignore, expected):
    assert names(Model(), ignore=ignore) == expected


@pytest.mark.parametrize(
    ("rules", "words"),
    [
        (["re:.*querry.*"], r"matched 0 of 13 modules\. Closest: layers\.0\.query\."),
        (["layers.0.qeury"], r"Closest: layers\.0\.query\."),
        (["Liner"], r"Closest: Linear\."),
        (["conv*x"], r"Closest: conv\."),
        (["transformer.h.*"], r"has layers .*layers\.0\.query.* of classes .*Linear.*re: and"),
        (["re:("], "not a regular expression"),
        ([3], "got 3"),
        ([""], "got ''"),
        (["layers.0.norm"], r"layers\.0\.norm: LayerNorm"),
        (["LayerNorm"], "none of which can be pruned"),
        (["embed"], r"embed: Embedding"),
        (["conv.weight"], "is a Parameter"),
    ],
)
def test_rules_that_cannot_be_used_are_refused(rules, words):
    with pytest.raises(TargetError, match=words):
        find_targets(Model(), rules)


def test_ignore_rule_without_match_is_refused():
    with pytest.raises(TargetError, match=r"ignore: 'clasifier' matched 0.*Closest: classifier"):
        find_targets(Model(), ignore=["clasifier"])


def test_models_without_layers():
    with pytest.raises(TargetError, match="no Linear or Conv2d layer to prune; it holds ReLU, Seq"):
        find_targets(nn.Sequential(nn.ReLU()))
    with pytest.raises(TargetError, match=r"targets=\['head'\]"):
        find_targets(nn.Sequential(OrderedDict(head=nn.Linear(2, 2))))
    with pytest.raises(TargetError, match="Layers: 0"):
        find_targets(nn.Sequential(nn.Linear(2, 2)), ignore=["Linear"])
    with pytest.raises(TargetError, match="Wrap it"):
        find_targets(nn.Linear(2, 2))
    with pytest.raises(InputError, match="got int"):
        find_targets(3)


def test_layer_tied_to_an_embedding_is_left_out_or_refused():
    model = nn.ModuleDict({"embed": nn.Embedding(5, 4), "out": nn.Linear(4, 5)})
    model["fc"] = nn.Linear(4, 4)
    model["out"].weight = model["embed"].weight
    assert names(model) == ["fc"]
    with pytest.raises(TargetError, match="out: shares its weight with embed"):
        find_targets(model, ["Linear"])


def test_shared_module_counts_once():
    shared = nn.Linear(4, 4)
    model = nn.Sequential(shared, nn.ReLU(), shared)
    assert names(model) == ["0"]
    assert names(model, ["2"]) == ["2"]
    with pytest.raises(TargetError, match="no layer is left"):
        find_targets(model, ignore=["2"])


def test_tied_weights_count_once_and_must_be_targeted_together():
    model = nn.Sequential(nn.Linear(4, 4), nn.Linear(4, 4), nn.Linear(4, 4))
    model[2].weight = model[0].weight
    found = find_targets(model)
    assert [(t.name, [n for n, _ in t.twins]) for t in found] == [("0", ["2"]), ("1", [])]
    with pytest.raises(TargetError, match=r"0: shares its weight with 2.*not among"):
        find_targets(model, ["0"])
    model.register_parameter("extra", model[1].weight)
    with pytest.raises(TargetError, match="1: shares its weight with the model"):
        find_targets(model)


class Scaled(nn.Linear):
    def forward(self, x):
        return 2 * super().forward(x)


def test_layers_that_a_mask_would_not_reach_are_refused_by_name():
    with pytest.raises(TargetError, match=r"0: cannot be pruned: Scaled has a forward of its own"):
        find_targets(nn.Sequential(Scaled(2, 2)))
    patched = nn.Linear(2, 2)
    patched.forward = lambda x: x
    with pytest.raises(TargetError, match="forward of its own"):
        find_targets(nn.Sequential(patched))
    with pytest.raises(InputError, match="bypassed"):
        gnn.MaskedLinear.from_dense(patched, torch.ones(2, 2, dtype=torch.bool), Unstructured())
    with pytest.raises(TargetError, match="weight is computed"):
        find_targets(nn.Sequential(parametrizations.weight_norm(nn.Linear(2, 2))))
    compact = gnn.Linear.from_dense(nn.Linear(2, 2), torch.ones(2, 2, dtype=torch.bool))
    with pytest.raises(TargetError, match="1: cannot be pruned: it is compact"):
        find_targets(nn.Sequential(nn.Linear(2, 2), compact))
    assert names(nn.Sequential(nn.Linear(2, 2), compact), ignore=["1"]) == ["0"]


@pytest.mark.filterwarnings("ignore:Lazy modules")
def test_lazy_layers_are_refused():
    with pytest.raises(TargetError, match="run the model once"):
        find_targets(nn.Sequential(nn.LazyLinear(2)))


def test_multihead_attention():
    model = nn.ModuleDict({"attn": nn.MultiheadAttention(4, 2), "fc": nn.Linear(4, 4)})
    found = find_targets(model)
    assert [t.name for t in found] == ["attn.out_proj", "fc"]
    with pytest.raises(TargetError, match=r"'attn' is a MultiheadAttention.*'attn\.out_proj'"):
        find_targets(model, ["attn"])
    with pytest.raises(TargetError, match=r"'attn\.in_proj_weight' is a Parameter"):
        find_targets(model, ["attn.in_proj_weight"])


def test_a_weight_whose_memory_another_parameter_holds_is_refused():
    model = nn.Sequential(nn.Linear(8, 8), nn.Linear(8, 8), nn.Linear(8, 8))
    whole = torch.randn(16, 8)
    model[0].weight, model[1].weight = nn.Parameter(whole[:8]), nn.Parameter(whole[8:])
    assert [target.name for target in find_targets(model)] == ["0", "1", "2"]  # side by side
    model[1].weight = nn.Parameter(whole[4:12])
    with pytest.raises(
        TargetError, match=r"^[01]: .*shares memory with another Parameter, of [01]"
    ):
        find_targets(model)
    with pytest.raises(TargetError, match=r"^1: .*shares memory with another Parameter, of 0"):
        find_targets(model, ignore=["0"])
    assert [target.name for target in find_targets(model, ignore=["0", "1"])] == ["2"]


def test_memory_of_a_parametrization_is_not_given_zeros():
    """weight_norm keeps the memory of the Parameter it takes over; a twin of it is refused."""
    first, second = nn.Linear(8, 8), nn.Linear(8, 8)
    second.weight = first.weight
    parametrizations.weight_norm(first)
    with pytest.raises(TargetError, match=r"^1: cannot be pruned: its weight shares memory"):
        find_targets(nn.Sequential(first, second), ignore=["0"])
