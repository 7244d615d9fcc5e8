# SPDX-License-Identifier: Apache-2.0
"""Neurons in another order: the same encoder, fewer sums moved."""

import torch
from transformers import BertConfig, BertModel

from gossamer.ops.engines.encoder import PackedEncoder
from gossamer.running.encoder import packing as run_encoder
from gossamer.running.encoder import read_layers
from gossamer.running.encoder.packing import moved_rows, reorder_neurons


def bert():
    """Half of the neurons keep many weights of `down`, half of them nearly none."""
    torch.manual_seed(0)
    config = BertConfig(
        vocab_size=30, hidden_size=24, num_hidden_layers=2, num_attention_heads=3,
        intermediate_size=512,
    )  # fmt: skip
    model = BertModel(config, add_pooling_layer=False).eval()
    with torch.no_grad():
        for layer in model.encoder.layer:
            kept = torch.rand(24, 512) < torch.where(torch.arange(512) % 2 == 0, 0.3, 0.002)
            layer.output.dense.weight *= kept
            layer.intermediate.dense.bias.normal_()
    return model


def test_the_result_stays_and_fewer_rows_move():
    layers = read_layers(bert().encoder)
    reordered = reorder_neurons(layers)
    assert reordered.moved_after < 0.8 * reordered.moved_before
    x = torch.randn(40, 24)
    before, after = (PackedEncoder(some, 24, "fp32") for some in (layers, reordered.layers))
    torch.testing.assert_close(before(x, [40]), after(x, [40]), rtol=1e-5, atol=1e-5)


def test_moved_rows_are_counted_by_block():
    mask = torch.zeros(3, 300, dtype=torch.bool)
    assert moved_rows(mask) == 0
    mask[0, 0] = mask[0, 1] = mask[1, 128] = mask[2, 299] = True
    assert moved_rows(mask) == 3
    mask[0, 200] = True
    assert moved_rows(mask) == 4
    assert moved_rows(mask, block=300) == 3


def test_a_uniform_mask_is_not_tried(monkeypatch):
    tried = []
    monkeypatch.setattr(run_encoder, "duel", lambda *calls: tried.append(calls))
    torch.manual_seed(0)
    config = BertConfig(
        vocab_size=30, hidden_size=24, num_hidden_layers=1, num_attention_heads=3,
        intermediate_size=256,
    )  # fmt: skip
    run_encoder.pack_encoder(BertModel(config, add_pooling_layer=False).eval().encoder, "fp32")
    assert tried == []
