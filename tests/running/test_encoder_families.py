# SPDX-License-Identifier: Apache-2.0
"""Every family of encoders on the native call: what transformers gives, to 1e-5 in fp32."""

import copy

import pytest
import torch
import transformers

import gossamer
from gossamer.errors import InputError, TargetError
from gossamer.nn.families import answers
from gossamer.ops.engines.encoder import PackedEncoder
from gossamer.ops.kernels import available_kernels
from gossamer.running.encoder import NativeEncoder, pack_encoder, read_layers

# Sizes that no kernel likes; heads of 10 features, so that vectors have a rest.
WORDS = {
    "vocab_size": 61, "hidden_size": 30, "num_hidden_layers": 3, "num_attention_heads": 3,
    "intermediate_size": 44, "max_position_embeddings": 150, "pad_token_id": 0,
}  # fmt: skip
IMAGE = {
    "hidden_size": 30, "num_hidden_layers": 3, "num_attention_heads": 3, "intermediate_size": 44,
    "image_size": 40, "patch_size": 5,
}  # fmt: skip
ODD = {"bos_token_id": 1, "eos_token_id": 2, "cls_token_id": 1, "sep_token_id": 2}
MODERN = WORDS | ODD | {"global_attn_every_n_layers": 2}
TEXTS = {
    "BERT": ("BertModel", WORDS),
    "RoBERTa": ("RobertaModel", WORDS),
    "XLM-R": ("XLMRobertaModel", WORDS),
    "CamemBERT": ("CamembertModel", WORDS),
    "DistilBERT": ("DistilBertModel", {
        "vocab_size": 61, "dim": 30, "n_layers": 3, "n_heads": 3, "hidden_dim": 44}),
    "ELECTRA": ("ElectraModel", WORDS | {"embedding_size": 14}),
    "ALBERT": ("AlbertModel", WORDS | {"embedding_size": 14, "num_hidden_layers": 4,
                                       "num_hidden_groups": 2, "inner_group_num": 2}),
    "MPNet": ("MPNetModel", WORDS | {"pad_token_id": 1, "bos_token_id": 0}),
    "ModernBERT": ("ModernBertModel", MODERN | {"local_attention": 14}),
    "ModernBERT, wide": ("ModernBertModel", MODERN | {"local_attention": 2, "norm_bias": True}),
    "NomicBERT": ("NomicBertModel", WORDS),
}  # fmt: skip
IMAGES = {
    "ViT": ("ViTModel", IMAGE),
    "DINOv2": ("Dinov2Model", IMAGE | {"mlp_ratio": 2, "layerscale_value": 0.4}),
    "CLIP": ("CLIPVisionModel", IMAGE),
    "SigLIP": ("SiglipVisionModel", IMAGE),
}


def make(name: str, settings: dict, sparsity: float = 0.6) -> torch.nn.Module:
    """A model whose every Parameter matters: norms, biases and scales are random, too."""
    torch.manual_seed(0)
    kind = getattr(transformers, name)
    model = kind(kind.config_class(**copy.deepcopy(settings))).eval()
    with torch.no_grad():
        for parameter in model.parameters():
            parameter.add_(0.15 * torch.randn_like(parameter))
    if sparsity:
        gossamer.sparsify(model, sparsity=sparsity)
    return model


def native_of(model: torch.nn.Module) -> NativeEncoder:
    (found,) = [module for module in model.modules() if isinstance(module, NativeEncoder)]
    return found


@pytest.fixture
def calls(monkeypatch):
    """Lengths of the sequences of every native call."""
    seen, run = [], PackedEncoder.__call__
    monkeypatch.setenv("GOSSAMER_TUNE", "off")
    monkeypatch.setattr(
        PackedEncoder,
        "__call__",
        lambda self, x, lengths: (seen.append(list(lengths)), run(self, x, lengths))[1],
    )
    return seen


@pytest.fixture(params=available_kernels())
def kernels(request, monkeypatch):
    monkeypatch.setenv("GOSSAMER_KERNELS", request.param)
    return request.param


def ids_of(batch: int, tokens: int) -> torch.Tensor:
    return torch.randint(3, 61, (batch, tokens), generator=torch.Generator().manual_seed(tokens))


def padding(batch: int, tokens: int) -> torch.Tensor:
    """Behind the tokens of sequences of many lengths."""
    lengths = torch.tensor([tokens, 1, 2, tokens - 5, tokens // 2])[:batch, None]
    return (torch.arange(tokens) < lengths).long()


def assert_same(fast, model, ids, mask=None, **more):
    with torch.inference_mode():
        wanted = model(input_ids=ids, attention_mask=mask, **more)
        given = fast(input_ids=ids, attention_mask=mask, **more)
    live = torch.ones_like(ids).bool() if mask is None else mask.bool()
    name = "last_hidden_state" if hasattr(wanted, "last_hidden_state") else "logits"
    given, wanted = given[name], wanted[name]
    if wanted.ndim == 3:
        given, wanted = given[live], wanted[live]
    torch.testing.assert_close(given, wanted, rtol=1e-5, atol=1e-5)


def test_every_family_with_an_answer_is_tried():
    tried = {name.partition(",")[0] for name in (*TEXTS, *IMAGES)}
    assert tried == set(answers("encoder"))


@pytest.mark.parametrize("family", TEXTS)
def test_texts_give_what_transformers_gives(family, kernels, calls):
    model = make(*TEXTS[family])
    fast = gossamer.compile(model, tokens=(1, 64))
    # Lengths before, at and behind the edges of windows, vectors and tiles.
    for batch, tokens in ((1, 33), (3, 17), (1, 130)):
        assert_same(fast, model, ids_of(batch, tokens))
    mask = padding(5, 71)
    assert_same(fast, model, ids_of(5, 71), mask)
    assert_same(fast, model, ids_of(5, 71), mask.flip(1))
    lengths = mask.sum(dim=1).tolist()
    assert calls == [[33], [17] * 3, [130], lengths, lengths]
    # Few tokens run layer by layer, and names of layers are what they were.
    assert_same(fast, model, ids_of(2, 3))
    assert len(calls) == 5
    names = {name for name, _ in model.named_modules()}
    assert {name for name, _ in fast.named_modules()} <= names


@pytest.mark.parametrize("family", IMAGES)
def test_images_give_what_transformers_gives(family, kernels, calls):
    model = make(*IMAGES[family])
    fast = gossamer.compile(model, tokens=(1, 64))
    for batch in (1, 3):
        pixels = torch.randn(batch, 3, 40, 40, generator=torch.Generator().manual_seed(batch))
        with torch.inference_mode():
            wanted, given = model(pixel_values=pixels), fast(pixel_values=pixels)
        for name in ("last_hidden_state", "pooler_output"):
            torch.testing.assert_close(given[name], wanted[name], rtol=1e-5, atol=1e-5)
    tokens = wanted.last_hidden_state.shape[1]
    assert calls == [[tokens], [tokens] * 3]


@pytest.mark.parametrize("family", [*TEXTS, *IMAGES])
def test_int8_stays_within_what_quantisation_allows(family, calls):
    texts = family in TEXTS
    model = make(*(TEXTS | IMAGES)[family], sparsity=0.5)
    fast, rounded = (gossamer.compile(model, tokens=64, precision=p) for p in ("fp32", "int8"))
    assert native_of(rounded).packed.precision == "int8"
    pixels = torch.randn(2, 3, 40, 40, generator=torch.Generator().manual_seed(1))
    inputs = {"input_ids": ids_of(2, 70)} if texts else {"pixel_values": pixels}
    with torch.inference_mode():
        exact, near = (m(**inputs).last_hidden_state for m in (fast, rounded))
    error = (exact - near).square().mean().sqrt() / exact.square().mean().sqrt()
    assert 1e-6 < error < 0.1
    assert len(calls) == 2


HEADS = [
    ("XLMRobertaForSequenceClassification", WORDS),
    ("CamembertForTokenClassification", WORDS),
    ("ElectraForSequenceClassification", TEXTS["ELECTRA"][1]),
    ("AlbertForTokenClassification", TEXTS["ALBERT"][1]),
    ("MPNetForSequenceClassification", TEXTS["MPNet"][1]),
    ("ModernBertForSequenceClassification", TEXTS["ModernBERT"][1]),
    ("ModernBertForMaskedLM", TEXTS["ModernBERT"][1]),
    ("NomicBertForSequenceClassification", WORDS),
]


@pytest.mark.parametrize(("name", "settings"), HEADS, ids=[name for name, _ in HEADS])
def test_heads_are_used_as_they_are_after_save_and_load_too(name, settings, calls, tmp_path):
    model = make(name, settings)
    fast = gossamer.compile(model, tokens=64)
    assert_same(fast, model, ids_of(5, 40), padding(5, 40))
    gossamer.save(fast, tmp_path / "fast")
    again = gossamer.load(tmp_path / "fast")
    assert type(again) is type(model)
    assert_same(gossamer.compile(again, tokens=64), model, ids_of(5, 40), padding(5, 40))
    assert len(calls) == 2


@pytest.mark.parametrize("family", ["MPNet", "ModernBERT", "NomicBERT"])
def test_padding_between_tokens_and_other_positions_run_layer_by_layer(family, calls):
    model = make(*TEXTS[family])
    fast = gossamer.compile(model, tokens=64)
    mask = padding(5, 40)
    mask[0, 3:9] = 0
    assert_same(fast, model, ids_of(5, 40), mask)
    if family != "MPNet":  # whose embeddings use them, and nobody else
        assert_same(fast, model, ids_of(5, 40), position_ids=torch.arange(40).flip(0)[None])
    assert calls == []
    assert_same(fast, model, ids_of(5, 40), padding(5, 40))
    assert len(calls) == 1


@pytest.mark.parametrize("family", ["ALBERT", "MPNet", "ModernBERT"])
def test_who_asks_for_hidden_states_gets_those_of_all_layers(family, calls):
    model = make(*TEXTS[family])
    fast = gossamer.compile(model, tokens=64)
    with torch.inference_mode():
        wanted, given = (m(ids_of(3, 40), output_hidden_states=True) for m in (model, fast))
    assert len(given.hidden_states) == len(wanted.hidden_states) > 3
    for a, b in zip(given.hidden_states, wanted.hidden_states, strict=True):
        torch.testing.assert_close(a, b, rtol=1e-5, atol=1e-5)
    assert calls == []


def test_shared_layers_are_packed_once():
    name, settings = TEXTS["ALBERT"]
    one, many = (
        pack_encoder(make(name, settings | {"num_hidden_layers": count}).encoder, "fp32")
        for count in (2, 8)
    )
    assert (one.num_layers, many.num_layers) == (4, 16)
    assert one.nbytes == many.nbytes


def test_a_tower_that_hides_later_tokens_is_left_alone(calls):
    tower = WORDS | {"eos_token_id": 2, "bos_token_id": 1}
    towers = {"text_config": tower, "vision_config": IMAGE, "projection_dim": 8}
    model = make("CLIPModel", towers)
    fast = gossamer.compile(model, tokens=64)
    inputs = {"input_ids": ids_of(3, 40), "pixel_values": torch.randn(2, 3, 40, 40)}
    with torch.inference_mode():
        wanted, given = model(**inputs), fast(**inputs)
    assert calls == [[65, 65]]
    torch.testing.assert_close(given.logits_per_text, wanted.logits_per_text, rtol=1e-5, atol=1e-5)


def test_layers_in_a_list_are_explained(calls):
    fast = gossamer.compile(make(*TEXTS["ModernBERT"]), tokens=(1, 64))
    rows = {(row.name, row.tokens): row for row in gossamer.explain(fast)}
    assert rows["layers", 64].kernel == "encoder"
    assert rows["layers", 1].kernel == "layer by layer"
    assert "inside layers: panel" in str(rows["layers.1.mlp.Wi", 64].inside)


@pytest.mark.parametrize(
    ("family", "more", "why"),
    [
        ("ModernBERT", {"local_attention": 1}, "sees no other token"),
        ("ModernBERT", {"layer_types": ["sliding_attention"] * 3}, "first layer sees near"),
        ("ModernBERT", {"hidden_activation": "mish"}, "MishActivation has no native form"),
        ("ModernBERT", {"rope_parameters": {
            "full_attention": {"rope_type": "dynamic", "rope_theta": 1e4, "factor": 2.0},
            "sliding_attention": {"rope_type": "default", "rope_theta": 1e4}}}, "'dynamic'"),
    ],
)  # fmt: skip
def test_what_has_no_native_form_is_named(family, more, why):
    name, settings = TEXTS[family]
    with pytest.raises(TargetError, match=why):
        read_layers(make(name, settings | more, sparsity=0))


def test_gradients_are_refused():
    fast = gossamer.compile(make(*IMAGES["ViT"]), tokens=64)
    with pytest.raises(InputError, match="gives no gradients"):
        fast(pixel_values=torch.randn(1, 3, 40, 40, requires_grad=True))
