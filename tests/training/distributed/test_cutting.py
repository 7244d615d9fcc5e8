# SPDX-License-Identifier: Apache-2.0
"""Stages of a model, run one after the other, are the model; names and parameters are its own."""

import pytest
import torch
from torch import nn

import gossamer.nn as gnn
from gossamer.errors import InputError
from gossamer.nn.families import Chain
from gossamer.training.distributed.pipeline import cut
from gossamer.training.distributed.pipeline.cutting import TiedWeight
from gossamer.zoo import GPT, MLP, TinyEncoder

IDS = torch.randint(0, 50, (2, 7), generator=torch.Generator().manual_seed(0))
KEEP = torch.arange(7)[None] < torch.tensor([[7], [4]])


def sequential():
    return nn.Sequential(
        nn.ReLU(), nn.Linear(7, 9), nn.Tanh(), nn.Linear(9, 5), nn.Tanh(), nn.Linear(5, 3)
    )


def zoo_gpt():
    return GPT(50, width=12, num_heads=2, num_layers=5, context=16, tied=True)


def encoder():
    return TinyEncoder(50, 3, width=12, num_heads=2, num_layers=3)


def hugging_face(model, config, **more):
    def make():
        transformers = pytest.importorskip("transformers")
        sizes = {"vocab_size": 50, "hidden_size": 16, "intermediate_size": 32}
        sizes |= {"num_hidden_layers": 4, "num_attention_heads": 2}
        settings = getattr(transformers, config)(**{**sizes, **more})
        return getattr(transformers, model)(settings)

    return make


GPT2 = {"n_positions": 32, "n_inner": None, "bos_token_id": 0, "eos_token_id": 0}
LLAMA = {"num_key_value_heads": 1, "tie_word_embeddings": True, "pad_token_id": None}
# Layers that differ by their number: IDS are longer than the window.
LOCAL = LLAMA | {"use_sliding_window": True, "sliding_window": 2, "max_window_layers": 2}
MIXED = LLAMA | {"sliding_window": 2, "use_sliding_window": True}
MIXED |= {"layer_types": ["full_attention", "sliding_attention"] * 2}
NEAR = {"local_attention": 4, "global_attn_every_n_layers": 2, "pad_token_id": 0}
NO_ROPE = MIXED | {"no_rope_layers": [1, 0, 0, 1]}
MODELS = [
    (sequential, torch.randn(4, 7).double(), {}, 3),
    (zoo_gpt, IDS, {}, 3),
    (encoder, IDS, {"keep_BT": KEEP}, 3),
    (hugging_face("GPT2LMHeadModel", "GPT2Config", **GPT2), IDS, {}, 3),
    (hugging_face("LlamaForCausalLM", "LlamaConfig", **LLAMA), IDS, {}, 3),
    (hugging_face("Qwen2ForCausalLM", "Qwen2Config", **LLAMA), IDS, {}, 4),
    (hugging_face("Qwen2ForCausalLM", "Qwen2Config", **LOCAL), IDS, {}, 3),
    (hugging_face("Qwen3ForCausalLM", "Qwen3Config", **MIXED), IDS, {}, 4),
    (hugging_face("SmolLM3ForCausalLM", "SmolLM3Config", **NO_ROPE), IDS, {}, 4),
    (hugging_face("MistralForCausalLM", "MistralConfig", **LLAMA, sliding_window=2), IDS, {}, 3),
    (hugging_face("Phi3ForCausalLM", "Phi3Config", **LLAMA, sliding_window=2), IDS, {}, 3),
    (hugging_face("Olmo2ForCausalLM", "Olmo2Config", **LLAMA), IDS, {}, 3),
    (hugging_face("GemmaForCausalLM", "GemmaConfig", **LLAMA), IDS, {}, 3),
    (
        hugging_face("BertForSequenceClassification", "BertConfig"),
        IDS,
        {"attention_mask": KEEP.long()},
        4,
    ),
    (hugging_face("BertForMaskedLM", "BertConfig"), IDS, {}, 4),
    (
        hugging_face("ModernBertForMaskedLM", "ModernBertConfig", **NEAR),
        IDS,
        {"attention_mask": KEEP.long()},
        3,
    ),
    (hugging_face("NomicBertForMaskedLM", "NomicBertConfig"), IDS, {}, 4),
]


@pytest.mark.filterwarnings("ignore")
@pytest.mark.parametrize(("make", "x", "keywords", "num_stages"), MODELS)
def test_stages_in_a_row_are_the_model(make, x, keywords, num_stages):
    torch.manual_seed(0)
    model = make().double().eval()
    expected = model(x, **keywords)
    expected = getattr(expected, "logits", expected)
    parts = cut(model, num_stages, (x,), keywords=keywords)
    names, parameters = [], []
    for index in range(num_stages):
        stage = parts.stage(model, index)
        x = stage(x, **keywords)
        names += stage.state_dict()
        parameters += stage.parameters()
    assert torch.equal(x, expected)
    assert set(names) == set(model.state_dict())
    assert {id(p) for p in parameters} == {id(p) for p in model.parameters()}
    assert len(parameters) == sum(1 for _ in model.parameters()) + len(parts.tied)


def test_a_tied_head_is_found():
    parts = cut(zoo_gpt(), 2, (IDS,))
    assert parts.tied == (TiedWeight(("tokens.weight", "head.weight"), (0, 1)),)
    assert cut(zoo_gpt(), 1, (IDS,)).tied == ()


def test_kept_weights_count_and_balance():
    """A layer that keeps a tenth and runs on kernels is a tenth of the work."""
    torch.manual_seed(0)
    layers = [nn.Linear(64, 64) for _ in range(4)]
    for index in range(1, 4):
        mask = torch.zeros(64, 64, dtype=torch.bool)
        mask.view(-1)[:400] = True
        layers[index] = gnn.Linear.from_dense(layers[index], mask, mode="kernel")
    model = nn.Sequential(*layers)
    parts = cut(model, 2, (torch.randn(8, 64),))
    assert parts.bounds == ((0, 1), (1, 4))
    assert [cost.parameters for cost in parts.costs] == [64 * 65, 464, 464, 464]
    assert [cost.flops for cost in parts.costs] == [8 * 2 * 4096] + 3 * [8 * 2 * 400]
    model[1].mode = "jit"
    assert cut(model, 2, (torch.randn(8, 64),)).costs[1].flops == 8 * 2 * 4096


def test_activations_stay_with_their_layer():
    assert cut(sequential(), 3, (torch.randn(4, 7),)).links == (("0", "1", "2"), ("3", "4"), ("5",))


def test_counting_leaves_the_model_as_it_was():
    model = nn.Sequential(nn.Linear(3, 3), nn.BatchNorm1d(3), nn.Linear(3, 3)).train()
    before = {name: value.clone() for name, value in model.state_dict().items()}
    cut(model, 2, (torch.randn(4, 3),))
    assert model.training
    assert all(torch.equal(before[name], value) for name, value in model.state_dict().items())


def test_more_stages_than_layers_are_refused_in_one_sentence():
    with pytest.raises(InputError, match="6 stages need at least as many layers, but GPT has 5"):
        cut(zoo_gpt(), 6, (IDS,))


def test_no_stages_are_refused():
    with pytest.raises(InputError, match="at least 1; got 0"):
        cut(zoo_gpt(), 0, (IDS,))


def test_a_model_that_is_no_known_chain_is_refused():
    with pytest.raises(InputError, match=r"MLP is not known to be a chain.*chain=Chain"):
        cut(MLP((4, 4, 4)), 2, (torch.randn(1, 4),))


def test_a_parameter_that_no_stage_would_own_is_refused():
    chain = Chain("blocks", ("tokens",), ("norm", "head"))
    with pytest.raises(InputError, match=r"'positions.weight' of GPT belongs to no link"):
        cut(zoo_gpt(), 2, (IDS,), chain=chain)


WHOLE_GPT = Chain("blocks", ("tokens", "positions"), ("norm", "head"))
DECODER = Chain(
    "model.layers",
    ("model.embed_tokens",),
    ("model.norm", "lm_head"),
    entry="inputs_embeds",
    output=("logits",),
    keywords=(("use_cache", False),),
)


class LoudGPT(GPT):
    """Scales its logits outside of its modules."""

    def forward(self, ids_BT, **keywords):
        return 3 * super().forward(ids_BT, **keywords)


def test_a_chain_that_is_right_is_taken():
    assert cut(zoo_gpt(), 2, (IDS,), chain=WHOLE_GPT).chain == WHOLE_GPT
    llama = hugging_face("LlamaForCausalLM", "LlamaConfig", **LLAMA)()
    assert cut(llama, 2, (IDS,), chain=DECODER).num_stages == 2


@pytest.mark.parametrize("name", ["Gemma2", "Granite"])
def test_a_chain_of_a_model_that_scales_outside_of_it_is_refused(name):
    factor = {"embedding_multiplier": 3.0} if name == "Granite" else {"head_dim": 8}
    model = hugging_face(f"{name}ForCausalLM", f"{name}Config", **LLAMA, **factor)()
    with pytest.raises(
        InputError, match=r"gives other results .* would run in every stage.* Its f"
    ):
        cut(model, 2, (IDS,), chain=DECODER)


def test_a_model_of_ones_own_that_scales_outside_of_its_chain_is_refused():
    model = LoudGPT(50, width=12, num_heads=2, num_layers=5, context=16, tied=True)
    with pytest.raises(InputError, match="LoudGPT gives other results"):
        cut(model, 2, (IDS,), chain=WHOLE_GPT)


def test_a_chain_that_names_nothing_is_refused():
    with pytest.raises(InputError, match="GPT has no module 'floors'"):
        cut(zoo_gpt(), 2, (IDS,), chain=Chain("floors"))


def test_a_model_without_layers_is_refused():
    with pytest.raises(InputError, match="no layers with parameters"):
        cut(nn.Sequential(nn.ReLU()), 1, (torch.randn(1),))
