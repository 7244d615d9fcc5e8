# SPDX-License-Identifier: Apache-2.0
"""The dense twin that a pruned model is timed against holds nothing sparse."""

import pytest
import torch
from torch import nn
from transformers import BertConfig, BertModel

import gossamer
from gossamer.running.encoder import NativeEncoder
from gossamer.running.layers import compile as compile_model
from gossamer.running.packed import PackedConv2d, PackedLinear
from gossamer.runs.executor import _AlwaysDense


@pytest.mark.parametrize("tune", ["on", "off"])
def test_the_dense_twin_is_dense(tune, monkeypatch):
    monkeypatch.setenv("GOSSAMER_TUNE", tune)
    config = BertConfig(
        vocab_size=30, hidden_size=24, num_hidden_layers=1, num_attention_heads=3,
        intermediate_size=32,
    )  # fmt: skip
    models = {
        BertModel(config): None,
        nn.Sequential(nn.Conv2d(4, 8, 3), nn.ReLU()): torch.randn(1, 4, 9, 9),
    }
    for model, example in models.items():
        gossamer.sparsify(model.eval(), sparsity=0.9)
        twin = compile_model(model, (1, 64), chooser=_AlwaysDense(), example=example)
        kinds = {type(module) for module in twin.modules()}
        assert not kinds & {NativeEncoder, PackedLinear, PackedConv2d}
