import copy

import pytest
import torch
from torch import nn

import gossamer
from gossamer.errors import GossamerError, InputError, KernelError
from gossamer.ops.kernels import available_kernels
from gossamer.running.decoder import DecoderEngine, Sampling

transformers = pytest.importorskip("transformers")

VOCAB = 67
SIZES = {
    "vocab_size": VOCAB,
    "num_hidden_layers": 2,
    "max_position_embeddings": 96,
    "bos_token_id": 1,
    "eos_token_id": 2,
}


def make(kind, seed=0, **fields):
    """A tiny model with weights large enough that its logits differ."""
    with torch.random.fork_rng():
        torch.manual_seed(seed)
        config = getattr(transformers, f"{kind}Config")(**(SIZES | fields))
        model = getattr(transformers, f"{kind}ForCausalLM")(config).eval().requires_grad_(False)
        for name, parameter in model.named_parameters():
            if "norm" in name:
                parameter.add_(torch.randn_like(parameter) * 0.1)
            else:
                parameter.normal_(0, 0.2)
    return model


# Grouped queries, odd sizes, tied and untied heads, biases on q, k, v.
MODELS = {
    "llama": lambda: make(
        "Llama",
        hidden_size=36,
        intermediate_size=70,
        num_attention_heads=6,
        num_key_value_heads=2,
        head_dim=10,
        tie_word_embeddings=True,
    ),
    "llama-bias": lambda: make(
        "Llama",
        hidden_size=32,
        intermediate_size=33,
        num_attention_heads=4,
        num_key_value_heads=4,
        head_dim=8,
        attention_bias=True,
        mlp_bias=True,
        rope_parameters={
            "rope_type": "llama3",
            "rope_theta": 10000.0,
            "factor": 4.0,
            "low_freq_factor": 1.0,
            "high_freq_factor": 4.0,
            "original_max_position_embeddings": 32,
        },
    ),
    "qwen2": lambda: make(
        "Qwen2",
        hidden_size=40,
        intermediate_size=50,
        num_attention_heads=5,
        num_key_value_heads=1,
        tie_word_embeddings=False,
    ),
    "mistral": lambda: make(
        "Mistral",
        hidden_size=64,
        intermediate_size=96,
        num_attention_heads=4,
        num_key_value_heads=1,
        head_dim=16,
    ),
}
IDS = torch.randint(0, VOCAB, (1, 40), generator=torch.Generator().manual_seed(3))


def pruned(name, pattern=None, form="masked"):
    model = MODELS[name]()
    options = {"sparsity": 0.5} if pattern is None else {"pattern": pattern}
    gossamer.sparsify(model, ignore=["lm_head"], **options)
    if form == "compact":
        gossamer.compact(model)
    return model


def float64_logits(model):
    """The dense model with exact zeros, in float64."""
    dense = copy.deepcopy(model).double()
    dense.model.rotary_emb.inv_freq = model.model.rotary_emb.inv_freq.float()
    with torch.no_grad():
        return dense(IDS).logits[0]


def relative(got, wanted):
    return float((got.double() - wanted).abs().max() / wanted.abs().max())


@pytest.fixture(params=available_kernels())
def kernels(request, monkeypatch):
    monkeypatch.setenv("GOSSAMER_KERNELS", request.param)
    return request.param


@pytest.mark.parametrize("name", MODELS)
def test_fp32_logits_equal_the_masked_model_in_float64(kernels, name):
    model = pruned(name)
    wanted = float64_logits(model)
    engine = DecoderEngine(model, "fp32")
    assert relative(engine.logits(IDS), wanted) < 1e-4
    assert relative(DecoderEngine(model, "fp32", prompt_copy=False).logits(IDS), wanted) < 1e-4


@pytest.mark.parametrize("form", ["compact", "dense"])
def test_compact_and_dense_layers(kernels, form):
    model = MODELS["llama"]() if form == "dense" else pruned("llama", form="compact")
    wanted = float64_logits(model)
    assert relative(DecoderEngine(model, "fp32").logits(IDS), wanted) < 1e-4


@pytest.mark.parametrize("pattern", ["2:4", "4:8", "nmg:2:4:1"])
def test_patterns(kernels, pattern):
    model = make(
        "Llama",
        hidden_size=48,
        intermediate_size=96,
        num_attention_heads=3,
        num_key_value_heads=1,
        head_dim=16,
        tie_word_embeddings=True,
    )
    gossamer.sparsify(model, pattern=pattern, ignore=["lm_head"])
    wanted = float64_logits(model)
    assert relative(DecoderEngine(model, "fp32").logits(IDS), wanted) < 1e-4
    assert relative(DecoderEngine(model, "int8").logits(IDS), wanted) < 0.1


# Of the norm. A layer rounds by 2^-9 of a value (bf16), half of 1/127 (int8) or of 1/7 (int4) of
# the largest one; random weights of two layers amplify it some times.
@pytest.mark.parametrize(("dtype", "bound"), [("bf16", 0.02), ("int8", 0.06), ("int4", 0.5)])
def test_low_precision_stays_near(kernels, dtype, bound):
    model = pruned("mistral")
    wanted = float64_logits(model)
    got = DecoderEngine(model, dtype).logits(IDS).double()
    error = float((got - wanted).norm() / wanted.norm())
    assert 0 < error < bound


@pytest.mark.parametrize("dtype", ["fp32", "bf16", "int8", "int4"])
def test_one_by_one_equals_all_at_once(kernels, dtype):
    engine = DecoderEngine(pruned("llama"), dtype, prompt_copy=False)
    at_once = engine.logits(IDS)
    session = engine.session()
    one_by_one = torch.stack([session.append(int(token)) for token in IDS[0]])
    assert relative(one_by_one, at_once.double()) < 1e-5
    assert torch.equal(one_by_one.argmax(1), at_once.argmax(1))
    in_parts = engine.session()
    in_parts.prompt(IDS[0, :17])
    assert relative(in_parts.prompt(IDS[0]), at_once[-1].double()) < 1e-5
    assert in_parts.length == IDS.shape[1]


def test_a_context_beyond_one_block_and_one_chunk():
    model = pruned("qwen2")
    ids = torch.randint(0, VOCAB, (1, 96), generator=torch.Generator().manual_seed(4))
    dense = copy.deepcopy(model)
    wanted = dense(ids).logits[0].double()
    assert relative(DecoderEngine(model, "fp32").logits(ids), wanted) < 1e-4


def test_threads_give_the_same_bits():
    engine = DecoderEngine(pruned("llama"), "int8")
    wanted = engine.logits(IDS)
    torch.set_num_threads(2)
    try:
        assert torch.equal(engine.logits(IDS), wanted)
    finally:
        torch.set_num_threads(1)


def test_greedy_generation_is_that_of_transformers():
    model = pruned("llama")
    with torch.no_grad():
        wanted = model.generate(IDS[:, :8], max_new_tokens=12, do_sample=False, eos_token_id=None)
    engine = DecoderEngine(model, "fp32")
    assert engine.generate(IDS[:, :8], 12) == wanted[0, 8:].tolist()


def test_a_session_is_continued_and_rewound():
    engine = DecoderEngine(pruned("llama"), "fp32")
    session = engine.session()
    first = engine.generate(IDS[0, :8], 6, session=session)
    assert session.length == 8 + 5
    other = [*IDS[0, :8].tolist(), 1, 2, 3]
    assert engine.generate(other, 6, session=session) == engine.generate(other, 6)
    assert engine.generate(IDS[0, :8], 6, session=session) == first


def test_generation_ends_at_stop_tokens_and_at_the_context():
    engine = DecoderEngine(pruned("llama"), "fp32", context=12)
    tokens = engine.generate(IDS[0, :8], 50)
    assert len(tokens) == 5  # the last one needs no place
    first_time = tokens.index(tokens[2])
    assert engine.generate(IDS[0, :8], 50, stop=[tokens[2]]) == tokens[:first_time]
    assert engine.generate(IDS[0, :8], 0) == []


def test_draws_depend_on_the_seed_alone():
    engine = DecoderEngine(pruned("llama"), "fp32")
    draws = [
        engine.generate(IDS[0, :4], 20, Sampling(temperature=1.0, top_k=30, top_p=0.95, seed=seed))
        for seed in (1, 1, 2)
    ]
    assert draws[0] == draws[1] != draws[2]


def test_bytes_are_counted():
    model = pruned("mistral")
    size = DecoderEngine(model, "int8").size
    layers = [m for m in model.model.layers.modules() if isinstance(m, nn.Linear)]
    assert size.weights == sum(layer.weight.numel() for layer in layers)
    assert size.kept * 2 == size.weights
    assert size.layer_bytes > size.kept
    assert size.bytes_per_token == size.layer_bytes + size.head_bytes


def test_bad_tokens_are_refused():
    engine = DecoderEngine(pruned("llama"), "fp32", context=16)
    for ids, words in (
        ([], "prompt is empty"),
        ([0, VOCAB], "token 67 at position 1 is outside the vocabulary of 67"),
        ([-1], "token -1"),
        (list(range(17)), "17 tokens, the context is 16"),
        (torch.zeros(2, 3, dtype=torch.long), "one sequence"),
        (torch.zeros(3), "one sequence"),
        ([1.5], "token numbers"),
        ([2**40], "32 bits"),
    ):
        with pytest.raises(InputError, match=words):
            engine.generate(ids, 1)
    session = engine.session()
    session.prompt(list(range(16)))
    with pytest.raises(InputError, match="16 tokens are held and 1 are to come"):
        session.append(1)
    assert session.length == 16


def test_what_is_not_supported_is_named():
    with pytest.raises(InputError, match="BloomForCausalLM cannot run on the native decoder"):
        DecoderEngine(
            transformers.BloomForCausalLM(
                transformers.BloomConfig(vocab_size=8, n_layer=1, hidden_size=8, n_head=2)
            )
        )
    with pytest.raises(InputError, match="activation QuickGELUActivation"):
        DecoderEngine(make("Llama", hidden_size=16, intermediate_size=16, num_attention_heads=2,
                           hidden_act="quick_gelu"))  # fmt: skip
    small = make("Mistral", hidden_size=16, intermediate_size=16, num_attention_heads=2,
                 num_key_value_heads=1)  # fmt: skip
    with pytest.raises(InputError, match="dtype must be one of"):
        DecoderEngine(small, "int3")
    with pytest.raises(InputError, match="context must be between 1 and the 96"):
        DecoderEngine(small, context=97)


def test_weights_and_logits_that_are_not_finite():
    model = MODELS["llama"]()
    model.model.layers[1].mlp.up_proj.weight[0, 0] = float("nan")
    with pytest.raises(InputError, match=r"model.layers.1.mlp holds weights that are NaN"):
        DecoderEngine(model)
    for dtype in ("fp32", "int8", "int4"):
        model = MODELS["llama"]()
        model.model.layers[0].input_layernorm.weight[3] = float("nan")
        engine = DecoderEngine(model, dtype)
        for prompt in ([1], [1] * 20):
            with pytest.raises(KernelError, match="not finite"):
                engine.generate(prompt, 3)


@pytest.mark.parametrize(
    ("field", "value"),
    [
        ("num_key_value_heads", 1),
        ("num_key_value_heads", 3),
        ("num_attention_heads", 0),
        ("num_attention_heads", 16),
        ("intermediate_size", 8),
        ("hidden_size", 8),
        ("vocab_size", 5),
        ("vocab_size", 999),
    ],
)
def test_a_configuration_that_lies_is_refused(field, value):
    model = MODELS["llama"]()
    setattr(model.config, field, value)
    with pytest.raises(GossamerError, match=r"do not agree"):
        DecoderEngine(model, "int8", context=16)


@pytest.mark.parametrize("kernels", available_kernels())
def test_int4_with_offsets_runs_as_it_is(kernels, monkeypatch):
    from gossamer.nn.rounding import round_layer

    monkeypatch.setenv("GOSSAMER_KERNELS", kernels)
    model = MODELS["llama"]()
    for layer in model.modules():
        if isinstance(layer, nn.Embedding | nn.Linear):
            round_layer(layer, "int4_offset")
    engine = DecoderEngine(model, "int4", head_dtype="int4")
    assert engine.kernels == ["few_int-int4_offset"]
    ids = torch.arange(3, 23)[None]
    wanted = model(ids).logits[0]
    found = engine.logits(ids)
    # Activations have 8 bits; weights rounded once more to int4 would be off by far more.
    assert (found - wanted).norm() / wanted.norm() < 0.03


@pytest.mark.parametrize("wins", [True, False])
def test_a_plug_in_with_a_native_weight_takes_part(monkeypatch, wins):
    from gossamer.ops.dispatch import KERNELS
    from gossamer.ops.linear import pack_panel
    from gossamer.ops.timing import Race
    from gossamer.running.decoder import weights as room

    def pack(matrix):
        packed = pack_panel(matrix)
        packed.kernel = "mine"
        return packed

    monkeypatch.setenv("GOSSAMER_TUNE", "on")
    monkeypatch.setattr(room, "contest", lambda *runs: Race((2.0, 1.0 if wins else 3.0)))
    model = MODELS["llama"]()
    ids = torch.arange(3, 23)[None]
    gossamer.register.op("linear", "mine")(pack)
    gossamer.register.op("linear", "other")(lambda matrix: lambda x, bias, activation: x)
    try:
        engine = DecoderEngine(model, "fp32")
        monkeypatch.setenv("GOSSAMER_TUNE", "off")
        unmeasured = DecoderEngine(model, "fp32")
    finally:
        KERNELS["linear"].remove("mine")
        KERNELS["linear"].remove("other")
    assert engine.kernels == (["mine"] if wins else ["few/bitmask"])
    assert unmeasured.kernels == ["few/bitmask"]
    torch.testing.assert_close(engine.logits(ids), model(ids).logits[0], rtol=1e-4, atol=1e-4)


def test_a_table_on_a_grid_is_packed_as_it_is():
    """Zeros of a rounded table are numbers like the others, and nothing is rounded again."""
    model = MODELS["llama"]()
    from gossamer.nn.rounding import round_layer

    round_layer(model.model.embed_tokens, "int4")
    engine = DecoderEngine(model, "fp32", head_dtype="int4")
    assert "few_int-int4_offset" in str(engine.explained())
    ids = [1, 5, 9]
    expected = DecoderEngine(model, "fp32").logits(ids)
    assert torch.allclose(engine.logits(ids), expected, atol=0.05 * float(expected.abs().max()))


def test_tables_in_other_forms_run():
    model = MODELS["llama"]()
    rounded = copy.deepcopy(model)
    gossamer.nn.quantize_tables(rounded, bits=8, granularity="row")
    plain = copy.deepcopy(model)
    with torch.no_grad():
        plain.model.embed_tokens.weight.copy_(rounded.model.embed_tokens.dense_weight())
    ids = [1, 5, 9]
    found = DecoderEngine(rounded, "fp32")
    assert torch.equal(found.logits(ids), DecoderEngine(plain, "fp32").logits(ids))
    assert found.size == DecoderEngine(plain, "fp32").size
