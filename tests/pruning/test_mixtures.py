# SPDX-License-Identifier: Apache-2.0
"""Dense models dealt out to experts, and mixtures with fewer of them, against plain arithmetic."""

import copy

import pytest
import torch
from transformers import LlamaConfig, LlamaForCausalLM, MixtralConfig, MixtralForCausalLM

from gossamer.errors import InputError, TargetError
from gossamer.nn.batch import Batch
from gossamer.nn.moe import adopt_experts
from gossamer.nn.surgery.mixtures import feed_forwards, mix_experts, mixtures_of
from gossamer.pruning.mixtures import FewerSettings, MoefySettings, fewer_experts, moefy
from gossamer.pruning.mixtures.clusters import balanced_clusters
from gossamer.pruning.mixtures.router_fit import fit_router
from gossamer.zoo import GPT, MLP

SIZES = {
    "vocab_size": 61,
    "hidden_size": 32,
    "intermediate_size": 48,
    "num_hidden_layers": 2,
    "num_attention_heads": 4,
    "num_key_value_heads": 2,
}


def llama(**more):
    torch.manual_seed(0)
    return LlamaForCausalLM(LlamaConfig(**{**SIZES, **more})).eval()


def gpt():
    torch.manual_seed(0)
    return GPT(61, width=32, num_layers=2, num_heads=4, context=16).eval()


def mixtral(**more):
    torch.manual_seed(0)
    settings = {**SIZES, "num_local_experts": 4, "num_experts_per_tok": 2, **more}
    return adopt_experts(MixtralForCausalLM(MixtralConfig(**settings)).eval())


def batches(count=12):
    generator = torch.Generator().manual_seed(1)
    return [Batch(torch.randint(0, 61, (2, 9), generator=generator)) for _ in range(count)]


def answer(model):
    found = model(batches(1)[0].arguments)
    return getattr(found, "logits", found).detach()


@pytest.mark.parametrize(
    ("make", "name"),
    [(llama, "Mixtral"), (gpt, "SwitchGPT"), (lambda: llama(tie_word_embeddings=True), "Mixtral")],
)
def test_with_all_experts_active_a_model_computes_what_it_did(make, name):
    model = make()
    before = answer(model)
    found = moefy(model, batches(), MoefySettings(experts=4, top_k=4))
    assert type(model).__name__.startswith(name)
    # Weights of a token's experts differ from one another by less than a thousandth.
    torch.testing.assert_close(answer(model), before, atol=2e-3 * float(before.abs().max()), rtol=0)
    assert list(found.given.values()) == pytest.approx([1.0, 1.0])
    assert found.active == 1.0


def test_shared_experts_are_the_neurons_that_give_most_and_are_exact():
    model = llama()
    before = answer(model)
    found = moefy(model, batches(), MoefySettings(experts=4, top_k=3, shared=1))
    assert type(model).__name__ == "Qwen2MoeForCausalLM"
    torch.testing.assert_close(answer(model), before, atol=2e-3 * float(before.abs().max()), rtol=0)
    less = moefy(llama(), batches(), MoefySettings(experts=4, top_k=1))
    more = moefy(llama(), batches(), MoefySettings(experts=4, top_k=1, shared=1))
    assert min(more.given.values()) > max(less.given.values())
    assert all(less.given[name] <= less.best[name] + 1e-6 for name in less.given)
    assert found.unseen == {}


def test_what_is_dealt_out_is_every_neuron_once():
    dense, model = llama(), llama()
    moefy(model, batches(), MoefySettings(experts=4, top_k=2))
    for part, layer in zip(feed_forwards(dense), mixtures_of(model), strict=True):
        rows = layer.up.weight.detach().view(4, 2, 12, 32)
        for place, up in enumerate(part.ups):
            dealt = rows[:, place].flatten(0, 1)
            distances = torch.cdist(dealt.double(), up.weight.detach().double())
            assert sorted(distances.argmin(1).tolist()) == list(range(48))
            assert torch.equal(dealt, up.weight[distances.argmin(1)])


@pytest.mark.parametrize("clusters", [1, 2, 3, 4, 6, 12])
def test_clusters_are_of_one_size_and_find_neurons_that_fire_together(clusters):
    torch.manual_seed(0)
    groups = torch.arange(12) % clusters
    fired = torch.nn.functional.one_hot(groups, clusters).float()
    fired = fired @ (torch.rand(clusters, 40) > 0.6).float() + 0.01 * torch.rand(12, 40)
    found = balanced_clusters(fired, clusters)
    assert found.shape == (clusters, 12 // clusters)
    assert sorted(found.flatten().tolist()) == list(range(12))
    if clusters in (2, 3, 4):
        assert all(len(set(groups[row].tolist())) == 1 for row in found)
    assert torch.equal(found, balanced_clusters(fired, clusters))


def test_a_router_learns_what_a_linear_one_can_know():
    torch.manual_seed(0)
    x, wanted = torch.randn(400, 8), torch.randn(5, 8)
    found = fit_router(x, (x @ wanted.t()).softmax(1))
    best = (x @ wanted.t()).argmax(1)
    assert float(((x @ found.t()).argmax(1) == best).float().mean()) > 0.97
    assert fit_router(x[:0], torch.zeros(0, 5)).shape == (5, 8)


@pytest.mark.parametrize("how", ["drop", "merge"])
def test_all_experts_kept_changes_no_bit(how):
    model = mixtral()
    before = answer(model)
    found = fewer_experts(model, batches(), FewerSettings(1.0, how))
    assert torch.equal(answer(model), before)
    assert list(found.kept.values()) == [[0, 1, 2, 3]] * 2


def test_the_experts_that_give_least_are_dropped():
    """Scores are the mean over an expert's tokens of its router weight times the output's norm."""
    model = mixtral()
    noted: dict[str, list[torch.Tensor]] = {}
    layers = {layer.name: layer for layer in mixtures_of(model)}
    for name, layer in layers.items():

        def note(module, args, name=name):
            noted.setdefault(name, []).append(args)

        layer.experts.register_forward_pre_hook(note)
    with torch.no_grad():
        for batch in batches():
            batch.run(model)
    wanted = {}
    for name, layer in layers.items():
        total, count = torch.zeros(4, dtype=torch.float64), torch.zeros(4)
        up = layer.up.weight.detach().double().view(4, 96, 32)
        down = layer.down.weight.detach().double().view(4, 32, 48)
        for x, index, weights in noted[name]:
            for token, (experts, own) in enumerate(zip(index.tolist(), weights, strict=True)):
                for expert, weight in zip(experts, own.tolist(), strict=True):
                    gate, linear = (up[expert] @ x[token].detach().double()).chunk(2)
                    y = down[expert] @ (torch.nn.functional.silu(gate) * linear)
                    total[expert] += weight * y.norm()
                    count[expert] += 1
        scores = total / count
        wanted[name] = sorted(scores.argsort(descending=True)[:2].tolist())
    copied = copy.deepcopy(model)
    found = fewer_experts(copied, batches(), FewerSettings(0.5))
    assert found.kept == wanted
    assert copied.config.num_local_experts == 2
    name = mixtures_of(copied)[0].name
    kept = layers[name].up.weight.detach().view(4, 96, 32)[wanted[name]]
    assert torch.equal(mixtures_of(copied)[0].up.weight.detach().view(2, 96, 32), kept)


def test_merged_experts_are_means_by_the_tokens_that_they_saw():
    model = mixtral()
    weights = mixtures_of(model)[0].up.weight.detach().view(4, 96, 32).double()
    mix = torch.tensor([[0.25, 0.75, 0, 0], [0, 0, 0, 1.0]])
    mix_experts(model, {layer.name: mix for layer in mixtures_of(model)})
    found = mixtures_of(model)[0].up.weight.detach().view(2, 96, 32)
    torch.testing.assert_close(found[0].double(), 0.25 * weights[0] + 0.75 * weights[1])
    assert torch.equal(found[1].double(), weights[3])


def test_experts_that_are_alike_merge_without_loss():
    model = mixtral()
    for layer in mixtures_of(model):
        with torch.no_grad():
            for one in (layer.up, layer.down):
                parts = one.weight.view(4, -1)
                parts[2:] = parts[:2]
    before = answer(model)
    found = fewer_experts(model, batches(), FewerSettings(0.5, "merge"))
    assert all(len(kept) == 2 for kept in found.kept.values())
    # Both kinds are still there, where the kept ones are of both kinds.
    if all({expert % 2 for expert in kept} == {0, 1} for kept in found.kept.values()):
        assert answer(model).isfinite().all()
        assert answer(model).shape == before.shape


def test_experts_that_saw_no_token_are_named():
    model = mixtral(num_experts_per_tok=1)
    for layer in mixtures_of(model):
        router = model.get_submodule(layer.name).gate
        with torch.no_grad():
            router.weight.zero_()
    # All logits are equal: one and the same expert is chosen by every token.
    found = fewer_experts(model, batches(), FewerSettings(0.5))
    assert len(found.unseen) == 2
    for name, unseen in found.unseen.items():
        (seen,) = {0, 1, 2, 3} - set(unseen)
        assert seen in found.kept[name]


def refused(call, kind, text):
    with pytest.raises(kind, match=text):
        call()


def test_what_cannot_be_done_is_said_and_leaves_the_model_as_it_was():
    model = llama()
    before = answer(model)
    refused(lambda: moefy(model, batches(), MoefySettings(5, 1)), InputError, "5 experts of one")
    refused(lambda: MoefySettings(4, 5), InputError, r"top_k must be in \[1, 4\]")
    refused(lambda: MoefySettings(4, 4, 1), InputError, r"top_k must be in \[1, 3\]")
    refused(lambda: moefy(model, [], MoefySettings(4, 1)), InputError, "no batch of the data")
    refused(lambda: moefy(MLP([4, 4]), batches(), MoefySettings(4, 1)), TargetError, "get experts")
    refused(lambda: moefy(gpt(), batches(), MoefySettings(4, 1, 1)), TargetError, "every token has")
    biased = llama(attention_bias=True)
    refused(
        lambda: moefy(biased, batches(), MoefySettings(4, 1)), TargetError, "attention_bias = True"
    )
    with torch.no_grad():
        broken = llama()
        broken.model.layers[0].mlp.gate_proj.weight[3] = torch.nan
    refused(lambda: moefy(broken, batches(), MoefySettings(4, 1)), InputError, "NaN or Inf")
    assert type(broken) is LlamaForCausalLM
    assert torch.equal(answer(model), before)
    refused(lambda: fewer_experts(model, batches(), FewerSettings()), TargetError, "no mixture")
    refused(lambda: FewerSettings(0.0), InputError, r"keep must be in \(0, 1\]")
    small = mixtral()
    refused(
        lambda: fewer_experts(small, batches(), FewerSettings(0.25)), InputError, "Keep at least 2"
    )
    assert small.config.num_local_experts == 4
