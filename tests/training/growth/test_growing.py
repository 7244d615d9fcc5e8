# SPDX-License-Identifier: Apache-2.0
"""A grown model computes the same, gets the gradients that were foretold, and trains on."""

import copy
import importlib
import warnings
from types import SimpleNamespace

import pytest
import torch
from torch import nn
from torch.optim.swa_utils import AveragedModel, get_ema_multi_avg_fn

import gossamer
from gossamer.errors import InputError, ResourceError
from gossamer.nn.families import answers
from gossamer.training.growth import grow, verify_growth
from gossamer.training.growth.tensors import Axes, Factors, grown_tensor, shares
from gossamer.training.growth.verify import default_loss
from gossamer.training.optim import LAMB, LARS, SGD, AdamW
from gossamer.zoo import GPT, MLP, TinyEncoder

transformers = pytest.importorskip("transformers")

SIZES = {
    "vocab_size": 40, "max_position_embeddings": 24, "hidden_size": 16, "num_hidden_layers": 2,
    "num_attention_heads": 4, "intermediate_size": 24, "n_embd": 16, "n_layer": 2, "n_head": 4,
    "n_positions": 24, "dim": 16, "n_layers": 2, "n_heads": 4, "hidden_dim": 24, "ffn_dim": 24,
    "word_embed_proj_dim": 16, "num_key_value_heads": 2, "pad_token_id": 1, "bos_token_id": 0,
    "eos_token_id": 0, "embedding_size": 8, "image_size": 16, "patch_size": 4, "head_dim": 4,
    "mlp_ratio": 2, "pooler_output_size": 16, "query_pre_attn_scalar": 4,
    "cls_token_id": None, "sep_token_id": None,
}  # fmt: skip
OWN = {
    "GPT": lambda: GPT(40, width=16, num_heads=4, num_layers=2, context=24),
    "GPT tied": lambda: GPT(40, width=16, num_heads=4, num_layers=2, context=24, tied=True),
    "TinyEncoder": lambda: TinyEncoder(40, 3, width=16, num_heads=4, ffn_width=24, max_tokens=24),
}
FAMILIES = {
    family: classes.names
    for family, classes in answers("classes").items()
    if family in answers("growth")
}
HEADS = [*OWN, *(name for names in FAMILIES.values() for name in names)]
# Of each family a plain model and one with logits.
TELLING = [*OWN, *(name for names in FAMILIES.values() for name in names[:2])]
POST_NORM = (
    "Bert", "Roberta", "DistilBert", "XLMRoberta", "Camembert", "Electra", "Albert", "MPNet",
    "NomicBert",
)  # fmt: skip
IMAGES = ("ViT", "Dinov2", "CLIP", "Siglip")
# Families whose feed-forward part does not grow by itself.
FIXED_FFN = ("Dinov2",)


def cases(names, *growths):
    """Every growth of the telling classes; the others have only other parts outside of blocks."""
    few = [(name, asked) for name in names for asked in growths if name in TELLING]
    few += [(name, growths[0]) for name in names if name not in TELLING]
    more = [(name, asked) for name in names for asked in growths[1:] if name not in TELLING]
    made = [pytest.param(*case) for case in few]
    return made + [pytest.param(*case, marks=pytest.mark.slow) for case in more]


@pytest.fixture(autouse=True)
def _in_float64(monkeypatch):
    """Parts of transformers compute in float32 whatever they are given, which hides 1e-12."""
    softmax = nn.functional.softmax
    monkeypatch.setattr(
        nn.functional,
        "softmax",
        lambda x, dim=None, dtype=None: softmax(
            x, dim, dtype=None if x.dtype == torch.float64 else dtype
        ),
    )

    def forward(self, x):
        weight = self.weight + 1 if "Gemma" in type(self).__name__ else self.weight
        eps = getattr(self, "variance_epsilon", None) or self.eps
        return weight * (x * (x.square().mean(-1, keepdim=True) + eps).rsqrt())

    decoders = {
        classes.model_type.removesuffix("_text")
        for family, classes in answers("classes").items()
        if family in answers("decoder")
    }
    found = 0
    for kind in decoders:
        module = importlib.import_module(f"transformers.models.{kind}.modeling_{kind}")
        for name, norm in vars(module).items():
            if name.endswith("RMSNorm"):
                monkeypatch.setattr(norm, "forward", forward)
                found += 1
    assert found > 9
    modernbert = importlib.import_module("transformers.models.modernbert.modeling_modernbert")

    def rotated(q, k, cos, sin, **_):
        cos, sin, turn = cos.unsqueeze(1), sin.unsqueeze(1), modernbert.rotate_half
        return q * cos + turn(q) * sin, k * cos + turn(k) * sin

    monkeypatch.setattr(modernbert, "apply_rotary_pos_emb", rotated)


def made(name: str, **changed) -> nn.Module:
    """A small model in float64 whose biases and norms are not trivial."""
    torch.manual_seed(1)
    if name in OWN:
        model = OWN[name]()
    else:
        kind = getattr(transformers, name)
        declared = kind.config_class().to_dict()
        sizes = {k: v for k, v in (SIZES | changed).items() if k in declared or k in changed}
        model = kind(kind.config_class(**sizes))
    for param in model.parameters():
        nn.init.normal_(param, std=0.3)
    return model.double().eval()


def ids() -> torch.Tensor:
    return torch.randint(2, 40, (3, 9), generator=torch.Generator().manual_seed(2))


def checked(name, old, new):
    """What growth changed, by all that a model gives."""
    if not name.startswith(IMAGES):
        return verify_growth(old, new, ids())
    pixels = torch.rand(2, 3, 16, 16, generator=torch.Generator().manual_seed(2)).double()

    def loss(model, batch):
        output = model(**batch)
        given = [output.get(n) for n in ("last_hidden_state", "pooler_output", "logits")]
        return sum(one.square().mean() for one in given if one is not None)

    return verify_growth(old, new, {"pixel_values": pixels}, loss=loss)


def is_refused(name, asked):
    """Whether the growth of such a model is refused, by a sentence that is checked here."""
    if name.startswith(FIXED_FFN) and "ffn" in asked:
        reason = "fixed multiple"
    elif name.startswith("ModernBert") and asked.get("where") == "bottom":
        reason = "stays the first"
    else:
        return False
    with pytest.raises(InputError, match=reason):
        grow(made(name), **asked)
    return True


def alike(model, **asked):
    """Grown without a breaker, which is allowed with a warning."""
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", UserWarning)
        return grow(model, symmetry="none", **asked)


@pytest.mark.parametrize(
    ("name", "asked"),
    cases(
        HEADS,
        {"width": 2},
        {"width": 3, "seed": 5},
        {"ffn": 2},
        {"width": 2, "blocks": "uniform"},
    ),
)
def test_a_wider_model_computes_the_same_with_copies_that_differ(name, asked):
    if is_refused(name, asked):
        return
    model = made(name)
    check = checked(name, model, grow(model, **asked))
    assert check.difference <= 1e-12
    assert max(check.gradients.values()) > 1e-3, "copies are alike"


@pytest.mark.parametrize(
    ("name", "asked"),
    cases(HEADS, {"width": 2}, {"width": 3}, {"ffn": 2}, {"width": 2, "ffn": 4}),
)
def test_gradients_of_copies_that_are_alike_are_foretold(name, asked):
    if is_refused(name, asked):
        return
    model = made(name)
    check = checked(name, model, alike(model, **asked))
    assert check.difference <= 1e-12
    assert check.gradients
    assert max(check.gradients.values()) <= 1e-10


@pytest.mark.parametrize(
    ("name", "asked"),
    cases(
        [n for n in HEADS if not n.startswith(POST_NORM)],
        {"depth": 2},
        {"depth": 3, "where": "top"},
        {"layers": 3, "where": "bottom"},
        {"width": 2, "depth": 2},
    ),
)
def test_a_deeper_model_computes_the_same(name, asked):
    if is_refused(name, asked):
        return
    model = made(name)
    larger = grow(model, **asked)
    check = checked(name, model, larger)
    assert check.difference <= 1e-12
    if asked.get("width") is None:
        assert max(check.gradients.values()) <= 1e-10


@pytest.mark.parametrize("name", [n for n in HEADS if n.startswith(POST_NORM)])
def test_norms_on_the_residual_path_refuse_depth(name):
    model = made(name)
    with pytest.raises(InputError, match=r"norms of this|are shared"):
        grow(model, depth=2)
    if name.startswith("Albert"):
        with pytest.raises(InputError, match="are shared"):
            grow(model, depth=2, allow_approximate=True)
        return
    larger = grow(model, depth=2, allow_approximate=True)
    assert verify_growth(model, larger, ids()).difference > 1e-9


def test_norms_that_give_nothing_deepen_models_with_plain_feed_forward_parts():
    for name in ("GPT", "GPT2LMHeadModel", "OPTForCausalLM"):
        model = made(name)
        assert verify_growth(model, grow(model, depth=2, mode="ln0"), ids()).difference <= 1e-12
    with pytest.raises(InputError, match="gated"):
        grow(made("LlamaForCausalLM"), depth=2, mode="ln0")


@pytest.mark.parametrize("mode", ["stack", "random"])
def test_comparators_change_the_function(mode):
    model = made("GPT")
    assert verify_growth(model, grow(model, depth=2, mode=mode), ids()).difference > 1e-6


def test_from_no_layer_to_many():
    torch.manual_seed(0)
    model = GPT(40, width=16, num_heads=4, num_layers=0, context=24).double()
    larger = grow(model, layers=3)
    assert len(larger.blocks) == 3
    assert verify_growth(model, larger, ids()).difference <= 1e-12
    assert larger.blocks[0].up.weight.detach().any()


@pytest.mark.parametrize(
    "name", ["LlamaForCausalLM", "Qwen3ForCausalLM", "Olmo2ForCausalLM", "Gemma3ForCausalLM"]
)
def test_heads_alone_where_their_size_is_a_setting(name):
    model = made(name)
    larger = grow(model, heads=2)
    assert larger.config.num_attention_heads == 8
    assert larger.config.hidden_size == 16
    assert verify_growth(model, larger, ids()).difference <= 1e-12
    with pytest.raises(InputError, match="width / heads"):
        grow(made("GPT"), heads=2)


@pytest.mark.parametrize("name", ["LlamaForCausalLM", "Olmo2ForCausalLM"])
def test_key_and_value_heads_are_repeated_beside_themselves(name):
    model = made(name)
    larger = grow(model, kv_heads=2)
    assert larger.config.num_key_value_heads == 4
    assert verify_growth(model, larger, ids()).difference <= 1e-12
    with pytest.raises(InputError, match="evenly"):
        grow(model, kv_heads=3)
    with pytest.raises(InputError, match="one matrix"):
        grow(made("Phi3ForCausalLM"), kv_heads=2)


@pytest.mark.parametrize("form", ["masked", "compact"])
def test_masks_follow_repeated_heads_and_new_tokens(form):
    model = made("LlamaForCausalLM")
    gossamer.sparsify(model, sparsity=0.5, targets=["Linear"])
    if form == "compact":
        gossamer.compact(model)
    larger = grow(model, kv_heads=2)
    assert verify_growth(model, larger, ids()).difference <= 1e-12
    larger = grow(model, vocabulary=47)
    before, after = model(ids()).logits, larger(ids()).logits
    torch.testing.assert_close(after[..., :40], before, rtol=1e-12, atol=1e-12)


@pytest.mark.parametrize(
    "name",
    [
        "GPT", "GPT tied", "LlamaForCausalLM", "BertForMaskedLM", "GemmaForCausalLM",
        "AlbertForMaskedLM", "ModernBertForMaskedLM",
    ],
)  # fmt: skip
def test_new_tokens_leave_the_logits_of_old_ones(name):
    model = made(name)
    larger = grow(model, vocabulary=47)
    with torch.no_grad():
        before, after = model(ids()), larger(ids())
    before, after = (getattr(out, "logits", out) for out in (before, after))
    assert after.shape[-1] == 47
    torch.testing.assert_close(after[..., :40], before, rtol=1e-12, atol=1e-12)


def test_sliding_windows_follow_their_layers():
    changed = {"use_sliding_window": True, "sliding_window": 4, "max_window_layers": 1}
    model = made("Qwen2ForCausalLM", **changed)
    larger = grow(model, depth=2)
    old = model.config.layer_types
    assert larger.config.layer_types == [old[0], old[0], old[1], old[1]]
    assert verify_growth(model, larger, ids()).difference <= 1e-12


def test_layers_that_do_not_rotate_follow_their_source():
    model = made("SmolLM3ForCausalLM", no_rope_layers=[1, 0], num_hidden_layers=2)
    larger = grow(model, depth=2)
    assert larger.config.no_rope_layers == [1, 1, 0, 0]
    assert verify_growth(model, larger, ids()).difference <= 1e-12


@pytest.mark.parametrize("name", ["Gemma2ForCausalLM", "Olmo2ForCausalLM"])
def test_new_blocks_with_norms_behind_their_parts_get_bounded_gradients(name):
    """A norm of zeros would have a gradient of 1 / sqrt(eps): it is the norm that gives nothing."""
    model = made(name)
    larger = grow(model, layers=4)
    default_loss(larger, ids()).backward()
    old = max(p.grad.abs().max() for n, p in larger.named_parameters() if "layers.0." in n)
    new = [p.grad.abs().max() for n, p in larger.named_parameters() if "layers.1." in n]
    assert 0 < max(new) < 100 * old


def test_factors_and_caps_stay_with_the_model():
    changed = {"residual_multiplier": 0.3, "embedding_multiplier": 5.0, "logits_scaling": 4.0}
    for model in (
        made("GraniteForCausalLM", **changed),
        made("Gemma2ForCausalLM", attn_logit_softcapping=2.0, final_logit_softcapping=3.0),
    ):
        larger = grow(model, width=2, depth=2)
        assert verify_growth(model, larger, ids()).difference <= 1e-12


def test_images_have_no_vocabulary():
    with pytest.raises(InputError, match="no vocabulary"):
        grow(made("ViTModel"), vocabulary=50)


def test_blocks_that_compute_by_their_number_do_not_move():
    model = made("GPT2LMHeadModel", scale_attn_by_inverse_layer_idx=True)
    with pytest.raises(InputError, match="by its number"):
        grow(model, depth=2)
    assert verify_growth(model, grow(model, width=2), ids()).difference <= 1e-12


@pytest.mark.parametrize(
    "name",
    [
        "GPT tied", "LlamaForCausalLM", "BertForSequenceClassification", "Phi3ForCausalLM",
        "ModernBertForMaskedLM",
    ],
)  # fmt: skip
def test_a_grown_model_is_saved_and_loaded(name, tmp_path):
    larger = grow(made(name).float(), width=2)
    gossamer.save(larger, tmp_path / "larger")
    again = gossamer.load(tmp_path / "larger").eval()
    outputs = [out if torch.is_tensor(out) else out[0] for out in (larger(ids()), again(ids()))]
    assert torch.equal(*outputs)


def test_float32_and_bfloat16():
    model = made("LlamaForCausalLM").float()
    assert verify_growth(model, grow(model, width=2), ids()).difference <= 1e-5
    model = model.bfloat16()
    larger = grow(model, width=2)
    assert {p.dtype for p in larger.parameters()} == {torch.bfloat16}
    assert verify_growth(model, larger, ids()).difference <= 1e-2


def test_tied_weights_stay_tied_and_untied_ones_untied():
    model = made("GPT2LMHeadModel")
    larger = grow(model, width=2)
    assert larger.lm_head.weight is larger.transformer.wte.weight
    model.lm_head.weight = nn.Parameter(model.lm_head.weight.detach().clone())
    larger = grow(model, width=2)
    assert larger.lm_head.weight is not larger.transformer.wte.weight
    assert verify_growth(model, larger, ids()).difference <= 1e-12


# --- the optimizer -------------------------------------------------------------------------------

OPTIMIZERS = {
    "torch.AdamW": lambda p: torch.optim.AdamW(p, lr=1e-2),
    "torch.AdamW amsgrad": lambda p: torch.optim.AdamW(p, lr=1e-2, amsgrad=True),
    "torch.SGD": lambda p: torch.optim.SGD(p, lr=1e-2, momentum=0.9),
    "torch.RMSprop": lambda p: torch.optim.RMSprop(p, lr=1e-3, momentum=0.5, eps=1e-12),
    "torch.Adagrad": lambda p: torch.optim.Adagrad(p, lr=1e-2),
    "torch.Adafactor": lambda p: torch.optim.Adafactor(p, lr=1e-2),
    "AdamW": lambda p: AdamW(p, lr=1e-2),
    "AdamW 8bit": lambda p: AdamW(p, lr=1e-2, moments="8bit"),
    "SGD": lambda p: SGD(p, lr=1e-2, momentum=0.9),
    "LAMB": lambda p: LAMB(p, lr=1e-2),
    "LARS": lambda p: LARS(p, lr=1e-2, momentum=0.9),
}


def trained(model, optimizer, steps=3):
    for step in range(steps):
        batch = torch.randint(2, 40, (3, 9), generator=torch.Generator().manual_seed(step))
        optimizer.zero_grad()
        logits = model(batch)
        logits = getattr(logits, "logits", logits)
        nn.functional.cross_entropy(logits[:, :-1].flatten(0, 1), batch[:, 1:].flatten()).backward()
        optimizer.step()
    return model


@pytest.mark.parametrize("name", OPTIMIZERS)
def test_moments_are_those_of_gradients_of_the_larger_model(name):
    """Gradients only, no steps: what the larger model would have gathered is what it is given."""
    model = made("GPT")
    if "8bit" in name:
        model = model.float()
    larger = alike(model, width=2)

    def gathered(net):
        optimizer = OPTIMIZERS[name](list(net.parameters()))
        for group in optimizer.param_groups:
            group["lr"] = 0.0
        trained(net, optimizer)
        return optimizer

    optimizer = gathered(model)
    expected = gathered(larger)
    grown = alike(model, optimizer=optimizer, width=2)
    assert [p.shape for p in grown.parameters()] == [p.shape for p in larger.parameters()]
    # RMSprop divides by the size of gradients, some of which are 0 but for rounding.
    tolerance = {"rtol": 1e-3 if "RMS" in name else 1e-7, "atol": 1e-3 if "RMS" in name else 1e-12}
    for ours, theirs in zip(grown.parameters(), larger.parameters(), strict=True):
        mine, wanted = optimizer.state[ours], expected.state[theirs]
        assert mine.keys() == wanted.keys()
        if "8bit" in name:
            for moment in optimizer.MOMENTS:
                found, right = (moment.read(s, 0, ours.numel()) for s in (mine, wanted))
                # Codes of one block share an exponent: an error is a part of its largest number.
                assert float((found - right).abs().max()) <= 0.1 * float(right.abs().max())
            assert mine["step"] == wanted["step"]
            continue
        for key, value in wanted.items():
            torch.testing.assert_close(mine[key], value, **tolerance)


@pytest.mark.parametrize("name", OPTIMIZERS)
def test_training_goes_on_in_the_same_groups(name):
    model = made("GPT2LMHeadModel").to(torch.float32 if "8bit" in name else torch.float64)
    weights = [p for p in model.parameters() if p.ndim > 1]
    others = [p for p in model.parameters() if p.ndim == 1]
    optimizer = OPTIMIZERS[name]([{"params": weights, "weight_decay": 0.1}, {"params": others}])
    trained(model, optimizer)
    larger = grow(model, optimizer, width=2, depth=2)
    held = [p for group in optimizer.param_groups for p in group["params"]]
    assert {id(p) for p in held} == {id(p) for p in larger.parameters()}
    assert all(p.ndim > 1 for p in optimizer.param_groups[0]["params"])
    assert optimizer.param_groups[0]["weight_decay"] == 0.1
    steps = [s["step"] for s in optimizer.state.values() if "step" in s]
    assert all(int(step) == 3 for step in steps)
    before = copy.deepcopy(larger.state_dict())
    trained(larger, optimizer)
    moved = [
        name for name, value in larger.state_dict().items() if not torch.equal(value, before[name])
    ]
    assert set(moved) == set(before)


def test_two_optimizers_that_share_the_parameters_grow_both():
    model = made("GPT")
    inner = [p for name, p in model.named_parameters() if p.ndim == 2 and "blocks" in name]
    outer = [p for p in model.parameters() if all(p is not other for other in inner)]
    muon, adam = torch.optim.Muon(inner, lr=1e-3), torch.optim.AdamW(outer, lr=1e-3)
    both = SimpleNamespace(
        zero_grad=lambda: (muon.zero_grad(), adam.zero_grad()),
        step=lambda: (muon.step(), adam.step()),
    )
    trained(model, both)
    for wrong, words in (([muon, muon], "same parameter"), ([muon, "adam"], "torch optimizer")):
        with pytest.raises(InputError, match=words):
            grow(model, wrong, width=2)
    with pytest.raises(InputError, match="belong to no optimizer"):
        grow(model, [muon, adam], depth=2, mode="random")
    assert muon.param_groups[0]["params"] == inner
    larger = grow(model, [muon, adam], width=2, depth=2)
    assert verify_growth(model, larger, ids()).difference <= 1e-12
    held = [p for one in (muon, adam) for group in one.param_groups for p in group["params"]]
    assert {id(p) for p in held} == {id(p) for p in larger.parameters()}
    assert len(held) == len(list(larger.parameters()))
    assert all("momentum_buffer" in muon.state[p] for p in muon.param_groups[0]["params"])
    before = copy.deepcopy(larger.state_dict())
    trained(larger, both)
    assert not any(torch.equal(v, before[name]) for name, v in larger.state_dict().items())


def test_copies_separate_with_the_breaker_and_never_without():
    for breaks in (True, False):
        model = made("LlamaForCausalLM")
        optimizer = torch.optim.AdamW(model.parameters(), lr=1e-2)
        trained(model, optimizer)
        larger = (
            grow(model, optimizer, width=2)
            if breaks
            else alike(model, optimizer=optimizer, width=2)
        )
        trained(larger, optimizer, 20)
        first, second = larger.model.embed_tokens.weight.detach().chunk(2, dim=1)
        assert (float((first - second).abs().max()) > 1e-2) == breaks


def test_new_blocks_may_begin_without_a_state():
    model = made("GPT")
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-2)
    trained(model, optimizer)
    larger = grow(model, optimizer, depth=2, state="old")
    old, new = larger.blocks[0].up.weight, larger.blocks[1].up.weight
    assert old in optimizer.state
    assert new not in optimizer.state
    trained(larger, optimizer)
    again = grow(larger, optimizer, width=2, state="reset")
    assert not optimizer.state
    trained(again, optimizer)


def test_bfloat16_masters_keep_all_their_bits():
    model = made("GPT").bfloat16()
    optimizer = AdamW(model.parameters(), lr=1e-2, master="split")
    trained(model, optimizer)
    masters = [optimizer.master_of(p) for p in model.parameters()]
    larger = alike(model, optimizer=optimizer, depth=2)
    kept = [
        p for name, p in larger.named_parameters() if not name.startswith(("blocks.1", "blocks.3"))
    ]
    assert all(p.dtype is torch.bfloat16 for p in larger.parameters())
    for param, master in zip(kept, masters, strict=True):
        assert torch.equal(optimizer.master_of(param), master)


def test_rates_by_width():
    model = made("GPT")
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-2)
    larger = grow(model, optimizer, width=2, mup=True)
    rates = {id(p): group["lr"] for group in optimizer.param_groups for p in group["params"]}
    assert rates[id(larger.blocks[0].up.weight)] == 5e-3
    assert rates[id(larger.tokens.weight)] == 1e-2
    assert rates[id(larger.head.weight)] == 1e-2
    assert len(rates) == len(list(larger.parameters()))
    trained(larger, optimizer)


# --- sparse layers -------------------------------------------------------------------------------


@pytest.mark.parametrize("form", ["masked", "compact"])
@pytest.mark.parametrize("opened", [0.0, 0.3, 1.0])
def test_sparse_layers_stay_sparse_and_compute_the_same(form, opened):
    model = made("GPT")
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-3)
    gossamer.sparsify(model, sparsity=0.75)
    trained(model, optimizer)
    if form == "compact":
        gossamer.compact(model, optimizer)
    larger = grow(model, optimizer, width=2, opened=opened)
    check = verify_growth(model, larger, ids())
    assert check.difference <= 1e-12
    layer, old = larger.blocks[0].up, model.blocks[0].up
    assert layer.form == form
    density = {0.0: old.density / 2, 1.0: old.density / 2 + 0.5}
    if opened in density:
        assert layer.density == pytest.approx(density[opened], abs=0.01)
    trained(larger, optimizer)


def test_dense_models_grow_with_zeros_between_copies():
    model = GPT(40, width=32, num_heads=4, num_layers=1, context=24).double()
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-3)
    trained(model, optimizer)
    larger = grow(model, optimizer, width=4, opened=0.25)
    assert verify_growth(model, larger, ids()).difference <= 1e-12
    layer = larger.blocks[0].up
    assert layer.form == "masked"
    assert str(layer.pattern) == "block:16x16"
    assert layer.density == pytest.approx(0.25 + 0.75 * 0.25, abs=0.1)
    gossamer.compact(larger, optimizer)
    trained(larger, optimizer)


# --- averages and schedulers ---------------------------------------------------------------------


@pytest.mark.parametrize(
    "asked",
    [
        {"width": 2},
        {"depth": 2},
        {"width": 2, "depth": 2, "opened": 0.3},
        {"depth": 2, "mode": "random"},
    ],
    ids=str,
)
@pytest.mark.parametrize("name", ["GPT", "LlamaForCausalLM"])
def test_averages_of_weights_grow_along(name, asked):
    model = made(name)
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-2)
    averaged = AveragedModel(model, multi_avg_fn=get_ema_multi_avg_fn(0.9))
    for _ in range(3):
        trained(model, optimizer)
        averaged.update_parameters(model)
    before = default_loss(averaged.module.eval(), ids()).item()
    distance = {n: p - dict(model.named_parameters())[n] for n, p in named(averaged)}
    larger = grow(model, optimizer, averages=[averaged], **asked)
    if asked.get("mode") != "random":
        assert default_loss(averaged.module, ids()).item() == pytest.approx(before, rel=1e-12)
    # The noise is that of the model: the average is as far from it as it was.
    own = dict(larger.named_parameters())
    for place, param in named(averaged):
        apart = (param - own[place]).abs().max()
        assert apart <= max(d.abs().max() for d in distance.values()) * (1 + 1e-9), place
    assert int(averaged.n_averaged) == 3
    trained(larger, optimizer)
    averaged.update_parameters(larger)


def named(averaged):
    return [(name, param.detach()) for name, param in averaged.module.named_parameters()]


def test_averages_of_other_models_are_refused_and_nothing_changes():
    model = made("GPT")
    optimizer = torch.optim.AdamW(model.parameters())
    for wrong, words in (
        (model, "takes AveragedModels"),
        (AveragedModel(GPT(40, width=16, num_heads=2, num_layers=1, context=24)), "not the same"),
    ):
        with pytest.raises(InputError, match=words):
            grow(model, optimizer, width=2, averages=[wrong])
    held = {id(p) for group in optimizer.param_groups for p in group["params"]}
    assert held == {id(p) for p in model.parameters()}


def test_a_scheduler_of_the_rate_goes_on_with_the_larger_model():
    rates = []
    for at in (None, 3):
        model = made("GPT")
        optimizer = torch.optim.AdamW(model.parameters(), lr=1e-2)
        scheduler = torch.optim.lr_scheduler.LambdaLR(optimizer, lambda step: 1 / (1 + step))
        seen = []
        for step in range(6):
            if step == at:
                model = grow(model, optimizer, width=2)
            trained(model, optimizer)
            scheduler.step()
            seen.append(optimizer.param_groups[0]["lr"])
        rates.append(seen)
    assert rates[0] == rates[1]


# --- bad input -----------------------------------------------------------------------------------


def test_what_cannot_grow_says_so_and_changes_nothing():
    model = made("GPT")
    before = copy.deepcopy(model.state_dict())
    for asked, words in (
        ({}, "nothing grows"),
        ({"width": 0}, "whole number"),
        ({"width": 1.5}, "whole number"),
        ({"width": 2, "ffn": 3}, "must divide"),
        ({"layers": 1}, "fewer"),
        ({"vocabulary": 3}, "smaller"),
        ({"mode": "identity"}, "mode must be"),
        ({"widht": 2}, "is not a setting"),
        ({"width": 2, "sigma": -1}, "sigma"),
        ({"width": 2, "opened": 2}, "opened"),
        ({"kv_heads": 2}, "one key and value head"),
    ):
        with pytest.raises(InputError, match=words):
            grow(model, **asked)
    for unknown in (MLP((4, 8, 2)), nn.Sequential(nn.Linear(4, 4))):
        with pytest.raises(InputError, match="not known"):
            grow(unknown, width=2)
    model.extra = nn.Linear(2, 2)
    with pytest.raises(InputError, match=r"extra\.weight.*no role"):
        grow(model, width=2)
    del model.extra
    model.blocks[0].register_forward_hook(lambda *_: None)
    with pytest.raises(InputError, match="forward hook"):
        grow(model, width=2)
    model.blocks[0]._forward_hooks.clear()
    assert all(torch.equal(value, before[name]) for name, value in model.state_dict().items())


def test_state_without_a_rule_is_refused():
    model = made("GPT")
    optimizer = torch.optim.Rprop(model.parameters())
    trained(model, optimizer)
    with pytest.raises(InputError, match="no rule"):
        grow(model, optimizer, width=2)
    assert {id(p) for p in optimizer.param_groups[0]["params"]} == {
        id(p) for p in model.parameters()
    }
    grow(model, optimizer, width=2, state="reset")
    model = made("GPT")
    with pytest.raises(InputError, match="not in the model"):
        grow(model, torch.optim.SGD([nn.Parameter(torch.zeros(2))], lr=1.0), width=2)
    with pytest.raises(InputError, match="expected a torch optimizer"):
        grow(model, "adam", width=2)


def test_a_schedule_that_moves_masks_comes_after_the_growth():
    model = made("GPT")
    optimizer = torch.optim.AdamW(model.parameters())
    control = gossamer.attach(model, {"kind": "rigl", "sparsity": 0.5}, optimizer, total_steps=9)
    before = copy.deepcopy(model.state_dict())
    with pytest.raises(InputError, match=r"moves the mask of blocks\.0.*Grow first"):
        grow(model, optimizer, depth=2)
    assert all(torch.equal(value, before[name]) for name, value in model.state_dict().items())
    assert {p for group in optimizer.param_groups for p in group["params"]} == set(
        model.parameters()
    )
    control.close()
    larger = grow(model, optimizer, depth=2)
    assert verify_growth(model, larger, ids()).difference <= 1e-12


def test_too_large_a_model_is_refused_beforehand(monkeypatch):
    monkeypatch.setattr("gossamer.training.growth.plan.available_bytes", lambda: 10_000)
    model = made("GPT")
    optimizer = torch.optim.AdamW(model.parameters())
    trained(model, optimizer)
    before = copy.deepcopy((model.state_dict(), optimizer.state_dict()["state"]))
    with pytest.raises(ResourceError, match="GiB are free"):
        grow(model, optimizer, width=2)
    assert all(torch.equal(value, before[0][name]) for name, value in model.state_dict().items())
    for number, held in optimizer.state_dict()["state"].items():
        assert all(torch.equal(value, before[1][number][key]) for key, value in held.items())


def test_copies_that_stay_alike_are_warned_of():
    with pytest.warns(UserWarning, match="in disguise"):
        grow(made("GPT"), width=2, symmetry="none")
    with pytest.warns(UserWarning, match="in disguise"):
        grow(made("GPT"), width=2, symmetry="dropout")
    grow(made("GPT2LMHeadModel"), width=2, symmetry="dropout")


# --- one tensor ----------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("made_copies", "read_copies"), [(1, 1), (2, 2), (1, 3), (4, 2), (2, 4), (3, 2)]
)
def test_shares_of_a_row_add_up_to_one(made_copies, read_copies):
    for uniform in (False, True):
        found = shares(made_copies, read_copies, uniform)
        assert found.shape == (made_copies, read_copies)
        torch.testing.assert_close(found.sum(1), torch.ones(made_copies).double())


def test_edge_sizes_of_one_tensor():
    factors = Factors(stream=2, ffn=2)
    for shape in ((0, 3), (3, 0), (1, 1)):
        grown = grown_tensor(torch.ones(shape), Axes("ffn", "stream"), factors, "value")
        assert grown.shape == (2 * shape[0], 2 * shape[1])
    stacked = Axes("query", "stream", segments=(1, 1, 1))
    with pytest.raises(InputError, match="segments"):
        grown_tensor(torch.ones(4, 2), stacked, factors, "value")
