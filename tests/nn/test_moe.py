"""Routing, mixtures of experts and what training needs of them."""

import copy
import math
import warnings

import pytest
import torch
from torch import nn
from torch.nn.functional import gelu, linear

import gossamer
from gossamer.errors import InputError
from gossamer.nn.layer_kinds import form_of
from gossamer.nn.moe import MoE, take_routing
from gossamer.nn.moe.router import Router
from gossamer.training.experts import follow_experts, with_routing
from gossamer.training.optim import AdamW
from gossamer.zoo.switch import SwitchGPT


def moe(experts=4, dtype=torch.float64, **settings):
    torch.manual_seed(0)
    layer = MoE(6, 10, experts, **settings).to(dtype)
    # Far from uniform, so that an exchange of two experts would show.
    layer.router.weight.data.normal_()
    return layer


def looped(layer, x, routing=None):
    """Every token through every expert of its own, one at a time; all choices in plain torch."""
    router, experts = layer.router, layer.experts
    probabilities = linear(x, router.weight).softmax(-1)
    chosen = probabilities.topk(router.top_k, dim=-1).indices
    rows = []
    for token, row in enumerate(chosen.tolist()):
        weights = probabilities[token, row]
        if router.top_k > 1:
            weights = weights / weights.sum()
        total = torch.zeros_like(x[token])
        for weight, expert in zip(weights, row, strict=True):
            up, down = (
                experts.up.weight.chunk(router.num_experts),
                experts.down.weight.chunk(router.num_experts),
            )
            bias_up = experts.up.bias.chunk(router.num_experts)[expert]
            bias_down = experts.down.bias.chunk(router.num_experts)[expert]
            hidden = gelu(linear(x[token], up[expert], bias_up))
            total = total + weight * linear(hidden, down[expert], bias_down)
        rows.append(total)
    return torch.stack(rows) if rows else x


@pytest.mark.parametrize("tokens", [1, 2, 13])
@pytest.mark.parametrize("top_k", [1, 2, 4])
def test_dropless_is_a_loop_over_experts(tokens, top_k):
    layer = moe(top_k=top_k)
    x = torch.randn(tokens, 6, dtype=torch.float64, requires_grad=True)
    y, wanted = layer(x), looped(layer, x)
    torch.testing.assert_close(y, wanted, rtol=0, atol=1e-12)
    seed = torch.randn_like(y)
    inputs = [x, *layer.parameters()]
    found = torch.autograd.grad(y, inputs, seed, allow_unused=True)
    expected = torch.autograd.grad(wanted, inputs, seed, allow_unused=True)
    for a, b, held in zip(found, expected, inputs, strict=True):
        b = torch.zeros_like(held) if b is None else b
        torch.testing.assert_close(a, b, rtol=0, atol=1e-12)
    if top_k < 4:
        assert found[1].any(), "the router has a gradient"


def test_one_expert_is_the_dense_block():
    layer = moe(1, torch.float32)
    up, down = nn.Linear(6, 10), nn.Linear(10, 6)
    up.weight, up.bias = layer.experts.up.weight, layer.experts.up.bias
    down.weight, down.bias = layer.experts.down.weight, layer.experts.down.bias
    x = torch.randn(3, 5, 6)
    assert torch.equal(layer(x), down(gelu(up(x))))


def test_no_token_is_no_fault():
    assert moe()(torch.randn(0, 6, dtype=torch.float64)).shape == (0, 6)


@pytest.mark.parametrize("factor", [0.25, 0.5, 1.0, 1.25, 4.0])
@pytest.mark.parametrize("top_k", [1, 2])
def test_tokens_beyond_capacity_pass_by_in_the_order_of_positions(factor, top_k):
    layer = moe(top_k=top_k, capacity_factor=factor)
    x = torch.randn(21, 6, dtype=torch.float64)
    routing = layer.router(x)
    places = math.ceil(factor * top_k * 21 / 4)
    wanted = routing.wanted.tolist()
    assert routing.dropped == sum(max(0, count - places) for count in wanted)
    assert routing.routes.counts == tuple(min(count, places) for count in wanted)
    if top_k == 1:
        free = copy.deepcopy(layer)
        free.router.capacity_factor = None
        chosen = linear(x, layer.router.weight).argmax(1)
        for expert in range(4):
            late = (chosen == expert).nonzero().flatten()[places:]
            assert not layer(x)[late].any()
            early = (chosen == expert).nonzero().flatten()[:places]
            torch.testing.assert_close(layer(x)[early], free(x)[early], rtol=0, atol=1e-12)


def test_outputs_move_with_their_tokens():
    layer, order = moe(top_k=2), torch.randperm(17)
    x = torch.randn(17, 6, dtype=torch.float64)
    torch.testing.assert_close(layer(x)[order], layer(x[order]), rtol=0, atol=1e-12)


def test_experts_that_choose_have_equally_many_tokens():
    layer = moe(choice="experts", top_k=2)
    x = torch.randn(12, 6, dtype=torch.float64)
    routing = layer.router(x)
    assert routing.routes.counts == (6, 6, 6, 6)
    probabilities = linear(x, layer.router.weight).softmax(1)
    wanted = torch.zeros_like(x)
    for expert in range(4):
        for token in probabilities[:, expert].topk(6).indices.tolist():
            alone = copy.deepcopy(layer)
            alone.router = Router(6, 1).double()
            for mine, all_of in (
                (alone.experts.up, layer.experts.up),
                (alone.experts.down, layer.experts.down),
            ):
                mine.num_experts = 1
                mine.weight = nn.Parameter(all_of.weight.chunk(4)[expert].detach())
                mine.bias = nn.Parameter(all_of.bias.chunk(4)[expert].detach())
            wanted[token] += probabilities[token, expert] * alone(x[token : token + 1])[0]
    torch.testing.assert_close(layer(x), wanted, rtol=0, atol=1e-12)


def test_the_balance_loss_is_alpha_at_perfect_balance_and_alpha_times_experts_at_collapse():
    layer = moe(balance_weight=0.01, z_weight=0.0).train()
    layer.router.weight.data = torch.eye(4, 6, dtype=torch.float64) * 50
    x = torch.eye(4, 6, dtype=torch.float64).repeat(3, 1)
    layer(x)
    loss, numbers = take_routing(layer)
    assert loss.item() == pytest.approx(0.01, rel=1e-12)
    assert numbers["moe_load"] == pytest.approx(1.0)
    assert numbers["moe_entropy"] == pytest.approx(1.0)
    layer(x[:1].repeat(12, 1))
    loss, numbers = take_routing(layer)
    assert loss.item() == pytest.approx(0.04, rel=1e-9)
    assert (numbers["moe_load"], numbers["moe_entropy"]) == pytest.approx((4.0, 0.0))
    assert take_routing(layer) == (None, {}), "notes are read once"


def test_the_router_stays_in_float32():
    layer = moe(dtype=torch.float32).bfloat16()
    assert layer.router.weight.dtype is torch.float32
    assert layer.experts.up.weight.dtype is torch.bfloat16
    assert layer(torch.randn(5, 6).bfloat16()).dtype is torch.bfloat16
    wide = moe(dtype=torch.float32)
    with torch.autocast("cpu", dtype=torch.bfloat16):
        routing = wide.router(torch.randn(5, 6))
        assert routing.logits.dtype is torch.float32
        assert wide(torch.randn(5, 6)).dtype is torch.bfloat16


@pytest.mark.parametrize(
    ("settings", "message"),
    [
        ({"top_k": 5}, "top_k must be in .1, 4."),
        ({"top_k": 0}, "top_k"),
        ({"capacity_factor": 0.0}, "capacity_factor"),
        ({"jitter": 1.0}, "jitter"),
        ({"balance": "luck"}, "balance"),
        ({"choice": "nobody"}, "choice"),
        ({"choice": "experts", "balance": "bias"}, "experts that choose"),
        ({"activation": "tan"}, "activation"),
    ],
)
def test_settings_that_cannot_be_are_named(settings, message):
    with pytest.raises(InputError, match=message):
        moe(**settings)


def test_nan_is_named_where_it_is():
    layer = moe()
    with pytest.raises(InputError, match="the tokens it was given hold NaN"):
        layer(torch.full((2, 6), torch.nan, dtype=torch.float64))
    layer.router.weight.data[1, 2] = torch.nan
    with pytest.raises(InputError, match="router of 4 experts: its weight holds NaN"):
        layer(torch.randn(2, 6, dtype=torch.float64))


def test_a_capacity_that_drops_more_than_half_is_said():
    layer = moe(capacity_factor=0.1).train()
    layer(torch.randn(40, 6, dtype=torch.float64))
    with pytest.warns(UserWarning, match="more than half"):
        _, numbers = take_routing(layer)
    assert numbers["moe_dropped"] > 0.5


def clusters(count, seed):
    """Tokens of eight clusters; the answer is another vector for each."""
    draw = torch.Generator().manual_seed(seed)
    centres = torch.randn(8, 16, generator=torch.Generator().manual_seed(7)) * 3
    answers = torch.randn(8, 16, generator=torch.Generator().manual_seed(8))
    label = torch.randint(0, 8, (count,), generator=draw)
    return centres[label] + 0.3 * torch.randn(count, 16, generator=draw), answers[label]


def trained_load(balance, steps=150):
    torch.manual_seed(0)
    layer = MoE(16, 8, 8, balance=balance, balance_weight=0.05, z_weight=0.0).train()
    optimizer = torch.optim.Adam(layer.parameters(), lr=5e-3)
    follow_experts(layer, optimizer)
    loss = with_routing(lambda model, batch: (model(batch[0]) - batch[1]).square().mean())
    for step in range(steps):
        optimizer.zero_grad()
        result = loss(layer, clusters(512, step))
        result[0].backward()
        optimizer.step()
    layer.train()
    layer(clusters(4096, 10_000)[0])
    return take_routing(layer)[1]["moe_load"]


def test_the_balance_loss_spreads_the_load():
    assert trained_load("loss") < 1.2 < trained_load("none")


def test_the_bias_follows_the_load_and_is_saved():
    layer = moe(balance="bias", dtype=torch.float32).train()
    layer(torch.randn(50, 6))
    load = layer.router.load.clone()
    assert int(load.sum()) == 50
    layer.router.follow_load(0.5)
    assert not layer.router.load.any()
    assert torch.equal(layer.router.offsets, 0.5 * torch.sign(load.float().mean() - load))
    twin = moe(balance="bias", dtype=torch.float32)
    twin.load_state_dict(layer.state_dict())
    assert torch.equal(twin.router.offsets, layer.router.offsets)


@pytest.mark.parametrize("form", ["dense", "masked", "compact"])
def test_experts_without_a_token_stay_with_their_state(form):
    layer = nn.Sequential(moe(dtype=torch.float32))
    layer[0].router.requires_grad_(False)
    if form != "dense":
        gossamer.sparsify(layer, sparsity=0.5)
    if form == "compact":
        gossamer.compact(layer)
    assert form_of(layer[0].experts.up) == form
    optimizer = torch.optim.AdamW(layer.parameters(), lr=0.1, weight_decay=0.1)
    follow_experts(layer, optimizer)
    x = torch.randn(40, 6)
    chosen = linear(x, layer[0].router.weight).argmax(1)
    up = layer[0].experts.up
    parameter = up.trained() if form != "dense" else up.weight
    rows = up.kept_of_experts() if form == "compact" else [10] * 4

    def step(tokens):
        optimizer.zero_grad()
        layer(tokens).square().mean().backward()
        optimizer.step()
        held = optimizer.state[parameter]
        tensors = (parameter.detach(), held["exp_avg"], held["exp_avg_sq"])
        return [[part.clone() for part in tensor.split(rows)] for tensor in tensors]

    step(x)
    before = step(x)
    after = step(x[chosen != 2])
    for old, new in zip(before, after, strict=True):
        for expert in range(4):
            assert torch.equal(old[expert], new[expert]) == (expert == 2)


# Blocks of 256 codes: experts that share one, and experts of five. Signed codes of one block reach
# 15 octaves, so what is smaller may be lost to a neighbour.
@pytest.mark.parametrize(("width", "lost"), [(6, 2**-14), (128, 0.0)])
@pytest.mark.parametrize("fused", [False, True])
def test_experts_without_a_token_keep_moments_of_8_bits(width, lost, fused):
    torch.manual_seed(0)
    layer = MoE(width, 10, 4).train()
    layer.router.requires_grad_(False)
    # Moments that are not kept lose an octave in every step.
    settings = {"lr": 0.01, "betas": (0.5, 0.5), "moments": "8bit", "fused": fused}
    optimizer = AdamW(layer.parameters(), **settings)
    follow_experts(layer, optimizer)
    x = torch.randn(80, width)
    chosen = linear(x, layer.router.weight).argmax(1)
    parameter = layer.experts.up.weight

    def step(tokens):
        optimizer.zero_grad()
        layer(tokens).square().mean().backward()
        optimizer.step()
        held = optimizer.state[parameter]
        moments = [m.read(held, 0, parameter.numel()).clone() for m in optimizer.MOMENTS]
        return [t.reshape(4, -1) for t in (parameter.detach().clone(), *moments)]

    for _ in range(3):
        before = step(x)
    steps = [step(x[chosen != 2]) for _ in range(20)]
    for old, *new in zip(before, *steps, strict=True):
        changes = (new[-1] - old).abs().amax(1) / max(t.abs().max() for t in (old, *new))
        assert old[2].any()
        assert [expert for expert in range(4) if changes[expert] <= lost] == [2]


def test_a_switch_model_goes_through_every_step(tmp_path):
    torch.manual_seed(0)
    model = SwitchGPT(50, width=32, num_heads=2, num_layers=2, context=16, num_experts=3, top_k=2)
    ids = torch.randint(0, 50, (2, 9))
    model.train()
    loss, numbers = with_routing(lambda net, batch: net(batch).square().mean())(model, ids)
    loss.backward()
    assert {"moe_loss", "moe_load", "moe_dropped", "moe_entropy"} <= numbers.keys()
    assert "moe_load blocks.1.moe" in numbers
    gossamer.sparsify(model, sparsity=0.5)
    assert form_of(model.blocks[1].moe.experts.up) == "masked"
    model.eval()
    gossamer.save(model, tmp_path / "a")
    again = gossamer.load(tmp_path / "a").eval()
    with torch.no_grad():
        assert torch.equal(again(ids), model(ids))
        fast = gossamer.compile(model, tokens=(4,), kernel="panel")
        torch.testing.assert_close(fast(ids), model(ids), rtol=0, atol=1e-5)
    assert not take_routing(model)[1]


def test_computing_blocks_again_gives_the_same_gradients():
    gradients = []
    for again in (False, True):
        torch.manual_seed(0)
        model = SwitchGPT(
            20, width=8, num_heads=2, num_layers=2, context=8, num_experts=4, jitter=0.1,
            balance="bias", recompute=again,
        ).train()  # fmt: skip
        torch.manual_seed(1)
        loss, _ = with_routing(lambda net, batch: net(batch).square().mean())(
            model, torch.arange(16).view(2, 8)
        )
        loss.backward()
        gradients.append([parameter.grad for parameter in model.parameters()])
    for one, two in zip(*gradients, strict=True):
        torch.testing.assert_close(one, two, rtol=0, atol=1e-7)


def test_models_without_mixtures_have_the_loss_that_they_had():
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        model, x = nn.Linear(3, 2), torch.randn(4, 3)
        assert with_routing(lambda net, batch: net(batch).sum())(model, x).ndim == 0
