# SPDX-License-Identifier: Apache-2.0
"""Thresholds learn in the soft stage only, prices drop tokens, counts match a count by hand."""

import copy
import math

import pytest
import torch
from torch import nn
from transformers import BertConfig, BertModel

from gossamer.errors import GossamerError, InputError, TargetError
from gossamer.nn.tokens import TokenTrace, add_token_pruning, token_encoder
from gossamer.training.token_pruning import (
    TokenPlan,
    kept_fractions,
    measure_tokens,
    set_thresholds,
    token_penalty,
    train_token_pruning,
)


class Model(nn.Module):
    def __init__(self, **settings):
        super().__init__()
        torch.manual_seed(0)
        config = BertConfig(
            vocab_size=20, hidden_size=16, num_hidden_layers=2, num_attention_heads=2,
            intermediate_size=24, max_position_embeddings=16,
        )  # fmt: skip
        self.bert = BertModel(config, add_pooling_layer=False)
        self.head = nn.Linear(16, 2)
        add_token_pruning(self.bert, 0.05, **settings)

    def forward(self, input_ids, attention_mask):
        output = self.bert(input_ids=input_ids, attention_mask=attention_mask)
        return self.head(output.last_hidden_state[:, 0])


def batches(count=6):
    generator = torch.Generator().manual_seed(0)
    made = []
    for _ in range(count):
        ids = torch.randint(2, 20, (8, 10), generator=generator)
        mask = torch.arange(10) < torch.randint(2, 11, (8, 1), generator=generator)
        label = (ids * mask == 7).any(dim=1).long()
        made.append({"input_ids": ids, "attention_mask": mask.long(), "label": label})
    return made


def logits(model, batch):
    return model(batch["input_ids"], batch["attention_mask"])


def loss(model, batch):
    return nn.functional.cross_entropy(logits(model, batch), batch["label"])


PLAN = TokenPlan(
    penalty=0.2, soft_steps=12, hard_steps=5, lr=1e-3, threshold_lr=1e-2, temperature=0.02
)


def plan(**changes):
    return TokenPlan(**{**PLAN.__dict__, **changes})


def test_a_higher_price_keeps_fewer_tokens():
    kept = []
    for penalty in (0.0, 0.1, 10.0):
        model = Model()
        settings = plan(penalty=penalty, hard_steps=0, threshold_lr=3e-2)
        train_token_pruning(model, batches(), loss, settings)
        kept.append(measure_tokens(model, batches(), logits).mean_kept)
    assert kept[0] > kept[1] >= kept[2]
    assert kept[2] < 0.7 * kept[0]


def test_stages_do_what_they_say_and_leave_the_model_ready():
    model = Model()
    seen, states = [], []

    def on_step(stage, step, task, kept):
        encoder = token_encoder(model)
        seen.append((stage, step, encoder.phase, round(encoder.temperature, 6)))
        states.append((encoder.thresholds.detach().clone(), model.head.weight.detach().clone()))
        assert math.isfinite(task)
        assert len(kept) == 2

    results = train_token_pruning(
        model, batches(), loss, plan(soft_steps=3, final_temperature=0.005), on_step=on_step
    )
    assert [entry[:3] for entry in seen] == [("soft", i, "soft") for i in range(3)] + [
        ("hard", i, "hard") for i in range(5)
    ]
    assert [entry[3] for entry in seen[:3]] == [0.02, 0.01, 0.005]
    assert [(r.stage, len(r.losses)) for r in results] == [("soft", 3), ("hard", 5)]
    assert not torch.equal(states[0][0], states[2][0])
    assert torch.equal(states[2][0], states[-1][0])
    assert not torch.equal(states[3][1], states[-1][1])
    encoder = token_encoder(model)
    assert (encoder.phase, model.training, encoder.thresholds.requires_grad) == (
        "hard",
        False,
        True,
    )
    assert results[1].thresholds == encoder.thresholds.tolist()


def test_the_same_seed_gives_the_same_bits():
    states = []
    for _ in range(2):
        model = Model()
        torch.manual_seed(3)  # dropout
        train_token_pruning(model, batches(), loss, plan(soft_steps=3, hard_steps=2))
        states.append(model.state_dict())
    assert all(torch.equal(states[0][name], states[1][name]) for name in states[0])


def test_weight_decay_never_touches_thresholds():
    model = Model()
    before = token_encoder(model).thresholds.detach().clone()
    # Without gradient, Adam moves a parameter by its decay alone.
    settings = plan(penalty=0.0, weight_decay=0.5, hard_steps=0, soft_steps=2)
    train_token_pruning(model, batches(), lambda m, b: 0 * loss(m, b), settings)
    assert torch.equal(token_encoder(model).thresholds.detach(), before)


def test_fractions_and_penalty_by_hand():
    real = torch.tensor([[1, 1, 1, 0], [1, 0, 0, 0]]).bool()
    soft = torch.tensor([[1.0, 0.5, 0.1, 0.0], [1.0, 0, 0, 0]])
    first = TokenTrace(real, [real, soft])
    second = TokenTrace(real[:1], [real[:1], real[:1] & torch.tensor([True, False, True, True])])
    found = kept_fractions([first, second])
    torch.testing.assert_close(found, torch.tensor([1.0, (2.6 + 2) / 7]))
    torch.testing.assert_close(token_penalty([first, second]), found.sum())


def test_costs_match_a_count_by_hand():
    model = Model(dropped="last")
    encoder = token_encoder(model)
    encoder.thresholds.data.copy_(torch.tensor([0.105, 0.2]))
    data = batches(2)
    model.train()
    found = measure_tokens(model, data, logits)
    assert model.training
    model.eval()
    dense = mine = real = 0.0
    left = [0, 0]
    for batch in data:
        with torch.no_grad(), encoder.recording() as traces:
            logits(model, batch)
        for row, n in enumerate(batch["attention_mask"].sum(1).tolist()):
            now = n
            real += n
            for layer, keep in enumerate(traces[0].keep):
                kept = int(keep[row].sum())
                left[layer] += kept
                dense += 4 * n * 16**2 + 2 * n**2 * 16 + 2 * n * 16 * 24
                mine += 4 * now * 16**2 + 2 * now**2 * 16 + 2 * kept * 16 * 24
                now = kept
    assert found.kept == pytest.approx([part / real for part in left])
    assert 0.1 < found.kept[1] < found.kept[0] < 1
    assert found.macs == pytest.approx(mine / dense)
    assert found.tokens == pytest.approx(real / 16)


@pytest.mark.parametrize("kept", [(1.0, 1.0), (0.8, 0.5), (0.6, 0.6), (0.5, 0.0), (0.0, 0.0)])
def test_thresholds_read_off_data_keep_what_was_asked(kept):
    model = Model(normalise="received")
    model.train()
    thresholds = set_thresholds(model, batches(), logits, kept)
    assert model.training
    assert thresholds == token_encoder(model).thresholds.tolist()
    found = measure_tokens(model, batches(), logits)
    first = 1 / found.tokens
    assert found.kept == pytest.approx([max(part, first) for part in kept], abs=0.01)


def test_what_is_refused():
    model = Model()
    for kept, message in (
        ((0.5,), "2 fractions"),
        ((0.5, 1.1), "2 fractions"),
        ((0.2, 0.3), "return"),
    ):
        with pytest.raises(InputError, match=message):
            set_thresholds(model, batches(), logits, kept)
    with pytest.raises(InputError, match="empty"):
        set_thresholds(model, [], logits, (1.0, 1.0))
    with pytest.raises(InputError, match="batches is empty"):
        train_token_pruning(model, [], loss, PLAN)
    with pytest.raises(TargetError, match="found 0"):
        train_token_pruning(model.bert.embeddings, batches(), loss, PLAN)
    with pytest.raises(InputError, match="not called"):
        train_token_pruning(model, batches(), lambda m, b: m.head.weight.sum(), PLAN)
    before = copy.deepcopy(model.state_dict())
    with pytest.raises(GossamerError, match="the loss is nan at step 0 of the soft stage"):
        train_token_pruning(model, batches(), lambda m, b: loss(m, b) * math.nan, PLAN)
    assert all(torch.equal(before[name], value) for name, value in model.state_dict().items())
    assert token_encoder(model).phase == "hard"
    for name, value in (
        ("penalty", -1.0), ("soft_steps", -1), ("lr", math.nan), ("temperature", 0.0),
        ("final_temperature", -1.0), ("clip", 0.0),
    ):  # fmt: skip
        with pytest.raises(InputError, match=name):
            plan(**{name: value})
