"""Mixtures of experts on the native decoder: forms, files, bytes, threads, bad input."""

import pytest
import torch

import gossamer
from gossamer.errors import InputError, KernelError
from gossamer.nn.moe import adopt_experts
from gossamer.ops.kernels import available_kernels
from gossamer.running.decoder import DecoderEngine, NativeGenerator, make_generator

transformers = pytest.importorskip("transformers")

from decoder_models import CONTEXT, VOCAB, make_model  # noqa: E402

MIXTURES = ["mixtral", "qwen2-moe", "qwen3-moe", "olmoe"]
IDS = torch.randint(3, VOCAB, (1, 90), generator=torch.Generator().manual_seed(3))


def logits(model, ids=IDS):
    with torch.no_grad():
        return model(ids).logits[0]


def distance(found, expected):
    return float((found - expected).abs().max() / expected.abs().max())


@pytest.fixture(params=available_kernels())
def kernels(request, monkeypatch):
    monkeypatch.setenv("GOSSAMER_KERNELS", request.param)
    return request.param


@pytest.mark.parametrize("name", MIXTURES)
@pytest.mark.parametrize("form", ["layers", "masked", "compact"])
def test_experts_in_every_form(name, form):
    model = make_model(name)
    if form == "layers":
        adopt_experts(model)
    else:
        gossamer.sparsify(model, sparsity=0.6, ignore=["lm_head"])
    expected = logits(model)
    if form == "compact":
        gossamer.compact(model)
    engine = DecoderEngine(model, "fp32", context=CONTEXT)
    assert distance(engine.logits(IDS), expected) < 1e-5
    assert engine.size.kept < engine.size.weights or form == "layers"


@pytest.mark.parametrize("name", MIXTURES)
@pytest.mark.parametrize("threads", [1, 3])
@pytest.mark.parametrize("tokens", [1, 2, 17, 65])
def test_prompts_of_every_length_and_number_of_threads(name, threads, tokens):
    model = make_model(name)
    before = torch.get_num_threads()
    torch.set_num_threads(threads)
    try:
        found = DecoderEngine(model, "fp32", context=CONTEXT).logits(IDS[:, :tokens])
    finally:
        torch.set_num_threads(before)
    assert distance(found, logits(model, IDS[:, :tokens])) < 1e-5


@pytest.mark.parametrize("name", ["mixtral", "qwen2-moe"])
@pytest.mark.parametrize(("top_k", "normalised"), [(1, False), (1, True), (5, False), (5, True)])
def test_one_expert_and_all_of_them(kernels, name, top_k, normalised):
    if name == "mixtral":
        model = make_model(name, num_experts_per_tok=top_k)
    else:
        model = make_model(name, num_experts_per_tok=top_k, norm_topk_prob=normalised)
    found = DecoderEngine(model, "fp32", context=CONTEXT).logits(IDS[:, :40])
    assert distance(found, logits(model, IDS[:, :40])) < 1e-5


@pytest.mark.parametrize("dtype", ["bf16", "int8", "int4"])
def test_weights_on_a_grid_of_int4_lose_nothing_but_what_activations_are_rounded(dtype):
    # All experts are taken: rounding sends no token elsewhere.
    model = make_model("olmoe", num_experts_per_tok=7)
    with torch.no_grad():
        for name, parameter in model.model.layers.named_parameters():
            if "proj" in name:
                scale = (parameter.abs().amax(-1, keepdim=True) / 7).bfloat16().float()
                parameter.copy_((parameter / scale).round().clamp(-7, 7) * scale)
    engine = DecoderEngine(model, dtype, head_dtype="fp32", context=CONTEXT)
    expected, found = logits(model), engine.logits(IDS)
    assert 0 < float((found - expected).norm() / expected.norm()) < 0.05


def test_bytes_of_a_token_are_those_of_its_experts():
    size = DecoderEngine(make_model("olmoe"), "int8", context=CONTEXT).size
    whole = DecoderEngine(make_model("olmoe", num_experts_per_tok=7), "int8", context=CONTEXT).size
    assert whole.active_bytes == whole.layer_bytes == size.layer_bytes
    assert size.resident_bytes == whole.resident_bytes
    one = make_model("olmoe", num_experts=1, num_experts_per_tok=1)
    alone = DecoderEngine(one, "int8", context=CONTEXT).size.layer_bytes
    expert = (whole.layer_bytes - alone - 6 * 3 * 36 * 4) / 6  # without the rows of three routers
    # Rows of routers are filled up.
    assert size.active_bytes == pytest.approx(whole.layer_bytes - 4 * expert, rel=2e-3)
    assert size.bytes_per_token == size.active_bytes + size.head_bytes


def test_what_is_explained_names_the_experts_once():
    model = make_model("qwen2-moe")
    rows = DecoderEngine(model, "int8", context=CONTEXT).explained()
    text = str(rows)
    assert text.count("model.layers.1.mlp.experts.up of 6 experts") == 1
    assert "model.layers.1.mlp.gate" in text
    assert "model.layers.1.mlp.shared_expert" in text
    assert "model.layers.0.mlp.experts" not in text


def test_an_artifact_of_a_pruned_mixture_generates_natively(tmp_path):
    model = make_model("olmoe")
    gossamer.sparsify(model, sparsity=0.5, ignore=["lm_head"])
    expected = logits(model)
    gossamer.save(model, tmp_path / "a")
    generator = make_generator(gossamer.load(tmp_path / "a"), "fp32", context=CONTEXT)
    assert isinstance(generator, NativeGenerator)
    assert distance(generator.engine.logits(IDS), expected) < 1e-5


def test_a_session_can_be_cut_and_run_again():
    engine = DecoderEngine(make_model("mixtral"), "fp32", context=CONTEXT)
    session = engine.session()
    first = session.prompt(IDS[0, :50])
    session.prompt(IDS[0, 10:30])
    assert torch.equal(session.prompt(IDS[0, :50]), first)


def test_a_router_that_is_not_a_number_is_named():
    model = make_model("mixtral")
    with torch.no_grad():
        model.model.layers[1].mlp.gate.weight[2, 3] = float("nan")
    with pytest.raises(InputError, match=r"model\.layers\.1\.mlp\.gate holds weights that are NaN"):
        DecoderEngine(model)


def test_an_expert_that_is_not_a_number_is_named():
    model = make_model("mixtral")
    with torch.no_grad():
        model.model.layers[2].mlp.experts.down_proj[1, 2, 3] = float("inf")
    with pytest.raises(InputError, match=r"model\.layers\.2\.mlp\.experts\.down holds weights"):
        DecoderEngine(model)


@pytest.mark.parametrize("top_k", [0, 6])
def test_more_experts_than_there_are_is_said_before_anything_is_packed(top_k):
    model = make_model("mixtral")
    model.model.layers[1].mlp.gate.top_k = top_k
    model.model.layers[0].self_attn.q_proj = None  # whoever packs a layer first fails here
    with pytest.raises(InputError, match=rf"chooses {top_k} of 5 experts, and there are 5"):
        DecoderEngine(model)


def test_tokens_that_are_not_numbers_choose_experts_all_the_same():
    model = make_model("olmoe")
    with torch.no_grad():
        model.model.norm.weight.fill_(1.0)
    engine = DecoderEngine(model, "fp32", context=CONTEXT)
    wild = make_model("olmoe")
    with torch.no_grad():
        wild.model.embed_tokens.weight.fill_(1e38)  # finite, but not its square
    found = DecoderEngine(wild, "fp32", context=CONTEXT).logits(IDS[:, :20])
    assert found.shape == engine.logits(IDS[:, :20]).shape


def test_clipped_projections_are_refused():
    with pytest.raises(InputError, match="clip_qkv is set"):
        DecoderEngine(make_model("olmoe", clip_qkv=1.0))


def test_a_gate_of_its_own_is_refused():
    model = make_model("mixtral")
    experts = model.model.layers[0].mlp.experts

    class Limited(type(experts)):
        def _apply_gate(self, h):
            return h.chunk(2, dim=-1)[0]

    Limited.__module__ = type(experts).__module__
    experts.__class__ = Limited
    with pytest.raises(InputError, match="a gate of its own"):
        DecoderEngine(model)


def test_sizes_that_do_not_agree_are_named_by_the_native_call():
    model = make_model("mixtral")
    model.config.hidden_size = 40
    model.config.head_dim = 10
    with pytest.raises((InputError, KernelError)):
        DecoderEngine(model)
