# SPDX-License-Identifier: Apache-2.0
"""Every matrix that no pruned layer holds is named, with its share of all parameters."""

import json

import pytest
import torch
from torch import nn

import gossamer
from gossamer.nn.prunable import left_dense, left_lines


class Expert(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.up = nn.Parameter(torch.randn(4, 8, 8))

    def forward(self, x):
        return torch.einsum("bi,eij->bj", x, self.up)


class OwnForward(nn.Linear):
    def forward(self, x):
        return super().forward(x) * 2


def parametrized() -> nn.Linear:
    return nn.utils.parametrizations.weight_norm(nn.Linear(8, 8))


# Kind of module, and what its weights are called in a report.
KINDS = [
    (lambda: nn.LSTM(8, 8), "LSTM, which cannot be pruned"),
    (lambda: nn.GRU(8, 8, num_layers=2, bidirectional=True), "GRU, which cannot be pruned"),
    (lambda: nn.RNNCell(8, 8), "RNNCell, which cannot be pruned"),
    (lambda: nn.Conv1d(4, 4, 3), "Conv1d, which cannot be pruned"),
    (lambda: nn.Conv3d(2, 2, 3), "Conv3d, which cannot be pruned"),
    (lambda: nn.ConvTranspose2d(2, 2, 3), "ConvTranspose2d, which cannot be pruned"),
    (lambda: nn.Bilinear(4, 4, 2), "Bilinear, which cannot be pruned"),
    (lambda: nn.Embedding(8, 4), "embeddings, which are looked up"),
    (lambda: nn.MultiheadAttention(8, 2), "q, k and v of MultiheadAttention"),
    (Expert, "3-D parameters of Expert, which cannot be pruned"),
    (parametrized, "weights that are computed"),
    (lambda: OwnForward(8, 8), "OwnForward layers with a forward of their own"),
    (lambda: nn.Linear(8, 8), "layers that were not among the targets"),
    (lambda: nn.Conv2d(2, 2, 3), "layers that were not among the targets"),
]


@pytest.mark.parametrize(("make", "words"), KINDS)
def test_every_kind_is_named_with_its_share(make, words):
    torch.manual_seed(0)
    model = nn.ModuleDict({"fc": nn.Linear(8, 8), "other": make()})
    report = gossamer.sparsify(model, sparsity=0.5, targets=["fc"])
    held = {n: p.numel() for n, p in model["other"].named_parameters() if p.ndim >= 2}
    rows = [row for row in report.left_dense if words in row.reason]
    if words.startswith("q, k"):
        held.pop("out_proj.weight")
    assert [name.removeprefix("other.") for name in rows[0].names] == list(held)
    assert rows[0].weights == sum(held.values())
    total = sum(p.numel() for p in model.parameters())
    assert rows[0].share == pytest.approx(sum(held.values()) / total)
    assert f"{rows[0].share:.1%} of the weights are in {words}" in str(report)
    data = json.loads(json.dumps(report.to_dict()))
    assert words in data["left_dense"][0]["reason"]


@pytest.mark.parametrize("form", ["masked", "compact"])
def test_all_parameters_are_accounted_for(form):
    model = nn.ModuleDict(
        {
            "embedding": nn.Embedding(16, 8),
            "blocks": nn.ModuleList([nn.Linear(8, 8, bias=False) for _ in range(4)]),
            "lm_head": nn.Linear(8, 16, bias=False),
            "classifier": nn.Linear(8, 2, bias=False),
        }
    )
    model["lm_head"].weight = model["embedding"].weight
    total = sum(p.numel() for p in model.parameters())
    gossamer.sparsify(model, sparsity=0.5, ignore=["blocks.3", "blocks.2"])
    if form == "compact":
        gossamer.compact(model)
    rows = {row.reason.split(",")[0]: row for row in left_dense(model)}
    assert rows["embeddings and the layers tied to them"].weights == 16 * 8
    assert rows["heads"].names == ["classifier.weight"]
    unmasked = rows["layers that were not among the targets"]
    assert unmasked.names == ["blocks.2.weight", "blocks.3.weight"]
    assert sum(row.weights for row in rows.values()) == total - 2 * 64
    assert sum(row.share for row in rows.values()) == pytest.approx(1 - 2 * 64 / total)
    assert "blocks.*.weight." in str(unmasked)


def test_small_parts_have_no_line_and_long_lists_are_cut():
    model = nn.ModuleDict({f"e{i}": nn.Embedding(4, 4) for i in range(5)})
    model["big"] = nn.Linear(400, 400)
    model["few"] = nn.Bilinear(1, 1, 4)
    rows = left_dense(model)
    assert [row.weights for row in rows] == [400 * 400, 5 * 16, 4]
    assert len(left_lines(rows)) == 1
    assert str(rows[1]).endswith("e0.weight, e1.weight, e2.weight and 2 more.")


def test_explain_names_what_it_has_no_row_for():
    torch.manual_seed(0)
    model = nn.ModuleDict({"a": nn.Linear(64, 64, bias=False), "rnn": nn.LSTM(8, 8, bias=False)})
    gossamer.sparsify(model, sparsity=0.9)
    share = 512 / (64 * 64 + 512)
    for shown in (model, gossamer.compile(model, tokens=(4,))):
        found = gossamer.explain(shown)
        assert [row.share for row in found.left_dense] == [pytest.approx(share)]
        assert "of the weights are in LSTM" in str(found)


def test_experts_and_grouped_convolutions_of_transformers():
    transformers = pytest.importorskip("transformers")
    torch.manual_seed(0)
    small = {"hidden_size": 16, "intermediate_size": 32, "num_hidden_layers": 2, "vocab_size": 32}
    config = transformers.MixtralConfig(
        **small, num_attention_heads=2, num_key_value_heads=1, num_local_experts=4
    )
    report = gossamer.sparsify(transformers.MixtralForCausalLM(config), sparsity=0.5)
    assert not any("experts" in name for row in report.left_dense for name in row.names)
    routers = next(row for row in report.left_dense if "Router" in row.reason)
    assert routers.share < 0.05
    config = transformers.SqueezeBertConfig(
        **small, num_attention_heads=4, embedding_size=16, max_position_embeddings=16
    )
    report = gossamer.sparsify(transformers.SqueezeBertModel(config), sparsity=0.5)
    convolutions = next(row for row in report.left_dense if "Conv1d" in row.reason)
    assert convolutions.share > 0.4
