# SPDX-License-Identifier: Apache-2.0
"""Experts become several each: the function stays, moments follow, copies differ."""

import copy
import json
import warnings

import pytest
import torch
from torch import nn
from torch.nn.functional import cross_entropy

import gossamer
from gossamer.errors import InputError
from gossamer.nn.moe import MoE, adopt_experts, moe_layers, take_routing
from gossamer.training.growth import grow, verify_growth
from gossamer.training.optim import AdamW
from gossamer.zoo import GPT
from gossamer.zoo.switch import SwitchGPT


class Mixture(nn.Module):
    """One mixture between two matrices, with a residual path."""

    def __init__(self, **settings):
        super().__init__()
        self.moe = MoE(8, 12, settings.pop("num_experts", 3), **settings)
        self.head = nn.Linear(8, 5)

    def forward(self, x):
        return self.head(x + self.moe(x))


WAYS = {
    "switch": {"top_k": 1},
    "switch, gated": {"top_k": 1, "activation": "swiglu", "bias": False},
    "switch, bias moves": {"top_k": 1, "balance": "bias"},
    "one expert": {"num_experts": 1},
    "two": {"top_k": 2},
    "two, places": {"top_k": 2, "capacity_factor": 0.7},
    "two, bias moves": {"top_k": 2, "balance": "bias"},
    "experts choose": {"choice": "experts", "capacity_factor": 1.5},
}
SHARED = [name for name in WAYS if name.startswith(("two", "experts"))]


def mixture(way, form="dense"):
    torch.manual_seed(3)
    model = Mixture(**WAYS[way])
    for param in model.parameters():
        nn.init.normal_(param, std=0.5)
    if model.moe.router.balance == "bias":
        model.moe.router.offsets.normal_(std=0.1)
    if form != "dense":
        gossamer.sparsify(model, sparsity=0.5, targets=["GroupedLinear"])
    if form == "compact":
        gossamer.compact(model)
    return model.double().eval()


def tokens(seed=1):
    return torch.randn(40, 8, dtype=torch.float64, generator=torch.Generator().manual_seed(seed))


def alike(model, **asked):
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", UserWarning)
        return grow(model, symmetry="none", **asked)


@pytest.mark.parametrize("way", WAYS)
@pytest.mark.parametrize("copies", [2, 3])
@pytest.mark.parametrize("form", ["dense", "masked", "compact"])
def test_more_experts_compute_the_same(way, copies, form):
    model = mixture(way, form)
    larger = grow(model, experts=copies)
    assert verify_growth(model, larger, tokens()).difference <= 1e-12
    torch.testing.assert_close(larger(tokens()), model(tokens()), rtol=1e-11, atol=1e-11)
    old, new = model.moe, larger.moe
    assert new.router.num_experts == copies * old.router.num_experts
    assert new.router.top_k == old.router.top_k * (copies if way in SHARED else 1)
    assert type(new.experts.up) is type(old.experts.up)
    if form != "dense":
        assert new.experts.down.density == pytest.approx(old.experts.down.density)
    # The old model is as it was.
    assert old.router.weight.shape[0] == old.router.num_experts


@pytest.mark.parametrize("way", SHARED)
def test_gradients_of_copies_that_work_together_are_foretold(way):
    model = mixture(way)
    check = verify_growth(model, alike(model, experts=2), tokens())
    assert check.difference <= 1e-12
    assert max(check.gradients.values()) <= 1e-10


@pytest.mark.parametrize("way", [way for way in WAYS if way not in SHARED])
def test_gradients_of_copies_that_divide_tokens_add_up(way):
    """Those of `down` are half of the old ones in sum: what it gives is weighted by half."""
    model = mixture(way)
    larger = grow(model, experts=2)
    for one in (model, larger):
        one(tokens()).square().mean().backward()
    new = dict(larger.named_parameters())
    for name, param in model.named_parameters():
        halves = new[name].grad
        if name.startswith("moe"):
            halves = halves.view(2, *param.shape).sum(0)
        whole = param.grad / 2 if "down" in name else param.grad
        torch.testing.assert_close(halves, whole, rtol=1e-10, atol=1e-12)


def test_copies_divide_the_tokens_and_separate():
    torch.manual_seed(0)
    model = mixture("switch").train()
    larger = grow(model, experts=2)
    larger(tokens())
    counts = larger.moe.notes.last.routes.counts
    model(tokens())
    before = model.moe.notes.last.routes.counts
    assert [a + b for a, b in zip(counts[:3], counts[3:], strict=True)] == list(before)
    assert min(counts[:3]) < max(before)
    assert sum(count > 0 for count in counts) > sum(count > 0 for count in before)
    optimizer = torch.optim.AdamW(larger.parameters(), 1e-2)
    larger(tokens()).square().mean().backward()
    optimizer.step()
    up = larger.moe.experts.up.weight.view(2, -1)
    assert (up[0] - up[1]).abs().max() > 1e-3


@pytest.mark.parametrize("form", ["dense", "compact"])
@pytest.mark.parametrize("way", ["switch", "two"])
@pytest.mark.parametrize("kind", ["torch", "8bit", "small"])
def test_moments_follow_and_training_goes_on(kind, way, form):
    model = mixture(way, form).float()
    if kind == "torch":
        optimizer = torch.optim.AdamW(model.parameters(), 1e-2)
    else:
        optimizer = AdamW(
            model.parameters(), lr=1e-2, **({"moments": "8bit"} if kind == "8bit" else {})
        )
    x = tokens().float()
    for _ in range(2):
        optimizer.zero_grad()
        model(x).square().mean().backward()
        optimizer.step()
    before = {n: copy.deepcopy(optimizer.state[p]) for n, p in model.named_parameters()}
    larger = alike(model, optimizer=optimizer, experts=2)
    if kind == "torch":
        for name, param in larger.named_parameters():
            old, new = before[name], optimizer.state[param]
            assert new["step"] == old["step"]
            is_expert = name.startswith("moe")
            ratio = 1.0
            if is_expert:
                ratio = 0.25 if way == "switch" and "down" in name else 0.5
            for key, power in (("exp_avg", 1), ("exp_avg_sq", 2)):
                wanted = old[key] * ratio**power
                if is_expert:
                    wanted = torch.cat([wanted, wanted])
                torch.testing.assert_close(new[key], wanted)
    after = larger(x)
    for _ in range(3):
        optimizer.zero_grad()
        larger(x).square().mean().backward()
        optimizer.step()
    assert larger(x).square().mean() < after.square().mean()


def test_a_switch_model_grows_in_a_run_and_is_loaded(tmp_path):
    model = {
        "name": "gpt", "width": 16, "layers": 2, "heads": 2, "context": 16,
        "experts": {"count": 2},
    }  # fmt: skip
    recipe = {"gossamer": 1, "stages": [{"train": {
        "task": "text", "model": model, "steps": 8, "batch": 4,
        "grow": [{"at": 4, "experts": 2}],
    }}]}  # fmt: skip
    result = gossamer.train(recipe, "zoo:text", out=tmp_path / "out")
    lines = map(json.loads, (result.run / "metrics.jsonl").read_text().splitlines())
    (growth,) = [line for line in lines if line["kind"] == "growth"]
    assert growth["loss_after"] == pytest.approx(growth["loss_before"], rel=1e-5)
    loaded = gossamer.load(tmp_path / "out")
    assert loaded.num_experts == 4
    assert [moe.router.num_experts for _, moe in moe_layers(loaded)] == [4]


def test_a_switch_gpt_in_all_precisions():
    torch.manual_seed(0)
    model = SwitchGPT(40, width=16, num_heads=2, num_layers=2, context=24, num_experts=3)
    ids = torch.randint(40, (3, 9))
    assert verify_growth(model, grow(model, experts=2), ids).difference <= 1e-5
    half = copy.deepcopy(model).bfloat16()
    assert verify_growth(half, grow(half, experts=2), ids).difference <= 1e-2
    larger = grow(model.train(), experts=2)
    loss = cross_entropy(larger(ids).flatten(0, 1), ids.flatten())
    (loss + take_routing(larger)[0]).backward()
    assert larger.zoo_args()["num_experts"] == 6


def test_what_cannot_grow_says_so():
    transformers = pytest.importorskip("transformers")
    with pytest.raises(InputError, match="make one after the other"):
        grow(mixture("switch"), experts=2, width=2)
    with pytest.raises(InputError, match=r"has no gossamer.nn.moe.MoE"):
        grow(GPT(40, width=16, num_heads=2, num_layers=1, context=8), experts=2)
    torch.manual_seed(0)
    places = Mixture(top_k=1, capacity_factor=1.0)
    with pytest.raises(InputError, match="places for a part"):
        grow(places, experts=2)
    assert grow(places, experts=2, allow_approximate=True).moe.router.num_experts == 6
    config = transformers.MixtralConfig(
        vocab_size=40, hidden_size=16, intermediate_size=16, num_hidden_layers=1,
        num_attention_heads=2, num_key_value_heads=2, num_local_experts=2,
    )  # fmt: skip
    theirs = adopt_experts(transformers.MixtralForCausalLM(config))
    with pytest.raises(InputError, match="routed by a module"):
        grow(theirs, experts=2)
