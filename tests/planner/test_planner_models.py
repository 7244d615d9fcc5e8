# SPDX-License-Identifier: Apache-2.0
"""Shapes of models without their weights, against the models themselves."""

import json

import pytest
import torch
from torch import nn

import gossamer
from gossamer.errors import InputError
from gossamer.planner.model_sources import describe
from gossamer.planner.model_tracing import find_blocks, trace_shape
from gossamer.zoo import GPT, MLP, TinyEncoder


def tiny(device="meta", **more):
    with torch.device(device):
        return GPT(50, width=32, num_heads=2, num_layers=3, context=16, **more)


def saved_numbers(model, ids):
    """What autograd really keeps beside the weights, each storage once."""
    held = {t.untyped_storage().data_ptr() for t in (*model.parameters(), *model.buffers())}
    found = {}

    def keep(tensor):
        storage = tensor.untyped_storage()
        if storage.data_ptr() not in held:
            found[storage.data_ptr()] = (storage.nbytes(), tensor)
        return tensor

    with torch.autograd.graph.saved_tensors_hooks(keep, lambda t: t):
        logits = model(ids)
        rows = logits.flatten(0, -2)
        nn.functional.cross_entropy(rows, torch.zeros(rows.shape[0], dtype=torch.long))
    return sum(count for count, _ in found.values()) / 4


@pytest.mark.parametrize("tied", [False, True])
def test_parameters_and_operations_of_a_gpt(tied):
    model = tiny(tied=tied)
    shape = trace_shape(model, torch.Size([16]), name="g", tokens=16, ids=True)
    assert shape.parameters == sum(p.numel() for p in model.parameters())
    assert shape.prunable == 3 * 12 * 32 * 32
    assert shape.blocks == 3
    assert [unit.is_block for unit in shape.units] == [False, True, True, True, False]
    assert shape.units[-1].tied == (50 * 32 if tied else 0)
    block = shape.units[1]
    assert block.flops_prunable == 24 * 32 * 32
    assert block.flops_rest == 4 * 16 * 32
    assert shape.units[-1].flops_rest == 2 * 32 * 50
    assert block.output == 32
    assert block.largest == 4 * 32 * 32


def test_saved_activations_are_counted_exactly():
    torch.manual_seed(0)
    model = tiny("cpu")
    shape = trace_shape(model, torch.Size([16]), name="g", tokens=16, ids=True)
    real = saved_numbers(model, torch.zeros(1, 16, dtype=torch.long))
    assert sum(unit.saved for unit in shape.units) * 16 == pytest.approx(real, rel=1e-6)


def test_a_traced_model_is_left_alone():
    model = tiny("cpu").eval()
    before = {name: tensor.clone() for name, tensor in model.state_dict().items()}
    trace_shape(model, torch.Size([4]), name="g", tokens=4, ids=True)
    assert not model.training
    assert all(torch.equal(before[name], t) for name, t in model.state_dict().items())
    assert not any(module._forward_hooks for module in model.modules())


def test_layers_that_are_themselves_blocks():
    with torch.device("meta"):
        model = MLP((8, 16, 16, 4))
    shape = trace_shape(model, torch.Size([8]), name="m", tokens=1, ids=False)
    assert [unit.prunable for unit in shape.units] == [0, 8 * 16, 16 * 16, 0]
    assert sum(unit.flops_prunable for unit in shape.units) == 2 * (8 * 16 + 16 * 16)
    assert shape.parameters == sum(p.numel() for p in model.parameters())


def test_rules_say_what_is_pruned():
    shape = trace_shape(
        tiny(), torch.Size([16]), name="g", tokens=16, ids=True, ignore=["*.qkv", "*.output"]
    )
    assert shape.prunable == 3 * 8 * 32 * 32


def test_blocks_are_the_longest_list_of_equal_children():
    assert find_blocks(tiny()) == ["blocks.0", "blocks.1", "blocks.2"]
    assert find_blocks(nn.Linear(2, 2)) == []


def test_a_recipe_says_model_batch_and_sparsity():
    found = describe("train-gpt", overrides=["sparsity=0.8"])
    assert (found.batch, found.sparsity, found.recompute) == (16, 0.8, 0)
    assert found.shape.tokens == 128
    assert found.shape.prunable == 4 * 12 * 128 * 128


def test_images_take_their_sizes_from_data():
    with pytest.raises(InputError, match="--data zoo:images"):
        describe("train-gradual")
    assert describe("train-gradual", data="zoo:images").shape.tokens == 1


def test_an_artifact_is_planned_from_its_manifest(tmp_path):
    model = GPT(50, width=32, num_heads=2, num_layers=2, context=16)
    gossamer.sparsify(model, sparsity=0.75)
    gossamer.save(model, tmp_path / "pruned")
    found = describe(str(tmp_path / "pruned"))
    assert found.sparsity == pytest.approx(0.75)
    assert found.shape.prunable == 2 * 12 * 32 * 32
    with pytest.raises(InputError, match="tokens: pruned takes 1 to 16, got 17"):
        describe(str(tmp_path / "pruned"), tokens=17)


def test_a_config_without_weights_is_enough(tmp_path):
    transformers = pytest.importorskip("transformers")
    config = transformers.LlamaConfig(
        vocab_size=64, hidden_size=32, intermediate_size=64, num_hidden_layers=2,
        num_attention_heads=2, num_key_value_heads=2, architectures=["LlamaForCausalLM"],
    )  # fmt: skip
    (tmp_path / "config.json").write_text(json.dumps(config.to_dict()))
    shape = describe(str(tmp_path), tokens=8).shape
    with torch.device("meta"):
        model = transformers.LlamaForCausalLM(config)
    assert shape.parameters == sum(p.numel() for p in model.parameters())
    assert shape.blocks == 2


def test_modules_and_missing_files():
    assert describe(tiny()).shape.tokens == 16
    encoder = TinyEncoder(50, 3, width=16, num_heads=2, ffn_width=32, max_tokens=8)
    assert describe(encoder).shape.blocks == 2
    with pytest.raises(InputError, match="no input can be made up"):
        describe(nn.Linear(2, 2))
    with pytest.raises(InputError, match="there is no such file"):
        describe("nowhere/")
