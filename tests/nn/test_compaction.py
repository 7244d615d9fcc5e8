# SPDX-License-Identifier: Apache-2.0
import copy

import pytest
import torch
from torch import nn

import gossamer.nn as gnn
from gossamer.errors import InputError
from gossamer.nn.layers import MaskedConv2d, MaskedOutProj
from gossamer.nn.surgery import disable_fast_paths, replace_module
from gossamer.nn.surgery.compaction import compact
from gossamer.patterns import Unstructured

ANY = Unstructured()

OPTIMIZERS = {
    "sgd": lambda params: torch.optim.SGD(params, 0.05, momentum=0.9, weight_decay=0.01),
    "nesterov": lambda params: torch.optim.SGD(params, 0.05, momentum=0.9, nesterov=True),
    "adamw": lambda params: torch.optim.AdamW(params, 0.01, foreach=False),
    "adamw-foreach": lambda params: torch.optim.AdamW(params, 0.01, foreach=True),
    "adamw-fused": lambda params: torch.optim.AdamW(params, 0.01, fused=True),
    "adamw-amsgrad": lambda params: torch.optim.AdamW(params, 0.01, amsgrad=True),
}


def network(dtype=torch.float32):
    torch.manual_seed(0)
    return nn.Sequential(nn.Linear(13, 24), nn.Tanh(), nn.Linear(24, 9, bias=False), nn.Tanh(),
                         nn.Linear(9, 3)).to(dtype)  # fmt: skip


def mask_layers(model, density=0.3, seed=0):
    generator = torch.Generator().manual_seed(seed)
    for module in list(model.modules()):
        if type(module) is nn.Linear:
            shape = module.weight.shape
            mask = torch.rand(shape, generator=generator) < density
            replace_module(model, module, gnn.MaskedLinear.from_dense(module, mask, ANY))
    return model


def batches(num, dtype, seed=1):
    generator = torch.Generator().manual_seed(seed)
    for _ in range(num):
        x = torch.randn(8, 13, generator=generator, dtype=dtype)
        yield x, x[:, :3].sin()


def train(model, optimizer, data, clip=None):
    losses = []
    for x, y in data:
        optimizer.zero_grad()
        loss = nn.functional.mse_loss(model(x), y)
        loss.backward()
        if clip:
            nn.utils.clip_grad_norm_(model.parameters(), clip)
        optimizer.step()
        losses.append(loss.item())
    return torch.tensor(losses, dtype=torch.float64)


def weights(model):
    return [m.to_dense().weight for m in model.modules() if hasattr(m, "to_dense")]


@pytest.mark.parametrize("name", OPTIMIZERS)
@pytest.mark.parametrize(("dtype", "bound"), [(torch.float64, 1e-12), (torch.float32, 1e-6)])
def test_compacting_in_mid_run_changes_nothing(name, dtype, bound):
    model = mask_layers(network(dtype))
    optimizer = OPTIMIZERS[name](model.parameters())
    train(model, optimizer, batches(10, dtype))
    twin = copy.deepcopy(model)
    twin_optimizer = OPTIMIZERS[name](twin.parameters())
    twin_optimizer.load_state_dict(copy.deepcopy(optimizer.state_dict()))
    result = compact(twin, twin_optimizer)
    assert result.compacted == ["0", "2", "4"]
    assert result.num_values == sum(m.nnz for m in model.modules() if hasattr(m, "nnz"))
    masked = train(model, optimizer, batches(25, dtype, seed=2))
    compacted = train(twin, twin_optimizer, batches(25, dtype, seed=2))
    torch.testing.assert_close(compacted, masked, rtol=0, atol=bound)
    for a, b in zip(weights(twin), weights(model), strict=True):
        torch.testing.assert_close(a, b, rtol=0, atol=10 * bound)


@pytest.mark.parametrize("mode", ["jit", "resident", "kernel"])
@pytest.mark.parametrize("name", ["sgd", "adamw"])
@pytest.mark.parametrize(("dtype", "bound"), [(torch.float64, 1e-12), (torch.float32, 1e-6)])
def test_fifty_steps_equal_masked_dense_training(mode, name, dtype, bound):
    masked = mask_layers(network(dtype))
    compacted = copy.deepcopy(masked)
    compact(compacted, mode=mode)
    runs = [
        train(model, OPTIMIZERS[name](model.parameters()), batches(50, dtype), clip=1.0)
        for model in (masked, compacted)
    ]
    torch.testing.assert_close(runs[1], runs[0], rtol=0, atol=bound)
    assert runs[0][-1] < runs[0][0]


def test_momentum_from_before_pruning_is_carried_at_kept_positions():
    model = network(torch.float64)
    optimizer = OPTIMIZERS["adamw"](model.parameters())
    train(model, optimizer, batches(10, torch.float64))
    mask_layers(model)
    twin = copy.deepcopy(model)
    twin_optimizer = OPTIMIZERS["adamw"](twin.parameters())
    twin_optimizer.load_state_dict(copy.deepcopy(optimizer.state_dict()))
    compact(twin, twin_optimizer)
    masked = train(model, optimizer, batches(20, torch.float64, seed=2))
    compacted = train(twin, twin_optimizer, batches(20, torch.float64, seed=2))
    torch.testing.assert_close(compacted, masked, rtol=0, atol=1e-12)


def test_next_step_is_bitwise_equal_for_the_same_gradient():
    model = mask_layers(network())
    optimizer = OPTIMIZERS["adamw"](model.parameters())
    train(model, optimizer, batches(5, torch.float32))
    x, y = next(batches(1, torch.float32, seed=3))
    optimizer.zero_grad()
    nn.functional.mse_loss(model(x), y).backward()
    twin = copy.deepcopy(model)
    twin_optimizer = OPTIMIZERS["adamw"](twin.parameters())
    twin_optimizer.load_state_dict(copy.deepcopy(optimizer.state_dict()))
    for a, b in zip(twin.parameters(), model.parameters(), strict=True):
        a.grad = b.grad.clone()
    compact(twin, twin_optimizer)
    optimizer.step()
    twin_optimizer.step()
    for a, b in zip(weights(twin), weights(model), strict=True):
        assert torch.equal(a, b)


def test_groups_learning_rates_and_order_are_kept():
    model = mask_layers(network())
    groups = [
        {"params": [model[0].weight, model[0].bias], "lr": 0.1},
        {"params": [model[2].weight, model[4].bias, model[4].weight], "weight_decay": 0.5},
    ]
    optimizer = torch.optim.SGD(groups, 0.2, momentum=0.9)
    train(model, optimizer, batches(2, torch.float32))
    compact(model, optimizer)
    first, second = optimizer.param_groups
    assert first["params"][0] is model[0].values
    assert first["params"][1] is model[0].bias
    assert first["lr"] == 0.1
    assert second["params"][0] is model[2].values
    assert second["params"][1] is model[4].bias
    assert second["params"][2] is model[4].values
    assert second["weight_decay"] == 0.5
    assert all(s["momentum_buffer"].shape == p.shape for p, s in optimizer.state.items())
    fresh = torch.optim.SGD(
        [{"params": g["params"]} for g in optimizer.param_groups], 0.2, momentum=0.9
    )
    fresh.load_state_dict(optimizer.state_dict())


@pytest.mark.parametrize("density", [0.0, 1.0])
@pytest.mark.parametrize("name", OPTIMIZERS)
def test_nothing_kept_and_everything_kept(density, name):
    model = mask_layers(network(), density)
    optimizer = OPTIMIZERS[name](model.parameters())
    train(model, optimizer, batches(2, torch.float32))
    compact(model, optimizer)
    losses = train(model, optimizer, batches(3, torch.float32), clip=1.0)
    assert losses.isfinite().all()
    assert model[0].nnz == density * 13 * 24


def test_optimizer_that_does_not_hold_the_weights_is_fine():
    model = mask_layers(network())
    optimizer = torch.optim.SGD([model[0].bias], 0.1)
    compact(model, optimizer)
    assert len(optimizer.param_groups[0]["params"]) == 1
    assert isinstance(model[2], gnn.Linear)


def test_frozen_weights_stay_frozen():
    model = mask_layers(network())
    model[0].weight.requires_grad_(False)
    compact(model)
    assert not model[0].values.requires_grad
    assert model[2].values.requires_grad


def snapshot(model, optimizer=None):
    kinds = [type(m) for m in model.modules()]
    held = [id(p) for g in optimizer.param_groups for p in g["params"]] if optimizer else []
    return kinds, [id(p) for p in model.parameters()], held


def test_unknown_state_is_refused_before_anything_changes():
    model = mask_layers(network())
    optimizer = OPTIMIZERS["adamw"](model.parameters())
    train(model, optimizer, batches(2, torch.float32))
    optimizer.state[model[4].weight]["factored"] = torch.ones(3)
    before = snapshot(model, optimizer)
    with pytest.raises(InputError, match=r"4\.weight: AdamW keeps state 'factored' of shape \[3\]"):
        compact(model, optimizer)
    assert snapshot(model, optimizer) == before


def test_refusals_name_the_layer_and_change_nothing():
    with pytest.raises(InputError, match="no masked layer"):
        compact(network())
    model = mask_layers(network())
    before = snapshot(model)
    with pytest.raises(InputError, match="expected a torch optimizer, got list"):
        compact(model, [model[0].weight])
    handle = model[2].weight.register_hook(lambda g: g)
    with pytest.raises(InputError, match=r"2\.weight: a hook"):
        compact(model)
    handle.remove()
    with pytest.raises(InputError, match="Wrap it"):
        compact(model[0])
    model.register_parameter("alias", model[4].weight)
    with pytest.raises(InputError, match=r"4\.weight is also a parameter of the model"):
        compact(model)
    del model.alias
    assert snapshot(model) == before


def test_what_a_layer_carries_comes_along_or_leaves_it_masked():
    model, seen = mask_layers(network()), []
    model[0].register_forward_hook(lambda *_: seen.append(1))
    model[0].tag = "mine"
    model[2].register_buffer("steps", torch.zeros(1))
    model[4].register_state_dict_post_hook(lambda *_: None)
    x = torch.randn(4, 13)
    before = model(x)
    result = compact(model)
    torch.testing.assert_close(model(x), before)
    assert result.compacted == ["0"]
    assert (len(seen), model[0].tag) == (2, "mine")
    assert "'steps'" in result.left_masked["2"]
    assert "a state_dict hook" in result.left_masked["4"]


def test_a_masked_layer_with_a_forward_of_its_own_stays_masked():
    class Mine(gnn.MaskedLinear):
        def forward(self, x):
            return 2 * super().forward(x)

    mask = torch.rand(8, 8) < 0.5
    model = nn.Sequential(Mine.from_dense(nn.Linear(8, 8), mask, ANY))
    x = torch.randn(2, 8)
    before = model(x)
    assert "class of its own" in compact(model).left_masked["0"]
    assert torch.equal(model(x), before)


def test_tied_layers_stay_tied():
    first, second = nn.Linear(8, 8), nn.Linear(8, 8)
    second.weight = first.weight
    model = nn.Sequential(first, second)
    mask = torch.rand(8, 8) < 0.5
    for index, layer in enumerate([first, second]):
        model[index] = gnn.MaskedLinear.from_dense(layer, mask, ANY)
    expected = model(torch.ones(2, 8))
    optimizer = OPTIMIZERS["adamw"](model.parameters())
    compact(model, optimizer)
    assert model[0].values is model[1].values
    assert model[0].mask_bits is model[1].mask_bits
    assert model[0].bias is not model[1].bias
    assert len(optimizer.param_groups[0]["params"]) == 3
    torch.testing.assert_close(model(torch.ones(2, 8)), expected)


def test_tied_layers_with_different_masks_are_refused():
    first, second = nn.Linear(8, 8), nn.Linear(8, 8)
    second.weight = first.weight
    model = nn.Sequential(
        gnn.MaskedLinear.from_dense(first, torch.ones(8, 8, dtype=torch.bool), ANY),
        gnn.MaskedLinear.from_dense(second, torch.zeros(8, 8, dtype=torch.bool), ANY),
    )
    with pytest.raises(InputError, match="1 shares the weight of 0"):
        compact(model)


def test_convolutions_become_compact_and_attention_stays_masked():
    conv = nn.Conv2d(2, 2, 1)
    attention = nn.MultiheadAttention(4, 2)
    model = nn.ModuleDict({"conv": conv, "attention": attention, "fc": nn.Linear(4, 4)})
    ones = torch.ones(4, 4, dtype=torch.bool)
    model["conv"] = MaskedConv2d.from_dense(conv, ones[:2, :2], ANY)
    attention.out_proj = MaskedOutProj.from_dense(attention.out_proj, ones, ANY)
    model["fc"] = gnn.MaskedLinear.from_dense(model["fc"], ones, ANY)
    result = compact(model)
    assert result.compacted == ["conv", "fc"]
    assert isinstance(model["conv"], gnn.Conv2d)
    assert set(result.left_masked) == {"attention.out_proj"}
    assert "reads out_proj.weight" in str(result)
    assert "2 layers are compact: 20 weights became 20" in str(result)


def test_encoder_layer_works_compact_in_train_and_eval():
    torch.manual_seed(0)
    layer = nn.TransformerEncoderLayer(8, 2, 16, dropout=0.0, batch_first=True)
    model = nn.TransformerEncoder(layer, 2)
    for module in list(model.modules()):
        if type(module) is nn.Linear:
            mask = torch.rand(module.weight.shape) < 0.5
            replace_module(model, module, gnn.MaskedLinear.from_dense(module, mask, ANY))
    disable_fast_paths(model)
    twin = copy.deepcopy(model)
    compact(twin)
    x = torch.randn(2, 5, 8)
    torch.testing.assert_close(twin(x), model(x))
    twin.eval()
    model.eval()
    with torch.no_grad():
        torch.testing.assert_close(twin(x), model(x))


def storage_bytes(tensors):
    """Bytes of the distinct storages behind some tensors: what memory really holds."""
    storages = {t.untyped_storage().data_ptr(): t.untyped_storage() for t in tensors}
    return sum(storage.nbytes() for storage in storages.values())


@pytest.mark.parametrize(("out", "inp"), [(768, 768), (3072, 768)])
@pytest.mark.parametrize("sparsity", [0.5, 0.8, 0.9, 0.95])
def test_training_state_is_16f_plus_an_eighth_bytes_per_weight(out, inp, sparsity):
    mask = Unstructured().project(torch.rand(out, inp), 1 - sparsity)
    model = nn.Sequential(nn.Linear(inp, out, bias=False))
    model[0] = gnn.MaskedLinear.from_dense(model[0], mask, ANY)
    optimizer = torch.optim.AdamW(model.parameters())
    model(torch.randn(4, inp)).sum().backward()
    optimizer.step()
    compact(model, optimizer)
    optimizer.zero_grad()
    model(torch.randn(4, inp)).sum().backward()
    optimizer.step()
    (layer,) = model
    held = [t for t in optimizer.state[layer.values].values() if torch.is_tensor(t)]
    held += [*model.parameters(), *model.buffers(), layer.values.grad]
    held += [value for value in vars(layer).values() if torch.is_tensor(value)]
    formula = (16 * (1 - sparsity) + 0.13) * out * inp
    assert storage_bytes(held) == pytest.approx(formula, rel=0.02)
    assert len(optimizer.state) == 1
