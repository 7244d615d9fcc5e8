# SPDX-License-Identifier: Apache-2.0
"""Models pruned by torch.nn.utils.prune: the same mask and output, or a typed error."""

import pytest
import torch
from artifact_tools import same_bits
from safetensors.torch import save_file
from torch import nn
from torch.nn.utils import prune

from gossamer.errors import ArtifactError, InputError, TargetError
from gossamer.io import adopt_pruned, load, save
from gossamer.io.pruners import read_dense_checkpoint
from gossamer.nn.layers import MaskedConv2d, MaskedLinear


def network():
    torch.manual_seed(0)
    return nn.Sequential(
        nn.Conv2d(3, 8, 3, groups=1),
        nn.ReLU(),
        nn.Flatten(),
        nn.Linear(8 * 36, 16),
        nn.Linear(16, 4),
    )


X = torch.randn(2, 3, 8, 8, generator=torch.Generator().manual_seed(1))


def test_masks_outputs_and_parameters_stay(tmp_path):
    model = network()
    prune.l1_unstructured(model[0], "weight", amount=0.5)
    prune.random_unstructured(model[3], "weight", amount=0.8)
    prune.l1_unstructured(model[3], "weight", amount=0.5)  # a container of two methods
    before, masks = model(X), [model[0].weight_mask, model[3].weight_mask]
    parameters = [model[0].weight_orig, model[3].weight_orig]
    adopted = adopt_pruned(model)
    assert [layer.name for layer in adopted] == ["0", "3"]
    assert adopted[0].sparsity == pytest.approx(0.5)
    assert isinstance(model[0], MaskedConv2d)
    assert isinstance(model[3], MaskedLinear)
    assert type(model[4]) is nn.Linear
    assert torch.equal(model(X), before)
    for layer, mask, parameter in zip((model[0], model[3]), masks, parameters, strict=True):
        assert torch.equal(layer.mask(), mask.bool().reshape(mask.shape[0], -1))
        assert layer.weight_parameter() is parameter
        assert not layer._forward_pre_hooks
    keys = [key for key in model.state_dict() if not key.endswith("mask_bits")]
    assert keys == list(network().state_dict())
    model(X).sum().backward()
    torch.optim.SGD(model.parameters(), lr=0.1).step()
    assert bool((model[3].masked_weight()[~model[3].mask()] == 0).all())
    save(model, tmp_path / "a")
    assert torch.equal(load(tmp_path / "a")(X), model(X))
    assert adopt_pruned(model) == []


@pytest.mark.parametrize("dim", [0, 1])
def test_structured_and_patterns(dim):
    model = network()
    prune.ln_structured(model[3], "weight", amount=4, n=2, dim=dim)
    prune.custom_from_mask(model[4], "weight", torch.tensor([1.0, 0, 0, 1]).repeat(4, 4))
    before = model(X)
    adopted = adopt_pruned(model)
    assert torch.equal(model(X), before)
    assert str(adopted[1].pattern) == "2:4"


def test_pruned_biases_keep_their_zeros_and_all_or_nothing_works():
    model = network()
    prune.l1_unstructured(model[3], "bias", amount=4)
    prune.l1_unstructured(model[3], "weight", amount=0)
    prune.custom_from_mask(model[4], "weight", torch.zeros(4, 16))
    before = model(X)
    adopted = adopt_pruned(model)
    assert [layer.sparsity for layer in adopted] == [0, 1]
    assert int((model[3].bias == 0).sum()) == 4
    assert isinstance(model[3].bias, nn.Parameter)
    assert torch.equal(model(X), before)


def test_hooks_and_shared_modules_stay():
    layer = nn.Linear(4, 4)
    model = nn.Sequential(layer, nn.ReLU(), layer)
    calls = []
    layer.register_forward_pre_hook(lambda *_: calls.append(1))
    prune.l1_unstructured(layer, "weight", amount=8)
    x = torch.randn(2, 4)
    before = model(x)
    calls.clear()
    adopt_pruned(model)
    assert model[0] is model[2]
    assert torch.equal(model(x), before)
    assert len(calls) == 2


def test_out_proj_of_attention():
    model = nn.Sequential(nn.TransformerEncoderLayer(8, 2, 16, batch_first=True)).eval()
    prune.l1_unstructured(model[0].linear1, "weight", amount=0.5)
    x = torch.randn(2, 3, 8)
    with torch.no_grad():
        before = model(x)
        adopt_pruned(model)
        torch.testing.assert_close(model(x), before, rtol=1e-5, atol=1e-6)


def other_kind(model):
    model.append(nn.Conv1d(2, 2, 1))
    prune.l1_unstructured(model[5], "weight", amount=1)


def own_class(model):
    class Mine(nn.Linear):
        pass

    model.append(Mine(4, 4))
    prune.l1_unstructured(model[5], "weight", amount=1)


def other_tensor(model):
    model[4].register_parameter("scale", nn.Parameter(torch.ones(4)))
    prune.l1_unstructured(model[4], "scale", amount=1)


def bias_only(model):
    prune.l1_unstructured(model[4], "bias", amount=1)


def numbers(model):
    prune.custom_from_mask(model[4], "weight", torch.full((4, 16), 0.5))


def tied(model):
    model.append(nn.Linear(16, 4))
    model[5].weight = model[4].weight
    prune.l1_unstructured(model[4], "weight", amount=1)


def parametrized(model):
    prune.l1_unstructured(model[4], "weight", amount=1)
    torch.nn.utils.parametrizations.weight_norm(model[4], "bias")


@pytest.mark.parametrize(
    ("spoil", "message"),
    [
        (other_kind, r"5 \(Conv1d\).*only an ordinary Linear or Conv2d"),
        (own_class, r"5 \(Mine\).*only an ordinary"),
        (other_tensor, r"4 \(Linear\).*scale is pruned"),
        (bias_only, r"4 \(Linear\).*not only pruned"),
        (numbers, "4 .*0 and 1 only"),
        (tied, "4 .*shares its weight with 5"),
        (parametrized, "4 .*only an ordinary"),
    ],
)
def test_layers_that_cannot_be_adopted_are_named_and_nothing_changes(spoil, message):
    model = network()
    prune.l1_unstructured(model[3], "weight", amount=0.5)
    spoil(model)
    before = {name: type(module) for name, module in model.named_modules()}
    state = {name: tensor.clone() for name, tensor in model.state_dict().items()}
    with pytest.raises(InputError, match=message):
        adopt_pruned(model)
    assert {name: type(module) for name, module in model.named_modules()} == before
    after = model.state_dict()
    assert list(after) == list(state)
    assert all(same_bits(tensor, after[name]) for name, tensor in state.items())


def test_a_single_layer_and_no_model():
    layer = prune.l1_unstructured(nn.Linear(4, 4), "weight", amount=1)
    with pytest.raises(InputError, match="Wrap it"):
        adopt_pruned(layer)
    with pytest.raises(InputError, match="expected a torch"):
        adopt_pruned("model")
    assert adopt_pruned(network()) == []


@pytest.mark.parametrize("how", ["prune", "weight_norm", "old_weight_norm"])
@pytest.mark.filterwarnings("ignore:.*weight_norm.*:FutureWarning")
def test_sparsify_names_the_layer_whose_weight_is_computed(how):
    import gossamer

    model = network()
    if how == "prune":
        prune.l1_unstructured(model[3], "weight", amount=0.5)
    elif how == "weight_norm":
        torch.nn.utils.parametrizations.weight_norm(model[3])
    else:
        torch.nn.utils.weight_norm(model[3])
    with pytest.raises(TargetError, match=r"3: cannot be pruned.*adopt_pruned"):
        gossamer.sparsify(model, sparsity=0.5)


# State dicts.


def test_a_state_dict_with_masks_is_read_as_such(tmp_path):
    model = network()
    prune.l1_unstructured(model[0], "weight", amount=0.02)  # below what zeros alone would tell
    prune.custom_from_mask(model[4], "weight", torch.tensor([1.0, 0, 0, 1]).repeat(4, 4))
    prune.l1_unstructured(model[4], "bias", amount=1)
    with torch.no_grad():
        model[4].weight_orig[0, 0] = 0.0  # a kept zero
    model(X)
    save_file(model.state_dict(), tmp_path / "m.safetensors")
    checkpoint = read_dense_checkpoint(tmp_path / "m.safetensors")
    assert sorted(checkpoint.tensors) == sorted(network().state_dict())
    assert torch.equal(checkpoint.tensors["4.weight"], model[4].weight)
    assert torch.equal(checkpoint.tensors["4.bias"], model[4].bias)
    assert sorted(checkpoint.masks) == ["0.weight", "4.weight"]
    assert str(checkpoint.masks["4.weight"].pattern) == "2:4"
    assert checkpoint.masks["4.weight"].sparsity == 0.5
    assert torch.equal(
        checkpoint.masks["0.weight"].mask, model[0].weight_mask.bool().reshape(8, -1)
    )


def test_names_that_only_look_alike_are_left_alone(tmp_path):
    tensors = {"a_orig": torch.ones(2, 2), "b_mask": torch.ones(2, 2)}
    save_file(tensors, tmp_path / "m.safetensors")
    assert sorted(read_dense_checkpoint(tmp_path / "m.safetensors").tensors) == sorted(tensors)


@pytest.mark.parametrize(
    "tensors",
    [
        {"w_orig": torch.ones(2, 2), "w_mask": torch.ones(2, 3)},
        {"w_orig": torch.ones(2, 2), "w_mask": torch.full((2, 2), 0.5)},
        {"w_orig": torch.ones(2, 2), "w_mask": torch.full((2, 2), float("nan"))},
        {"w_orig": torch.ones(2, 2), "w_mask": torch.ones(2, 2), "w": torch.ones(2, 2)},
    ],
)
def test_hostile_masks_are_refused(tmp_path, tensors):
    save_file(tensors, tmp_path / "m.safetensors")
    with pytest.raises(ArtifactError, match="w_mask"):
        read_dense_checkpoint(tmp_path / "m.safetensors")


def test_a_hugging_face_directory_with_masks(tmp_path):
    transformers = pytest.importorskip("transformers")
    config = transformers.BertConfig(
        vocab_size=50, hidden_size=16, num_hidden_layers=1, num_attention_heads=2,
        intermediate_size=32, max_position_embeddings=20,
    )  # fmt: skip
    model = transformers.BertModel(config).eval()
    prune.l1_unstructured(model.encoder.layer[0].output.dense, "weight", amount=0.5)
    ids = torch.arange(6).unsqueeze(0)
    with torch.no_grad():
        before = model(input_ids=ids)[0]
    (tmp_path / "hf").mkdir()
    config.architectures = ["BertModel"]
    config.save_pretrained(tmp_path / "hf")
    save_file(model.state_dict(), tmp_path / "hf" / "model.safetensors", {"format": "pt"})
    again = load(tmp_path / "hf")
    assert isinstance(again.encoder.layer[0].output.dense, MaskedLinear)
    with torch.no_grad():
        assert torch.equal(again(input_ids=ids)[0], before)
