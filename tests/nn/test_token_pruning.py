# SPDX-License-Identifier: Apache-2.0
"""Token pruning with masks: what is kept, what thresholds learn from, what is refused."""

import copy

import pytest
import torch
from torch import nn
from transformers import (
    BertConfig,
    BertForSequenceClassification,
    BertModel,
    GPT2Config,
    GPT2Model,
    RobertaConfig,
    RobertaModel,
)

from gossamer.errors import InputError, TargetError
from gossamer.nn.tokens import add_token_pruning, token_encoder
from gossamer.nn.tokens.bert_layers import first_tokens, live_tokens

SIZES = {
    "vocab_size": 50,
    "hidden_size": 16,
    "num_hidden_layers": 3,
    "num_attention_heads": 2,
    "intermediate_size": 24,
    "max_position_embeddings": 40,
    "pad_token_id": 0,
}


def tiny_bert(seed=0, implementation="sdpa"):
    torch.manual_seed(seed)
    config = BertConfig(**SIZES, attn_implementation=implementation)
    # Large weights: attention of a fresh model is so even that all tokens matter alike.
    model = BertModel(config).double().eval()
    with torch.no_grad():
        for layer in model.encoder.layer:
            layer.attention.self.query.weight *= 30
            layer.attention.self.key.weight *= 30
    return model


def batch_of(lengths, width=None, seed=0, left=False):
    generator = torch.Generator().manual_seed(seed)
    width = width or max(lengths)
    ids = torch.zeros(len(lengths), width, dtype=torch.long)
    mask = torch.zeros_like(ids)
    for row, length in enumerate(lengths):
        at = slice(width - length, width) if left else slice(0, length)
        ids[row, at] = torch.randint(1, 50, (length,), generator=generator)
        mask[row, at] = 1
    return {"input_ids": ids, "attention_mask": mask}


def traced(model, batch):
    with torch.no_grad(), token_encoder(model).recording() as traces:
        output = model(**batch).last_hidden_state
    (trace,) = traces
    return output, trace


@pytest.mark.parametrize("implementation", ["sdpa", "eager"])
@pytest.mark.parametrize("phase", ["off", "hard"])
def test_thresholds_of_zero_change_nothing(implementation, phase):
    model = tiny_bert(implementation=implementation)
    batch = batch_of([5, 1, 9])
    with torch.no_grad():
        wanted = model(**batch).last_hidden_state
    encoder = add_token_pruning(model, 0.0)
    encoder.phase = phase
    found, trace = traced(model, batch)
    live = batch["attention_mask"].bool()
    torch.testing.assert_close(found[live], wanted[live], rtol=1e-10, atol=1e-10)
    assert all(torch.equal(keep, live) for keep in trace.keep)


def test_a_threshold_of_one_keeps_the_first_token_only():
    model = tiny_bert()
    encoder = add_token_pruning(model)
    with torch.no_grad():
        encoder.thresholds.fill_(1.0)
    # A token alone gets all attention there is.
    for left in (False, True):
        batch = batch_of([4, 1, 7], left=left)
        _, trace = traced(model, batch)
        assert torch.equal(trace.keep[0], first_tokens(batch["attention_mask"].bool()))


def test_importance_is_the_mean_attention_received_and_kept_sets_are_nested():
    model = tiny_bert(implementation="eager")
    batch = batch_of([8, 5])
    with torch.no_grad():
        chances = model(**batch, output_attentions=True).attentions[0]
    encoder = add_token_pruning(model, 0.15)
    live = batch["attention_mask"].bool()
    wanted = torch.stack(
        [chances[row, :, : int(n)].mean(dim=(0, 1)) for row, n in enumerate(live.sum(1))]
    )
    _, trace = traced(model, batch)
    threshold = encoder.thresholds[0].item()
    assert torch.equal(trace.keep[0], live & ((wanted >= threshold) | first_tokens(live)))
    counts = [int(keep.sum()) for keep in trace.keep]
    assert 2 < counts[-1] < counts[0] <= 13
    for before, after in zip(trace.keep, trace.keep[1:], strict=False):
        assert not bool((after & ~before).any())


@pytest.mark.parametrize("phase", ["soft", "hard"])
@pytest.mark.parametrize("dropped", ["zero", "last"])
@pytest.mark.parametrize(("normalise", "threshold"), [("live", 0.2), ("received", 0.9)])
def test_results_do_not_depend_on_padding(phase, dropped, normalise, threshold):
    model = tiny_bert()
    encoder = add_token_pruning(model, threshold, dropped=dropped, normalise=normalise)
    encoder.phase, encoder.temperature = phase, 0.02
    narrow, _ = traced(model, batch_of([6, 9]))
    wide, _ = traced(model, batch_of([6, 9], width=30))
    torch.testing.assert_close(wide[:, :9] * _mask([6, 9]), narrow * _mask([6, 9]))


def _mask(lengths):
    return batch_of(lengths)["attention_mask"].unsqueeze(-1).double()


def test_padded_normalisation_divides_by_the_padded_length():
    live, padded = tiny_bert(), tiny_bert()
    add_token_pruning(live, 0.3)
    add_token_pruning(padded, 0.3 * 6 / 24, normalise="padded")
    with torch.no_grad():  # later layers differ: the live length shrinks, the padded one does not
        for model in (live, padded):
            token_encoder(model).thresholds[1:] = 0.0
    batch = batch_of([6], width=24)
    found = [traced(model, batch) for model in (live, padded)]
    assert torch.equal(found[0][1].keep[0], found[1][1].keep[0])
    assert int(found[0][1].keep[0].sum()) < 6
    assert torch.equal(found[0][0], found[1][0])


def test_soft_becomes_hard_as_the_temperature_falls():
    for dropped in ("zero", "last"):
        model = tiny_bert()
        encoder = add_token_pruning(model, 0.2, dropped=dropped)
        batch = batch_of([7, 2, 9])
        wanted, trace = traced(model, batch)
        assert int(trace.keep[-1].sum()) < 15
        encoder.phase = "soft"
        gaps = []
        for encoder.temperature in (1e-2, 1e-3, 1e-5):
            found, soft = traced(model, batch)
            gaps.append(float((found - wanted).abs().max()))
        assert gaps[0] > gaps[1] > gaps[2]
        assert gaps[2] < 1e-9
        torch.testing.assert_close(soft.keep[-1], trace.keep[-1].double())


@pytest.mark.parametrize("soft", ["weighted", "published"])
@pytest.mark.parametrize("normalise", ["live", "padded", "received"])
def test_gradients_of_thresholds_match_finite_differences(soft, normalise):
    model = tiny_bert()
    encoder = add_token_pruning(model, 0.15, soft=soft, normalise=normalise)
    encoder.phase, encoder.temperature = "soft", 0.05
    batch = batch_of([7, 4])

    def loss(thresholds):
        state = {"encoder.thresholds": thresholds}
        with encoder.recording() as traces:
            output = torch.func.functional_call(model, state, (), batch).last_hidden_state
        return output.square().sum() + sum(keep.sum() for keep in traces[0].keep)

    assert torch.autograd.gradcheck(loss, encoder.thresholds.detach().clone().requires_grad_())


def test_the_published_soft_phase_multiplies_each_layers_output():
    model = tiny_bert()
    encoder = add_token_pruning(model, 0.1, soft="published")
    encoder.phase, encoder.temperature = "soft", 1e-3
    with torch.no_grad():
        encoder.thresholds[:] = torch.tensor([-1.0, -1.0, 0.2])
    output, trace = traced(model, batch_of([6]))
    plain, _ = traced(_off(model), batch_of([6]))
    torch.testing.assert_close(output, plain * trace.keep[-1].unsqueeze(-1), rtol=1e-6, atol=1e-9)


def _off(model):
    other = copy.deepcopy(model)
    token_encoder(other).phase = "off"
    return other


def test_importance_is_read_before_dropout_and_dropout_acts():
    model = tiny_bert()
    encoder = add_token_pruning(model, 0.15)
    batch = batch_of([9, 9])
    _, quiet = traced(model, batch)
    encoder.train()
    torch.manual_seed(1)
    for layer in encoder.layer:
        layer.attention.output.dropout.p = layer.output.dropout.p = 0.0
    one, first = traced(model, batch)
    other, _ = traced(model, batch)
    assert torch.equal(first.keep[0], quiet.keep[0])
    assert not torch.equal(one, other)


def test_the_rules_travel_in_the_state_dict_and_old_names_stay():
    model = tiny_bert()
    names = set(model.state_dict())
    add_token_pruning(model, 0.2, normalise="padded", dropped="last")
    assert set(model.state_dict()) - names == {"encoder.thresholds", "encoder.rules"}
    assert names <= set(model.state_dict())
    other = tiny_bert(seed=1)
    encoder = add_token_pruning(other)
    assert (encoder.normalise, encoder.dropped) == ("live", "zero")
    other.load_state_dict(model.state_dict())
    assert (encoder.normalise, encoder.dropped) == ("padded", "last")
    assert torch.equal(traced(model, batch_of([5]))[0], traced(other, batch_of([5]))[0])
    encoder.rules.fill_(9)
    with pytest.raises(InputError, match="below 3, found 9"):
        other(**batch_of([5]))


def test_heads_and_other_families_use_the_encoder_unchanged():
    torch.manual_seed(0)
    classifier = BertForSequenceClassification(BertConfig(**SIZES)).eval()
    roberta = RobertaModel(RobertaConfig(**{**SIZES, "pad_token_id": 1})).eval()
    for model in (classifier, roberta):
        batch = batch_of([5, 2])
        batch["input_ids"][batch["attention_mask"] == 0] = model.config.pad_token_id
        with torch.no_grad():
            wanted = model(**batch)[0]
            add_token_pruning(model, 0.0)
            torch.testing.assert_close(
                *(x[batch["attention_mask"].bool()] if x.ndim == 3 else x
                  for x in (model(**batch)[0], wanted))
            )  # fmt: skip


def test_what_is_refused():
    with pytest.raises(TargetError, match="found 0"):
        add_token_pruning(nn.Linear(2, 2))
    with pytest.raises(TargetError, match="found 0"):
        add_token_pruning(GPT2Model(GPT2Config(n_layer=1, n_embd=8, n_head=2, vocab_size=9)))
    model = tiny_bert()
    with pytest.raises(TargetError, match="no token pruning"):
        token_encoder(model)
    for arguments in ({"final_threshold": 2}, {"normalise": "x"}, {"dropped": 1}, {"soft": ""}):
        with pytest.raises(InputError):
            add_token_pruning(model, **arguments)
    encoder = add_token_pruning(model)
    with pytest.raises(TargetError, match="already"):
        add_token_pruning(model)
    with pytest.raises(InputError, match=r"sequence 1 .* no token"):
        model(**batch_of([3, 0]))
    with pytest.raises(InputError, match="attention mask"):
        live_tokens(torch.ones(2, 3), torch.zeros(2, 4, 8))
    encoder.phase, encoder.temperature = "soft", 0.0
    with pytest.raises(InputError, match="temperature"):
        model(**batch_of([3]))
    decoder = BertModel(BertConfig(**SIZES, is_decoder=True))
    with pytest.raises(TargetError, match="decoder"):
        add_token_pruning(decoder)


@pytest.mark.parametrize("soft", ["weighted", "published"])
def test_soft_weights_never_become_denormal(soft):
    model = tiny_bert().float()
    encoder = add_token_pruning(model, 0.9, soft=soft)
    encoder.phase, encoder.temperature = "soft", 1e-5
    _, trace = traced(model, batch_of([9, 4, 1]))
    for weights in trace.keep:
        live = weights[trace.real]
        assert float(live.min()) > 1e-14
        assert float(live.min()) < 1e-12
        assert bool((weights[~trace.real] == 0).all())
