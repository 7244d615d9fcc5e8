# SPDX-License-Identifier: Apache-2.0
"""Architectures as data: every row of the table, and what is not in it."""

from collections.abc import Callable

import pytest
import torch
from artifact_tools import assert_same_model, edit_manifest, sparsify
from torch import nn
from torch.nn import functional

from gossamer.errors import ArtifactError
from gossamer.io import load, save
from gossamer.io.artifact import open_artifact
from gossamer.io.artifact.architecture import describe
from gossamer.io.artifact.skeleton import CONTAINERS, LAYERS
from gossamer.nn.layers.experts import GroupedLinear
from gossamer.zoo import MLP, TinyEncoder

EXAMPLES: dict[str, Callable[[], list[nn.Module]]] = {
    "Linear": lambda: [nn.Linear(3, 4), nn.Linear(3, 4, bias=False), nn.Linear(0, 4)],
    "Conv1d": lambda: [nn.Conv1d(2, 4, 3, padding="same", bias=False)],
    "Conv2d": lambda: [nn.Conv2d(2, 4, (3, 1), 2, (1, 0), 2, 2, padding_mode="reflect")],
    "GroupedLinear": lambda: [GroupedLinear(3, 4, 5), GroupedLinear(1, 4, 5, bias=False)],
    "Embedding": lambda: [nn.Embedding(5, 3, padding_idx=1), nn.Embedding(5, 3, max_norm=1.5)],
    "EmbeddingBag": lambda: [
        nn.EmbeddingBag(5, 3, padding_idx=1, mode="sum", sparse=True),
        nn.EmbeddingBag(5, 3, mode="max", include_last_offset=True, max_norm=1.5),
    ],
    "LayerNorm": lambda: [
        nn.LayerNorm(4),
        nn.LayerNorm((2, 4), eps=1e-3, bias=False),
        nn.LayerNorm(4, elementwise_affine=False),
    ],
    "RMSNorm": lambda: [nn.RMSNorm(4), nn.RMSNorm((2, 4), eps=1e-3, elementwise_affine=False)],
    "GroupNorm": lambda: [nn.GroupNorm(2, 4)],
    "BatchNorm1d": lambda: [nn.BatchNorm1d(3), nn.BatchNorm1d(3, momentum=None, affine=False)],
    "BatchNorm2d": lambda: [nn.BatchNorm2d(3, track_running_stats=False)],
    "ReLU": lambda: [nn.ReLU(inplace=True)],
    "LeakyReLU": lambda: [nn.LeakyReLU(0.3)],
    "ELU": lambda: [nn.ELU(0.5)],
    "GELU": lambda: [nn.GELU("tanh")],
    "SiLU": lambda: [nn.SiLU()],
    "Mish": lambda: [nn.Mish()],
    "Hardswish": lambda: [nn.Hardswish()],
    "Softplus": lambda: [nn.Softplus(2.0, 10)],
    "Tanh": lambda: [nn.Tanh()],
    "Sigmoid": lambda: [nn.Sigmoid()],
    "Softmax": lambda: [nn.Softmax(-1)],
    "LogSoftmax": lambda: [nn.LogSoftmax(1)],
    "Dropout": lambda: [nn.Dropout(0.25)],
    "Dropout2d": lambda: [nn.Dropout2d(0.25)],
    "Identity": lambda: [nn.Identity()],
    "Flatten": lambda: [nn.Flatten(2, -1)],
    "MaxPool2d": lambda: [nn.MaxPool2d(2), nn.MaxPool2d((2, 3), 1, ceil_mode=True)],
    "AvgPool2d": lambda: [nn.AvgPool2d(2, divisor_override=3)],
    "AdaptiveAvgPool2d": lambda: [nn.AdaptiveAvgPool2d(1), nn.AdaptiveAvgPool2d((2, 3))],
    "MultiheadAttention": lambda: [
        nn.MultiheadAttention(8, 2, batch_first=True),
        nn.MultiheadAttention(8, 2, bias=False, add_bias_kv=True, kdim=4, vdim=6),
    ],
    "TransformerEncoderLayer": lambda: [
        nn.TransformerEncoderLayer(8, 2, 16, batch_first=True, norm_first=True, activation="gelu"),
        nn.TransformerEncoderLayer(8, 2, 16, bias=False),
    ],
}


@pytest.mark.filterwarnings("ignore:Initializing zero-element")
@pytest.mark.parametrize("name", LAYERS)
def test_every_layer_of_the_table_is_rebuilt(tmp_path, name):
    for number, layer in enumerate(EXAMPLES[name]()):
        path = tmp_path / str(number)
        save(layer, path)
        again = load(path)
        assert_same_model(layer.eval(), again)
        assert repr(again) == repr(layer)


@pytest.mark.filterwarnings("ignore:enable_nested_tensor")
@pytest.mark.parametrize("norm", [None, nn.LayerNorm(8)])
def test_transformer_encoder_is_rebuilt(tmp_path, norm):
    layer = nn.TransformerEncoderLayer(8, 2, 16, batch_first=True, activation="gelu")
    model = nn.TransformerEncoder(layer, 3, norm)
    save(model, tmp_path / "a")
    again = load(tmp_path / "a")
    assert_same_model(model.eval(), again)
    x = torch.randn(2, 3, 8)
    torch.testing.assert_close(model(x), again(x))


def test_containers_keep_names_and_order(tmp_path):
    model = nn.Sequential()
    # Twelve, because the text "10" sorts before "2".
    for number in range(12):
        model.add_module(f"step{number}", nn.Linear(number + 1, number + 2))
    nested = nn.ModuleDict({"z": nn.ModuleList([model, MLP((3, 2))]), "a": nn.Identity()})
    save(nested, tmp_path / "a")
    again = load(tmp_path / "a")
    assert_same_model(nested, again)
    assert list(again) == ["z", "a"]
    assert list(CONTAINERS) == ["Sequential", "ModuleList", "ModuleDict"]


class Custom(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.fc = nn.Linear(3, 3)

    def forward(self, x):
        return self.fc(x).relu()


class MyLinear(nn.Linear):
    def forward(self, input):
        return -super().forward(input)


def hooked() -> nn.Module:
    model = MLP((3, 2))
    model.head.register_forward_hook(lambda module, args, output: output + 1)
    return model


def changed_inside() -> nn.Module:
    model = nn.TransformerEncoderLayer(8, 2, 16)
    model.dropout1.p = 0.9
    return model


def replaced_inside() -> nn.Module:
    model = TinyEncoder(5, 2, width=8, num_heads=2)
    model.norm = nn.Identity()
    return model


def different_layers() -> nn.Module:
    layer = nn.TransformerEncoderLayer(8, 2, 16)
    model = nn.TransformerEncoder(layer, 2, enable_nested_tensor=False)
    model.layers[1] = nn.TransformerEncoderLayer(8, 2, 32)
    return model


def odd_activation() -> nn.Module:
    return nn.TransformerEncoderLayer(8, 2, 16, activation=functional.silu)


def extra_parameter() -> nn.Module:
    model = nn.Sequential(nn.Linear(2, 2))
    model.scale = nn.Parameter(torch.ones(1))
    return model


def very_deep() -> nn.Module:
    model: nn.Module = nn.Linear(2, 2)
    for _ in range(40):
        model = nn.Sequential(model)
    return model


UNKNOWN = [
    Custom,
    lambda: nn.Sequential(MyLinear(2, 2)),
    hooked,
    changed_inside,
    replaced_inside,
    different_layers,
    odd_activation,
    extra_parameter,
    very_deep,
]


@pytest.mark.parametrize("build", UNKNOWN)
def test_what_would_not_come_back_the_same_asks_for_a_model(tmp_path, build):
    model = sparsify(build(), "masked")
    assert describe(model) is None
    save(model, tmp_path / "a")
    with pytest.raises(ArtifactError, match="model="):
        load(tmp_path / "a")
    fresh = build()
    assert load(tmp_path / "a", model=fresh) is fresh
    assert_same_model(model, fresh)


ROOT = {"kind": "torch", "name": "Linear", "key": "", "children": []}
LINEAR = {"in_features": 3, "out_features": 4, "bias": True}


@pytest.mark.parametrize(
    ("node", "text"),
    [
        ({**ROOT, "name": "os.system", "args": {}}, "no layer is called"),
        ({**ROOT, "name": "Module", "args": {}}, "no layer is called"),
        ({"kind": "zoo", "name": "evil", "args": {}, "key": ""}, "no zoo model"),
        ({"kind": "zoo", "name": "mlp", "args": {"sizes": 3}, "key": ""}, "refused"),
        ({"kind": "zoo", "name": "mlp", "args": {"sizes": [3, 2**31]}, "key": ""}, "refused"),
        ({"kind": "zoo", "name": "mlp", "args": {"self": 3}, "key": ""}, "refused"),
        ({**ROOT, "args": {**LINEAR, "device": "cuda"}}, "takes the arguments"),
        ({**ROOT, "args": {"in_features": 3}}, "takes the arguments"),
        ({**ROOT, "args": {**LINEAR, "in_features": -1}}, "must be an integer"),
        ({**ROOT, "args": {**LINEAR, "in_features": True}}, "must be an integer"),
        ({**ROOT, "args": {**LINEAR, "in_features": 3.0}}, "must be an integer"),
        ({**ROOT, "args": {**LINEAR, "in_features": 2**41}}, "must be an integer"),
        ({**ROOT, "args": {**LINEAR, "bias": "yes"}}, "must be true or false"),
        ({**ROOT, "args": {**LINEAR, "out_features": 2**40}}, r"shape|refused"),
        ({**ROOT, "args": LINEAR, "children": [{**ROOT, "args": LINEAR}]}, "takes no children"),
        ({**ROOT, "name": "Sequential", "args": {"x": 1}}, "takes the arguments"),
        (
            {**ROOT, "name": "Sequential", "args": {}, "children": [{**ROOT, "args": LINEAR}] * 2},
            "same key",
        ),
        (
            {
                **ROOT,
                "name": "ModuleList",
                "args": {},
                "children": [{**ROOT, "args": LINEAR, "key": "7"}],
            },
            "keys of a ModuleList",
        ),
        (
            {
                **ROOT,
                "name": "Sequential",
                "args": {},
                "children": [{**ROOT, "args": LINEAR, "key": "forward"}],
            },
            "refused",
        ),
        (
            {
                **ROOT,
                "name": "TransformerEncoder",
                "args": {"num_layers": 10**9, "enable_nested_tensor": False},
            },
            "must be an integer in",
        ),
        (
            {
                **ROOT,
                "name": "TransformerEncoder",
                "args": {"num_layers": 1000, "enable_nested_tensor": False},
                "children": [{**ROOT, "key": "layer", "args": LINEAR}],
            },
            "more tensors than the artifact holds",
        ),
        (
            {
                **ROOT,
                "name": "Sequential",
                "args": {},
                "children": [{"kind": "transformers", "name": "BertModel"}],
            },
            "transformers",
        ),
        ({"kind": "transformers", "name": "BertModel"}, "config.json: is missing"),
    ],
)
def test_hostile_architectures_are_refused(tmp_path, node, text):
    save(nn.Linear(3, 4), tmp_path / "a")
    edit_manifest(tmp_path / "a", lambda content: content.update(architecture=node))
    with pytest.raises(ArtifactError, match=text):
        load(tmp_path / "a")


def test_description_is_data(tmp_path):
    save(MLP((3, 2)), tmp_path / "a")
    with open_artifact(tmp_path / "a") as artifact:
        node = artifact.manifest.architecture
    assert (node.kind, node.name, node.args["sizes"]) == ("zoo", "mlp", (3, 2))
