"""Keys that a decoder reads, and how they are stored: against a float64 forward of the rules."""

import math

import numpy as np
import pytest
import torch
import transformers

from gossamer.errors import InputError, PatternError
from gossamer.ops.engines.decoder_session import NativeSession
from gossamer.ops.kernels import available_kernels
from gossamer.patterns.attention.key_rules import KeyRules, parse_key_rules
from gossamer.running.decoder import DecoderEngine, GenerationOptions, make_generator

VOCAB, MOST, TOKENS = 53, 320, 300
PAGE, TILE = 16, 64


def make_model(seed=0, **fields):
    """A tiny Llama: groups of three heads, a width that no vector divides."""
    settings = {
        "vocab_size": VOCAB,
        "hidden_size": 24,
        "intermediate_size": 40,
        "num_hidden_layers": 3,
        "num_attention_heads": 6,
        "num_key_value_heads": 2,
        "head_dim": 20,
        "max_position_embeddings": MOST,
        "bos_token_id": 1,
        "eos_token_id": 2,
    }
    with torch.random.fork_rng():
        torch.manual_seed(seed)
        model = transformers.LlamaForCausalLM(transformers.LlamaConfig(**(settings | fields)))
        for parameter in model.parameters():
            if parameter.dim() == 2:
                parameter.data.normal_(0, 0.3)
    return model.eval().requires_grad_(False)


IDS = torch.randint(0, VOCAB, (TOKENS,), generator=torch.Generator().manual_seed(3))


@pytest.fixture(scope="module")
def model():
    return make_model()


@pytest.fixture(params=available_kernels())
def kernels(request, monkeypatch):
    monkeypatch.setenv("GOSSAMER_KERNELS", request.param)
    return request.param


def turned(x_HTD, positions_T, model):
    """Heads turned to positions, in float64."""
    angles = torch.outer(positions_T.double(), model.model.rotary_emb.inv_freq.double())
    cosines, sines = angles.cos(), angles.sin()
    first, second = x_HTD.chunk(2, dim=-1)
    return torch.cat([first * cosines - second * sines, second * cosines + first * sines], -1)


def in_codes(x):
    """Rows of heads as -127 to 127 times a scale."""
    scale = x.abs().amax(-1, keepdim=True) / 127
    return (x / scale).round() * scale


def forward(model, ids_T, scores_of, values_as=lambda v: v):
    """Logits in float64; scores_of(layer, q, k) gives [H, T, T], unturned heads come in."""
    config = model.config
    group = config.num_attention_heads // config.num_key_value_heads
    x_TK = model.model.embed_tokens.weight.double()[ids_T]

    def norm(layer, x):
        return x / (x.pow(2).mean(-1, keepdim=True) + layer.variance_epsilon).sqrt() * layer.weight

    def heads(linear, x):
        return (x @ linear.weight.double().T).unflatten(-1, (-1, config.head_dim)).transpose(0, 1)

    for number, layer in enumerate(model.model.layers):
        part = layer.self_attn
        read = norm(layer.input_layernorm, x_TK)
        q, k, v = (heads(p, read) for p in (part.q_proj, part.k_proj, part.v_proj))
        k, v = k.repeat_interleave(group, 0), v.repeat_interleave(group, 0)
        weights = (scores_of(number, q, k) / math.sqrt(config.head_dim)).softmax(-1)
        joined = (weights @ values_as(v)).transpose(0, 1).flatten(1)
        x_TK = x_TK + joined @ part.o_proj.weight.double().T
        read = norm(layer.post_attention_layernorm, x_TK)
        mlp = layer.mlp
        gate, up = (read @ p.weight.double().T for p in (mlp.gate_proj, mlp.up_proj))
        x_TK = x_TK + (torch.nn.functional.silu(gate) * up) @ mlp.down_proj.weight.double().T
    return norm(model.model.norm, x_TK) @ model.lm_head.weight.double().T


def causal(count):
    return torch.ones(count, count, dtype=torch.bool).tril()


def all_scores(model):
    def scores(_, q, k):
        positions = torch.arange(q.shape[1])
        full = turned(q, positions, model) @ turned(k, positions, model).transpose(1, 2)
        return full.masked_fill(~causal(q.shape[1]), -math.inf)

    return scores


def steps(engine, ids, prompt):
    """Logits behind every token: a prompt of so many tokens, the others one by one."""
    session = NativeSession(engine._native, engine.keys)
    found = [session.step(ids[:prompt].int().numpy(), every=True)] if prompt else []
    found += [session.step(ids[i : i + 1].int().numpy()) for i in range(prompt, len(ids))]
    return torch.from_numpy(np.concatenate(found)).double()


def error(found, wanted):
    return float((found - wanted).abs().max() / wanted.abs().max())


def engine_of(model, text="full", dtype="fp32", **options):
    return DecoderEngine(model, "fp32", keys=parse_key_rules(text, dtype), **options)


# Prompts on both sides of the number from which tiles are used, and of a tile.
@pytest.mark.parametrize("prompt", [0, 1, 16, 17, 63, 64, 65, TOKENS])
def test_all_keys_equal_the_dense_model(kernels, model, prompt):
    wanted = forward(model, IDS, all_scores(model))
    assert error(steps(engine_of(model), IDS, prompt), wanted) < 3e-5


def distance(found, wanted):
    return float((found - wanted).norm() / wanted.norm())


def scores_in_codes(model):
    def scores(_, q, k):
        positions = torch.arange(q.shape[1])
        q, k = (in_codes(turned(x, positions, model)) for x in (q, k))
        return (q @ k.transpose(1, 2)).masked_fill(~causal(q.shape[1]), -math.inf)

    return scores


# What is left are weights, within 1 / 510 of the largest of a page, and codes of numbers that lie
# between two of them; random weights amplify it. Rounding as such moves logits by 0.03.
@pytest.mark.parametrize("prompt", [0, 16])
def test_int8_equals_a_forward_of_codes(kernels, model, prompt):
    wanted = forward(model, IDS, scores_in_codes(model), in_codes)
    assert distance(steps(engine_of(model, dtype="int8"), IDS, prompt), wanted) < 0.015


# Queries and weights are floats there.
def test_int8_prompts_on_tiles_stay_near(kernels, model):
    wanted = forward(model, IDS, all_scores(model))
    assert distance(steps(engine_of(model, dtype="int8"), IDS, TOKENS), wanted) < 0.04


def test_int8_has_the_same_codes_on_every_set(model, monkeypatch):
    found = []
    for name in available_kernels():
        monkeypatch.setenv("GOSSAMER_KERNELS", name)
        found.append(steps(engine_of(model, dtype="int8"), IDS[:40], 0))
    assert all(distance(other, found[0]) < 0.004 for other in found[1:])


def spread(x):
    """Rows filled up to 32 numbers, times a Hadamard matrix."""
    matrix = torch.ones(1, 1, dtype=torch.float64)
    for _ in range(5):
        matrix = torch.cat([torch.cat([matrix, matrix], 1), torch.cat([matrix, -matrix], 1)])
    return torch.nn.functional.pad(x, (0, 32 - x.shape[-1])) @ matrix / math.sqrt(32)


def in_fours(x):
    """Rows after a Hadamard matrix as -7 to 7 times a scale."""
    scale = x.abs().amax(-1, keepdim=True) / 7.4
    return (x / scale).round() * scale


# Random weights amplify what rounding leaves: int4 as such moves logits by half of their size.
@pytest.mark.parametrize("prompt", [0, 16])
def test_int4_equals_a_forward_of_codes(kernels, model, prompt):
    def scores(_, q, k):
        positions = torch.arange(q.shape[1])
        q, k = (spread(turned(x, positions, model)) for x in (q, k))
        return (in_codes(q) @ in_fours(k).mT).masked_fill(~causal(q.shape[1]), -math.inf)

    def values(v):
        return spread(in_fours(spread(v)))[..., : v.shape[-1]]

    wanted = forward(model, IDS[:80], scores, values)
    found = steps(engine_of(model, dtype="int4"), IDS[:80], prompt)
    # A number between two codes may be rounded otherwise, and all tokens behind it see that.
    assert (found - wanted).norm(dim=-1).median() / wanted.norm(dim=-1).median() < 0.05
    plain = forward(model, IDS[:80], all_scores(model))
    assert distance(plain, wanted) > 0.1


def test_int4_prompts_on_tiles_are_those_of_tokens(kernels, model):
    one_by_one = steps(engine_of(model, dtype="int4"), IDS[:80], 0)
    assert distance(steps(engine_of(model, dtype="int4"), IDS[:80], 80), one_by_one) < 0.2


@pytest.mark.parametrize("dtype", ["fp32", "int8", "int4"])
@pytest.mark.parametrize("text", ["pages:320", "mass:1", "window:320", "sinks:4+window:320"])
def test_a_budget_of_everything_has_the_same_bits(kernels, model, text, dtype):
    full = steps(engine_of(model, dtype=dtype), IDS, 150)
    assert torch.equal(steps(engine_of(model, text, dtype), IDS, 150), full)


def streaming_scores(model, sinks, window):
    """Places beside the sinks, as published: keys of the window stand behind them."""

    def scores(_, q, k):
        count = q.shape[1]
        found = torch.full((q.shape[0], count, count), -math.inf, dtype=torch.float64)
        for t in range(count):
            held = [j for j in range(t + 1) if j < sinks or j > t - window]
            places = torch.arange(len(held))
            own = turned(q[:, t : t + 1], places[-1:], model)
            found[:, t, held] = (own @ turned(k[:, held], places, model).transpose(1, 2))[:, 0]
        return found

    return scores


@pytest.mark.parametrize(("sinks", "window"), [(0, 1), (0, 40), (4, 1), (4, 40), (17, 33), (70, 9)])
@pytest.mark.parametrize("prompt", [0, 100, TOKENS])
def test_sinks_and_a_window_have_the_places_of_the_paper(kernels, model, sinks, window, prompt):
    text = f"sinks:{sinks}+window:{window}" if sinks else f"window:{window}"
    engine = engine_of(model, text)
    wanted = forward(model, IDS, streaming_scores(model, sinks, window))
    assert error(steps(engine, IDS, prompt), wanted) < 3e-5


def test_a_text_may_be_longer_than_the_positions(kernels):
    """Memory is that of the window, and places never leave it."""
    short = make_model(max_position_embeddings=64)
    engine = engine_of(short, "sinks:4+window:30", context=100_000)
    wanted = forward(short, IDS, streaming_scores(short, 4, 30))
    assert error(steps(engine, IDS, 70), wanted) < 3e-5
    assert engine.key_bytes == engine_of(short, "sinks:4+window:30", context=50_000).key_bytes
    assert NativeSession(engine._native, engine.keys).nbytes == engine.key_bytes < 300_000
    with pytest.raises(InputError, match="between 1 and the 64 positions"):
        engine_of(short, "sinks:4+window:61", context=100)
    with pytest.raises(InputError, match="sinks and a window that fit"):
        engine_of(short, context=65)


def paged_scores(model, budget, whole):
    """Each token's pages by what the least and largest numbers of their keys allow at most."""
    dense = all_scores(model)

    def scores(layer, q, k):
        found = dense(layer, q, k)
        if layer < whole:
            return found
        count, wanted = q.shape[1], -(-budget // PAGE)
        group = model.config.num_attention_heads // model.config.num_key_value_heads
        positions = torch.arange(count)
        q, k = turned(q, positions, model), turned(k, positions, model)
        for t in range(count):
            pages = t // PAGE + 1
            if pages <= wanted:
                continue
            latest = min(2, wanted)
            for first in range(0, q.shape[0], group):
                heads = slice(first, first + group)
                full = [k[first, p * PAGE : (p + 1) * PAGE] for p in range((t + 1) // PAGE)]
                least = torch.stack([page.min(0).values for page in full])
                most = torch.stack([page.max(0).values for page in full])
                own = q[heads, t] / math.sqrt(model.config.head_dim)
                bounds = torch.maximum(own[:, None] * least, own[:, None] * most).sum(-1)
                masses = bounds.softmax(-1).sum(0)[: pages - latest]
                kept = set(masses.topk(wanted - latest).indices.tolist())
                kept |= set(range(pages - latest, pages))
                gone = [j for j in range(t + 1) if j // PAGE not in kept]
                found[heads, t, gone] = -math.inf
        return found

    return scores


@pytest.mark.parametrize(("budget", "whole"), [(1, 1), (32, 0), (64, 2), (100, 1)])
def test_pages_are_those_of_the_largest_bounds(kernels, model, budget, whole):
    engine = engine_of(model, f"pages:{budget},whole={whole}")
    wanted = forward(model, IDS, paged_scores(model, budget, whole))
    assert error(steps(engine, IDS, 0), wanted) < 3e-5
    near = steps(engine_of(model, f"pages:{budget},whole={whole}", "int8"), IDS[:PAGE], 0)
    assert distance(near, wanted[:PAGE]) < 0.02


def massive_scores(model, mass, chunk=64, looks=8):
    """Tiles of 64 x 64 that hold the mass of some queries of a step, by head."""
    dense = all_scores(model)

    def scores(layer, q, k):
        found = dense(layer, q, k)
        weights = (found / math.sqrt(model.config.head_dim)).softmax(-1)
        count = q.shape[1]
        for start in range(0, count, chunk):
            rows = min(chunk, count - start)
            tiles = (start + rows - 1) // TILE + 1
            others = tiles - 2
            if rows < 17 or others < 2:
                continue
            seen = range(rows - 1, -1, rows // -looks)
            for head in range(q.shape[0]):
                looked = sum(weights[head, start + t] for t in seen)
                masses = [float(looked[i * TILE : (i + 1) * TILE].sum()) for i in range(tiles)]
                held = masses[0] + sum(masses[others:])
                for tile in sorted(range(1, others), key=lambda i: -masses[i]):
                    if held >= mass * len(seen):
                        columns = slice(tile * TILE, (tile + 1) * TILE)
                        found[head, start : start + rows, columns] = -math.inf
                    held += masses[tile]
        return found

    return scores


@pytest.mark.parametrize("mass", [0.01, 0.5, 0.8])
def test_tiles_of_a_prompt_hold_the_mass(kernels, mass):
    model = make_model(num_hidden_layers=2, max_position_embeddings=640)
    ids = torch.randint(0, VOCAB, (600,), generator=torch.Generator().manual_seed(5))
    wanted = forward(model, ids, massive_scores(model, mass))
    found = steps(engine_of(model, f"mass:{mass}"), ids, 600)
    assert error(found, wanted) < 3e-5
    assert error(wanted, forward(model, ids, all_scores(model))) > 1e-4


def test_windows_of_a_model_and_of_the_rules_meet(kernels):
    mistral = transformers.MistralForCausalLM(
        transformers.MistralConfig(
            vocab_size=VOCAB,
            hidden_size=24,
            intermediate_size=40,
            num_hidden_layers=2,
            num_attention_heads=4,
            num_key_value_heads=1,
            head_dim=16,
            sliding_window=25,
            max_position_embeddings=MOST,
        )
    ).eval()
    own = steps(engine_of(mistral), IDS, 100)
    # Its own windows are shorter: nothing is left to forget but memory.
    assert error(steps(engine_of(mistral, "window:30"), IDS, 100), own) < 3e-5
    assert error(steps(engine_of(mistral, "mass:0.99+pages:64,whole=0"), IDS, 100), own) < 3e-5


@pytest.mark.parametrize("text", ["full", "sinks:4+window:40", "pages:64"])
def test_a_session_goes_on_with_what_it_still_holds(model, text):
    engine = engine_of(model, text)
    session = engine.session()
    session.prompt(IDS[:200])
    for length in (190, 120, 30, 230):
        text_ids = [*IDS[: length - 1].tolist(), 7]
        again = session.prompt(text_ids)
        # A prompt of its own may run on tiles, all keys of which pages leave in.
        if text != "pages:64":
            assert error(again, engine.session().prompt(text_ids)) < 1e-4
        assert torch.isfinite(again).all()
        assert session.length == length
    # What stood before a window is gone: the text is run anew.
    assert session.shared(IDS[:20]) == (0 if "window" in text else 19)


def test_texts_share_prefixes_and_prompts_come_in_parts(model):
    generator = make_generator(model, context=MOST)
    long = IDS[:290].tolist()
    turns = list(generator.turns(long, GenerationOptions(4)))
    assert turns[0] is None
    assert None not in turns[1:]
    assert len(turns) == 5
    assert list(generator.generate(long, GenerationOptions(4))) == turns[1:]
    # The second time only the last token was run, the session is the same.
    assert len(generator._free) == 1
    other = IDS[100:150].tolist()
    list(generator.generate(other, GenerationOptions(2)))
    assert len(generator._free) == 2
    assert max(session.shared(long) for session in generator._free) == 289


@pytest.mark.parametrize("dtype", ["fp32", "int8", "int4"])
def test_memory_is_what_a_session_says(model, dtype):
    for text in ("full", "pages:64", "window:40"):
        engine = engine_of(model, text, dtype)
        assert NativeSession(engine._native, engine.keys).nbytes == engine.key_bytes
    full = engine_of(model, dtype=dtype).key_bytes
    layers, heads, padded = 3, 2, 32
    positions = -(-MOST // PAGE) * PAGE
    each = {"fp32": 4 * padded, "int8": padded + 4, "int4": padded // 2 + 4}[dtype]
    assert full == 2 * layers * heads * positions * each


def test_keys_that_are_not_finite_show(kernels):
    broken = make_model()
    broken.model.layers[1].self_attn.k_proj.weight[0] = 3e38
    for dtype in ("fp32", "int8", "int4"):
        found = steps(engine_of(broken, dtype=dtype), IDS[:40], 20)
        assert not torch.isfinite(found[-1]).any()


def test_other_engines_refuse_rules(model):
    broken = make_model()
    broken.model.layers[0].register_forward_hook(lambda *_: None)
    with pytest.raises(InputError, match=r"attention 'pages:64' .* needs the native decoder"):
        make_generator(broken, keys=parse_key_rules("pages:64"))


@pytest.mark.parametrize(
    ("text", "rules", "said"),
    [
        (None, KeyRules(), "full"),
        ("full", KeyRules(), "full"),
        ("sinks:4 | window:8", KeyRules(sinks=4, window=8), "sinks:4+window:8"),
        ("pages:512", KeyRules(pages=512), "pages:512"),
        ("pages:512,whole=0", KeyRules(pages=512, whole=0), "pages:512,whole=0"),
        ("mass:.9+pages:64", KeyRules(pages=64, mass=0.9), "mass:0.9+pages:64"),
    ],
)
def test_texts_of_rules(text, rules, said):
    assert parse_key_rules(text) == rules
    assert str(rules) == said
    assert parse_key_rules(said) == rules


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("page:512", "position 1: no term is called 'page'; did you mean 'pages'"),
        ("mass:0.9+wndow:4", "position 10: no term is called 'wndow'; did you mean 'window'"),
        ("pages", "'pages' needs a number, such as 'pages:512'"),
        ("full:3", "'full' takes no numbers"),
        ("pages:512,hole=1", "position 11: 'pages' has no 'hole'; did you mean 'whole'"),
        ("pages:0", "'pages' must be a whole number from 1, got '0'"),
        ("pages:x", "'pages' must be a whole number from 1, got 'x'"),
        ("pages:4,pages=5", "'pages' is given twice"),
        ("mass:1.5", "'mass' must be above 0 and at most 1, got '1.5'"),
        ("mass:nan", "'mass' must be above 0"),
        ("window:4+", "position 10: a term is missing"),
        ("sinks:4", "'sinks:4' needs a window"),
        ("window:4+pages:64", "Use one of the two"),
        (7, "expected text, got int"),
    ],
)
def test_mistakes_in_rules_are_named(text, message):
    with pytest.raises(PatternError, match=None) as caught:
        parse_key_rules(text)
    assert message in str(caught.value)


def test_an_unknown_type_of_keys_is_named():
    with pytest.raises(PatternError, match="stored in one of fp32, int8, int4, got 'int5'"):
        parse_key_rules("full", "int5")
