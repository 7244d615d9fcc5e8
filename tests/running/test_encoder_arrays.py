# SPDX-License-Identifier: Apache-2.0
import math

import numpy as np
import pytest
import torch
import transformers
from encoder_models import FAMILIES, tiny_encoder

import gossamer
from gossamer.errors import TargetError
from gossamer.running.bench import dense_copy, model_run
from gossamer.running.encoder.arrays import encoder_arrays, find_base
from gossamer.zoo import MLP

TOKENS = 7
IDS = torch.randint(3, 50, (2, TOKENS), generator=torch.Generator().manual_seed(0))


def oracle(arrays, ids_BT):
    """The encoder that the arrays describe, in float64."""
    arrays = {n: a.astype(np.float64) if a.dtype == np.float32 else a for n, a in arrays.items()}

    def norm(x, prefix, epsilon):
        centred = x - x.mean(-1, keepdims=True)
        scale = np.sqrt((centred**2).mean(-1, keepdims=True) + epsilon)
        return centred / scale * arrays[f"{prefix}.gain"] + arrays[f"{prefix}.shift"]

    x = norm(arrays["word"][ids_BT] + arrays["position"], "norm", arrays["norm.epsilon"])
    for i in range(int(arrays["layers"])):

        def linear(v, name, i=i):
            return v @ arrays[f"{i}.{name}.weight"].T + arrays[f"{i}.{name}.bias"]

        shape = (*x.shape[:2], int(arrays[f"{i}.heads"]), int(arrays[f"{i}.head_width"]))
        q, k, v = (linear(x, name).reshape(shape) for name in ("query", "key", "value"))
        scores = np.einsum("bqhe,bkhe->bhqk", q, k) * arrays[f"{i}.scale"]
        chances = np.exp(scores - scores.max(-1, keepdims=True))
        chances /= chances.sum(-1, keepdims=True)
        mixed = np.einsum("bhqk,bkhe->bqhe", chances, v).reshape(*x.shape[:2], -1)
        epsilon = arrays[f"{i}.epsilon"]
        x = norm(x + linear(mixed, "out"), f"{i}.attention_norm", epsilon)
        assert str(arrays[f"{i}.activation"]) == "gelu"
        inner = linear(x, "up")
        inner = 0.5 * inner * (1 + np.vectorize(math.erf)(inner / math.sqrt(2)))
        x = norm(x + linear(inner, "down"), f"{i}.output_norm", epsilon)
    return x


@pytest.mark.parametrize("family", FAMILIES)
def test_the_arrays_are_the_model(family):
    model = tiny_encoder(family)
    found = oracle(encoder_arrays(*find_base(model), TOKENS), IDS.numpy())
    np.testing.assert_allclose(found, model_run(model, IDS)().numpy(), atol=2e-5)


@pytest.mark.parametrize("form", ["masked", "compact"])
def test_pruned_layers_are_given_with_their_zeros(form):
    model = tiny_encoder(sparsity=0)
    gossamer.sparsify(model, sparsity=0.8)
    if form == "compact":
        gossamer.compact(model)
    arrays = encoder_arrays(*find_base(model), TOKENS)
    assert (arrays["0.up.weight"] == 0).mean() == pytest.approx(0.8, abs=0.01)
    expected = model_run(dense_copy(model), IDS)().numpy()
    np.testing.assert_allclose(oracle(arrays, IDS.numpy()), expected, atol=2e-5)


def test_a_base_inside_a_head_is_found():
    from transformers import BertForSequenceClassification

    base = tiny_encoder()
    whole = BertForSequenceClassification(base.config)
    found, encoder = find_base(whole)
    assert found is whole.bert
    assert encoder is whole.bert.encoder


def test_other_models_are_refused_with_what_to_do():
    with pytest.raises(TargetError, match=r"holds 0 encoders.*gossamer bench linear"):
        find_base(MLP((4, 4)))


def test_a_dense_copy_has_stock_layers_and_leaves_the_model_alone():
    model = tiny_encoder(sparsity=0)
    gossamer.sparsify(model, sparsity=0.5)
    dense = dense_copy(model)
    kinds = {type(module) for module in dense.modules() if isinstance(module, torch.nn.Linear)}
    assert kinds == {torch.nn.Linear}
    torch.testing.assert_close(model_run(dense, IDS)(), model_run(model, IDS)())
    assert any(isinstance(m, gossamer.nn.MaskedLinear) for m in model.modules())


@pytest.mark.parametrize(
    ("name", "settings"),
    [
        ("ElectraModel", {"embedding_size": 8}),
        ("MPNetModel", {}),
        ("ModernBertModel", {"cls_token_id": 1, "sep_token_id": 2}),
        ("AlbertModel", {"embedding_size": 8}),
    ],
)
def test_layers_that_other_engines_are_not_given_are_refused(name, settings):
    sizes = {
        "vocab_size": 40, "hidden_size": 12, "num_hidden_layers": 2, "num_attention_heads": 2,
        "intermediate_size": 20, "bos_token_id": 1, "eos_token_id": 2, "pad_token_id": 0,
    }  # fmt: skip
    kind = getattr(transformers, name)
    model = torch.nn.Sequential(kind(kind.config_class(**sizes | settings)).eval())
    with pytest.raises(TargetError, match="This model has others"):
        encoder_arrays(*find_base(model), TOKENS)
