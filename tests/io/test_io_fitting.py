# SPDX-License-Identifier: Apache-2.0
"""Loading into the user's own model: everything fits, or nothing changes."""

import copy

import pytest
import torch
from artifact_tools import assert_same_model, generator, same_bits, sparse_linear, sparsify
from safetensors.torch import save_file
from torch import nn

from gossamer.errors import ArtifactError, InputError
from gossamer.io import load, save
from gossamer.nn import Linear, MaskedLinear
from gossamer.patterns import Unstructured
from gossamer.zoo import MLP

HOLDERS = ("dense", "masked", "compact")


def model_in(state: str, seed: int = 0) -> MLP:
    torch.manual_seed(seed)
    model = MLP((8, 16, 16, 3))
    return model if state == "dense" else sparsify(model, state)


@pytest.mark.parametrize("target", HOLDERS)
@pytest.mark.parametrize("saved", HOLDERS)
def test_the_saved_state_wins_whatever_the_model_was(tmp_path, saved, target):
    source, model = model_in(saved, 0), model_in(target, 1)
    save(source, tmp_path / "a")
    result = load(tmp_path / "a", model=model)
    assert result is model
    assert_same_model(source, model)
    assert model.training


def test_parameters_stay_the_same_objects_for_the_optimizer(tmp_path):
    save(model_in("masked", 0), tmp_path / "masked")
    save(model_in("compact", 0), tmp_path / "compact")
    masked, compact = model_in("dense", 1), model_in("compact", 1)
    before = dict(masked.named_parameters())
    load(tmp_path / "masked", model=masked)
    assert all(before[name] is parameter for name, parameter in masked.named_parameters())
    before = dict(compact.named_parameters())
    load(tmp_path / "compact", model=compact)
    assert all(before[name] is parameter for name, parameter in compact.named_parameters())


@pytest.mark.parametrize("saved", HOLDERS)
def test_models_on_the_meta_device_are_filled(tmp_path, saved):
    save(model_in(saved), tmp_path / "a")
    with torch.device("meta"):
        model = MLP((8, 16, 16, 3))
    load(tmp_path / "a", model=model)
    assert_same_model(model_in(saved), model)


def test_hooks_of_the_model_stay(tmp_path):
    save(model_in("compact", 0), tmp_path / "a")
    model = model_in("dense", 1)
    calls = []
    model.layers[0].register_forward_hook(lambda *_: calls.append(1))
    load(tmp_path / "a", model=model)
    model(torch.zeros(1, 8))
    assert calls == [1]


def test_all_mismatches_are_listed_and_nothing_changes(tmp_path):
    save(model_in("masked"), tmp_path / "a")
    model = nn.Module()
    model.layers = nn.ModuleList([nn.Linear(8, 16), nn.Linear(16, 17)])
    model.heads = nn.Linear(16, 3)
    model.layers[0].double()
    before = copy.deepcopy(model.state_dict())
    with pytest.raises(ArtifactError) as caught:
        load(tmp_path / "a", model=model)
    text = str(caught.value)
    for part in (
        "nothing was changed",
        "heads.weight: the model has it, the artifact does not (did you mean head.weight?)",
        "head.weight: the artifact has it, the model does not",
        "layers.1.weight: shape [16, 16] in the artifact, [17, 16] in the model",
        "layers.0.weight: float32 in the artifact, float64 in the model",
        "model.to(torch.float32)",
    ):
        assert part in text
    assert all(same_bits(before[name], tensor) for name, tensor in model.state_dict().items())
    assert type(model.layers[0]) is nn.Linear


def test_a_sparse_weight_needs_a_layer_that_can_hold_it(tmp_path):
    save(nn.Sequential(sparse_linear("bitmask", "compact")), tmp_path / "a")

    class Odd(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.weight = nn.Parameter(torch.zeros(24, 48))
            self.bias = nn.Parameter(torch.zeros(24))

    model = nn.Sequential(Odd())
    with pytest.raises(ArtifactError, match="is compact, but the model has a Odd"):
        load(tmp_path / "a", model=model)
    save(nn.Sequential(sparse_linear("bitmask", "masked")), tmp_path / "b")
    with pytest.raises(ArtifactError, match="is masked, but the model has a Odd"):
        load(tmp_path / "b", model=model)


def test_damage_found_late_leaves_the_model_alone(tmp_path):
    save(model_in("masked"), tmp_path / "a")
    file = next((tmp_path / "a").glob("*.safetensors"))
    raw = bytearray(file.read_bytes())
    raw[-1] ^= 1
    file.write_bytes(raw)
    model = model_in("dense", 1)
    before = copy.deepcopy(model.state_dict())
    with pytest.raises(ArtifactError, match="SHA-256"):
        load(tmp_path / "a", model=model)
    assert all(same_bits(before[name], tensor) for name, tensor in model.state_dict().items())
    assert type(model.layers[0]) is nn.Linear


def test_a_model_that_is_one_layer_comes_back_as_a_new_object(tmp_path):
    layer = sparse_linear("bitmask", "compact")
    save(layer, tmp_path / "a")
    plain = nn.Linear(48, 24)
    result = load(tmp_path / "a", model=plain)
    assert_same_model(layer, result)
    assert result is not plain


def test_wrapped_models_are_filled_inside(tmp_path):
    save(model_in("masked"), tmp_path / "a")
    model = nn.DataParallel(model_in("dense", 1))
    assert load(tmp_path / "a", model=model) is model
    assert_same_model(model.module, model_in("masked"))


def test_wrong_model_argument(tmp_path):
    save(model_in("masked"), tmp_path / "a")
    with pytest.raises(InputError, match="torch module"):
        load(tmp_path / "a", model={"layers": 1})


# Ties


class Tied(nn.Module):
    """Token embedding and output layer share a weight, as in most language models."""

    def __init__(self) -> None:
        super().__init__()
        self.out = nn.Linear(4, 10)
        self.tokens = nn.Embedding(10, 4)
        self.out.weight = self.tokens.weight

    def forward(self, ids):
        return self.out(self.tokens(ids))


def test_tied_tensors_are_stored_once_and_come_back_tied(tmp_path):
    for kind in ("packed", "dense"):
        model = Tied()
        save(model, tmp_path / kind, format=kind)
        size = sum(p.stat().st_size for p in (tmp_path / kind).glob("*.safetensors"))
        assert size < 2 * 10 * 4 * 4 + 400
        for again in (Tied(), Tied()):
            load(tmp_path / kind, model=again)
            assert again.out.weight is again.tokens.weight
            assert same_bits(again.out.weight, model.out.weight)


def test_ties_of_rebuilt_models_come_back(tmp_path):
    first, second = nn.Linear(4, 4), nn.Linear(4, 4)
    second.weight = first.weight
    model = nn.Sequential(first, nn.ReLU(), second)
    save(model, tmp_path / "a")
    again = load(tmp_path / "a")
    assert again[0].weight is again[2].weight
    assert again[0].bias is not again[2].bias
    assert_same_model(model.eval(), again)


@pytest.mark.parametrize("holder", ["masked", "compact"])
def test_tied_sparse_layers_come_back_tied(tmp_path, holder):
    first, second = nn.Linear(8, 8), nn.Linear(8, 8)
    second.weight = first.weight
    mask = torch.rand(8, 8, generator=generator()) < 0.5
    model = nn.Sequential(
        *(MaskedLinear.from_dense(layer, mask, Unstructured()) for layer in (first, second))
    )
    if holder == "compact":
        one = Linear.from_dense(model[0].to_dense(), mask)
        two = Linear(one.values, one.mask_bits, 8, second.bias)
        model = nn.Sequential(one, two)
    save(model, tmp_path / "a")
    for again in (load(tmp_path / "a"), load(tmp_path / "a", model=nn.Sequential(*model))):
        name = "weight" if holder == "masked" else "values"
        assert getattr(again[0], name) is getattr(again[1], name)
        assert_same_model(model.eval(), again.eval())


def test_a_masked_layer_tied_to_an_unmasked_one_keeps_both(tmp_path):
    model = Tied()
    mask = torch.rand(10, 4, generator=generator()) < 0.5
    model.out = MaskedLinear.from_dense(model.out, mask, Unstructured())
    # Training moves the entries that only the embedding uses.
    model.tokens.weight.data += 1
    ids = torch.arange(10)
    expected = model(ids)
    save(model, tmp_path / "a")
    again = load(tmp_path / "a", model=Tied())
    assert again.out.weight is again.tokens.weight
    assert torch.equal(again.out.mask(), mask)
    assert torch.equal(again(ids), expected)
    save(model, tmp_path / "b", format="dense")
    again = Tied()
    again.out.weight = nn.Parameter(torch.zeros(10, 4))
    load(tmp_path / "b", model=again)
    torch.testing.assert_close(again(ids), expected)


def test_different_masks_on_one_weight_are_refused(tmp_path):
    first, second = nn.Linear(8, 8), nn.Linear(8, 8)
    second.weight = first.weight
    masks = [torch.rand(8, 8, generator=generator(seed)) < 0.5 for seed in (0, 1)]
    model = nn.Sequential(
        MaskedLinear.from_dense(first, masks[0], Unstructured()),
        MaskedLinear.from_dense(second, masks[1], Unstructured()),
    )
    with pytest.raises(InputError, match="another mask"):
        save(model, tmp_path / "a")


@pytest.mark.parametrize("holder", HOLDERS)
def test_shared_modules_come_back_shared(tmp_path, holder):
    block = nn.Sequential(nn.Linear(4, 4), nn.BatchNorm1d(4))
    model = nn.Sequential(block, nn.ReLU(), block)
    if holder != "dense":
        sparsify(model, holder)
    save(model, tmp_path / "a")
    again = load(tmp_path / "a")
    assert again[0] is again[2]
    assert_same_model(model.eval(), again)
    other = nn.Sequential(nn.Linear(4, 4), nn.BatchNorm1d(4))
    mine = load(tmp_path / "a", model=nn.Sequential(other, nn.ReLU(), other))
    assert mine[0] is mine[2]
    assert_same_model(model, mine.eval())


def test_a_model_that_ties_what_the_file_does_not_is_refused(tmp_path):
    untied = Tied()
    untied.out.weight = nn.Parameter(torch.zeros(10, 4))
    save(untied, tmp_path / "a")
    with pytest.raises(ArtifactError, match="one tensor in the model, but 2 here"):
        load(tmp_path / "a", model=Tied())


def test_ordinary_checkpoint_into_a_model(tmp_path):
    source, model = model_in("dense", 0), model_in("masked", 1)
    save_file(source.state_dict(), tmp_path / "model.safetensors")
    assert load(tmp_path / "model.safetensors", model=model) is model
    assert_same_model(source, model)
    other = load(tmp_path, model=model_in("dense", 2))
    assert_same_model(source, other)
    with pytest.raises(ArtifactError, match="pass it"):
        load(tmp_path / "model.safetensors")
    with pytest.raises(ArtifactError, match="does not fit"):
        load(tmp_path, model=MLP((8, 3)))
