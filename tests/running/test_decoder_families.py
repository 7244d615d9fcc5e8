"""Every family on the native decoder equals transformers: prompts, single tokens, generation."""

import pytest
import torch

import gossamer
from gossamer.errors import InputError
from gossamer.nn.families import answers
from gossamer.nn.relufication import relufy
from gossamer.nn.surgery.matrix_layers import conv1d_to_linear
from gossamer.ops.kernels import available_kernels
from gossamer.running.decoder import DecoderEngine, NativeGenerator, make_generator

transformers = pytest.importorskip("transformers")

from decoder_models import CONTEXT, FAMILIES, VOCAB, make_model  # noqa: E402

IDS = torch.randint(3, VOCAB, (1, 90), generator=torch.Generator().manual_seed(3))
TOLERANCE = 1e-5


def logits(model, ids=IDS):
    with torch.no_grad():
        return model(ids).logits[0]


def distance(found, expected):
    return float((found - expected).abs().max() / expected.abs().max())


@pytest.fixture(params=available_kernels())
def kernels(request, monkeypatch):
    monkeypatch.setenv("GOSSAMER_KERNELS", request.param)
    return request.param


def test_every_family_of_the_table_is_here():
    assert {facts.model for facts in answers("decoder").values()} == {
        k for k, _ in FAMILIES.values()
    }


@pytest.mark.parametrize("name", FAMILIES)
def test_logits_of_prompts_and_single_tokens(kernels, name):
    model = make_model(name)
    expected = logits(model)
    engine = DecoderEngine(model, "fp32", context=CONTEXT)
    assert distance(engine.logits(IDS), expected) < TOLERANCE
    session = engine.session()
    session.prompt(IDS[0, :31])
    one_by_one = torch.stack([session.append(int(token)) for token in IDS[0, 31:]])
    assert distance(one_by_one, expected[31:]) < TOLERANCE


@pytest.mark.parametrize("name", FAMILIES)
def test_generation_is_that_of_transformers_token_for_token(name):
    model = conv1d_to_linear(make_model(name))
    gossamer.sparsify(model, sparsity=0.3, ignore=["lm_head"])
    with torch.no_grad():
        wanted = model.generate(
            IDS[:, :20], max_new_tokens=64, do_sample=False, eos_token_id=None, pad_token_id=0
        )
    engine = DecoderEngine(model, "fp32", context=CONTEXT)
    assert engine.generate(IDS[:, :20], 64) == wanted[0, 20:].tolist()


# Of the norm: int8 weights and activations round by half of 1/127 of the largest one; three layers
# of random weights amplify it some times.
@pytest.mark.parametrize("name", FAMILIES)
def test_int8_stays_near(name):
    # Of experts every token takes all: rounding would send some to others.
    fields = FAMILIES[name][1]
    experts = fields.get("num_experts", fields.get("num_local_experts"))
    model = make_model(name, **({"num_experts_per_tok": experts} if experts else {}))
    model = conv1d_to_linear(model)
    gossamer.sparsify(model, sparsity=0.5, ignore=["lm_head"])
    expected = logits(model)
    found = DecoderEngine(model, "int8", context=CONTEXT).logits(IDS)
    assert 0 < float((found - expected).norm() / expected.norm()) < 0.1


@pytest.mark.parametrize("act", ["relu", "gelu", "gelu_pytorch_tanh", "gelu_new", "silu"])
@pytest.mark.parametrize("name", ["llama", "gpt-neox"])
def test_activations_with_and_without_gate(kernels, act, name):
    model = make_model(name, hidden_act=act)
    engine = DecoderEngine(model, "fp32")
    assert distance(engine.logits(IDS[:, :9]), logits(model, IDS[:, :9])) < TOLERANCE


def test_a_relufied_model_runs_with_its_new_activation():
    model = make_model("gemma2")
    relufy(model)
    assert distance(DecoderEngine(model, "fp32").logits(IDS), logits(model)) < TOLERANCE


@pytest.mark.parametrize("window", [1, 31, 64, 89, 90, 1000])
def test_windows_of_every_length(window):
    model = make_model("mistral", sliding_window=window)
    assert distance(DecoderEngine(model, "fp32").logits(IDS), logits(model)) < TOLERANCE


def test_large_scores_are_capped_as_tanh_does(kernels):
    model = make_model("gemma2", attn_logit_softcapping=0.05)
    assert distance(DecoderEngine(model, "fp32").logits(IDS), logits(model)) < TOLERANCE


@pytest.mark.parametrize(
    ("name", "settings", "words"),
    [
        ("phi3 longrope", {"max_position_embeddings": 4 * CONTEXT}, "texts over 96 tokens"),
        ("opt", {"do_layer_norm_before": False}, "do_layer_norm_before is False"),
        ("opt", {"word_embed_proj_dim": 20}, "project_in is set"),
        ("gpt2", {"add_cross_attention": True}, "add_cross_attention is True"),
        ("gemma3", {"use_bidirectional_attention": True}, "use_bidirectional_attention is True"),
    ],
)
def test_what_a_family_can_have_and_the_engine_cannot_is_named(name, settings, words):
    with pytest.raises(InputError, match=words):
        DecoderEngine(make_model(name, **settings))


@pytest.mark.parametrize("window", [-5, 0])
def test_windows_that_cannot_be_are_named_before_anything_is_packed(window):
    model = make_model("mistral")
    model.config.sliding_window = window
    model.model.layers[0].self_attn.q_proj = None  # whoever packs a layer first fails here
    with pytest.raises(InputError, match="sliding window must be a whole number from 1"):
        DecoderEngine(model)


@pytest.mark.parametrize("name", ["gpt2", "gemma3", "opt"])
def test_the_engine_is_chosen_for_whoever_generates(name):
    generator = make_generator(make_model(name), context=CONTEXT)
    assert isinstance(generator, NativeGenerator)
