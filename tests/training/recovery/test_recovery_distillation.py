# SPDX-License-Identifier: Apache-2.0
"""The teacher and the objective: what is matched, what is remembered, what is refused."""

import copy
from types import SimpleNamespace

import pytest
import torch
from torch import nn

import gossamer
from gossamer.errors import InputError
from gossamer.nn.batch import Batch, rows_of
from gossamer.training.recovery.distillation import (
    DistillationObjective,
    Teacher,
    Terms,
    block_names,
    captured,
    check_apart,
    cosine_term,
    hidden_term,
    logits_of,
    logits_term,
    similarity_term,
    vectors_of,
)
from gossamer.zoo import TinyEncoder


def encoder(seed=0):
    torch.manual_seed(seed)
    return TinyEncoder(30, 4, width=16, num_heads=2, num_layers=3, ffn_width=32).eval()


class Speaker(nn.Module):
    """Hidden states by name, and how often it was asked."""

    def __init__(self, seed=0):
        super().__init__()
        torch.manual_seed(seed)
        self.embedding = nn.Embedding(20, 6)
        self.asked = 0

    def forward(self, input_ids, attention_mask=None):
        self.asked += 1
        return SimpleNamespace(last_hidden_state=self.embedding(input_ids))


def batch_of(rows, samples=None):
    width = max(map(len, rows))
    ids = torch.tensor([row + [0] * (width - len(row)) for row in rows])
    keep = torch.tensor([[True] * len(row) + [False] * (width - len(row)) for row in rows])
    inputs = {"input_ids": ids, "attention_mask": keep.long()}
    return Batch(inputs, keep, samples=samples)


def test_the_teacher_is_frozen_and_in_eval_mode():
    model = encoder().train()
    teacher = Teacher(model)
    assert not model.training
    assert not any(parameter.requires_grad for parameter in model.parameters())
    batch = Batch(torch.randint(30, (2, 5)))
    assert not teacher.run(batch)[0].requires_grad


def test_vectors_of_known_samples_are_remembered_and_right():
    model = Speaker()
    teacher = Teacher(model)
    rows = [[1, 2, 3], [4], [5, 6]]
    first = teacher.vectors(batch_of(rows, (0, 1, 2)))
    assert model.asked == 1
    again = teacher.vectors(batch_of([rows[2], rows[0]], (2, 0)))
    assert model.asked == 1
    assert torch.equal(again, first[[2, 0]])
    wanted = torch.stack([model.embedding(torch.tensor(row)).mean(dim=0) for row in rows])
    torch.testing.assert_close(first, wanted)
    teacher.vectors(batch_of([rows[0], [7]], (0, 9)))
    assert model.asked == 2
    teacher.vectors(batch_of(rows))
    assert model.asked == 3


def test_memory_is_bounded():
    model = Speaker()
    teacher = Teacher(model, memory_bytes=2 * 6 * 4)
    for _ in range(2):
        teacher.vectors(batch_of([[1], [2], [3]], (0, 1, 2)))
    assert model.asked == 2
    teacher.vectors(batch_of([[2], [1]], (1, 0)))
    assert model.asked == 2


def test_a_teacher_that_shares_parameters_is_refused():
    model = encoder()
    with pytest.raises(InputError, match=r"shares .* with the model that is trained"):
        check_apart(model, nn.Sequential(model))
    check_apart(model, copy.deepcopy(model))


def test_blocks_are_found_and_their_outputs_seen_in_order():
    model = encoder()
    names = block_names(model)
    assert names == ["layers.0", "layers.1", "layers.2"]
    x = torch.randint(30, (2, 5))
    with captured(model, names) as seen:
        model(x)
    assert [tuple(state.shape) for state in seen] == [(2, 5, 16)] * 3
    before = len(seen)
    model(x)
    assert len(seen) == before
    with pytest.raises(InputError, match=r"no module 'layers.9'"), captured(model, ["layers.9"]):
        pass
    with pytest.raises(InputError, match=r"no nn.ModuleList of blocks"):
        block_names(nn.Sequential(nn.Linear(2, 2)))


def test_every_term_is_weighted_and_named():
    dense, student = encoder(), encoder(1)
    batch = Batch(torch.randint(30, (6, 5)))
    terms = Terms(logits=2.0, embeddings=3.0, similarity=5.0, hidden=7.0, temperature=4.0)
    loss, parts = DistillationObjective(Teacher(dense), terms)(student, batch)
    with torch.no_grad(), captured(student, block_names(student)) as mine:
        outputs = batch.run(student)
    with torch.no_grad(), captured(dense, block_names(dense)) as theirs:
        wanted = batch.run(dense)
    expected = {
        "logits": logits_term(outputs, wanted, 4.0),
        "embeddings": cosine_term(outputs, wanted),
        "similarity": similarity_term(outputs, wanted),
        "hidden": hidden_term(mine, theirs),
    }
    assert set(parts) == set(expected)
    for name, value in expected.items():
        assert parts[name] == pytest.approx(float(value), rel=1e-5)
    total = sum(getattr(terms, name) * float(value) for name, value in expected.items())
    assert float(loss.detach()) == pytest.approx(total, rel=1e-5)
    loss.backward()
    assert all(p.grad is not None for p in student.layers.parameters())
    assert all(p.grad is None for p in dense.parameters())


@pytest.mark.parametrize("hardness", [0.0, 0.25, 1.0])
def test_hardness_mixes_in_the_task(hardness):
    dense, student = encoder(), encoder(1)
    batch = Batch(torch.randint(30, (6, 5)), labels=torch.randint(4, (6,)))

    def task(outputs, given):
        return nn.functional.cross_entropy(outputs, given.labels)

    soft = DistillationObjective(Teacher(dense), Terms(logits=1.0))(student, batch)[0]
    objective = DistillationObjective(
        Teacher(dense), Terms(logits=1.0), task=task, hardness=hardness
    )
    loss, parts = objective(student, batch)
    hard = task(batch.run(student), batch)
    wanted = (1 - hardness) * float(soft.detach()) + hardness * float(hard.detach())
    assert float(loss.detach()) == pytest.approx(wanted, rel=1e-5)
    assert ("task" in parts) == (hardness > 0)
    assert ("logits" in parts) == (hardness < 1)


def test_the_loss_is_zero_for_the_teacher_itself_pruned_by_nothing():
    dense = encoder()
    student = copy.deepcopy(dense)
    gossamer.sparsify(student, sparsity=0.0)
    batch = Batch(torch.randint(30, (6, 5)))
    terms = Terms(logits=1.0, embeddings=1.0, similarity=1.0, hidden=1.0)
    loss, _ = DistillationObjective(Teacher(dense), terms)(student, batch)
    assert float(loss.detach()) == pytest.approx(0, abs=1e-5)


def test_padding_does_not_count():
    rows = [[1, 2, 3], [4]]
    batch = batch_of(rows)
    more = {name: nn.functional.pad(value, (0, 4)) for name, value in batch.arguments.items()}
    padded = Batch(more, nn.functional.pad(batch.keep, (0, 4)))
    terms = Terms(embeddings=1.0, similarity=1.0)
    objective = DistillationObjective(Teacher(Speaker()), terms)
    losses = [float(objective(Speaker(1), one)[0].detach()) for one in (batch, padded)]
    assert losses[0] == pytest.approx(losses[1], rel=1e-6)
    hidden = torch.randn(2, 3, 5)
    assert rows_of(hidden, batch.keep).shape == (4, 5)
    assert rows_of(hidden, None).shape == (6, 5)
    assert rows_of(hidden[:, 0], batch.keep).shape == (2, 5)


def test_outputs_are_read_in_every_form():
    logits = torch.randn(3, 4)
    for form in (logits, (logits, None), {"logits": logits}, SimpleNamespace(logits=logits)):
        assert logits_of(form) is logits
    assert vectors_of(logits, None) is logits
    hidden = torch.randn(2, 3, 4)
    torch.testing.assert_close(vectors_of((hidden,), None), hidden.mean(dim=1))
    nothing_kept = vectors_of(hidden, torch.zeros(2, 3, dtype=torch.bool))
    assert not nothing_kept.any()
    with pytest.raises(InputError, match="has no logits"):
        logits_of({"last_hidden_state": hidden})
    with pytest.raises(InputError, match=r"expected outputs \[B, T, D\] or \[B, D\]"):
        vectors_of(torch.randn(2), None)


@pytest.mark.parametrize(
    ("terms", "hardness", "words"),
    [
        (Terms(), 0.0, "every term has weight 0"),
        (Terms(logits=-1.0), 0.0, "logits must not be negative"),
        (Terms(logits=1.0), 0.5, "there is none"),
        (Terms(logits=1.0), 1.5, r"hardness must be in \[0, 1\]"),
    ],
)
def test_bad_settings_are_named(terms, hardness, words):
    with pytest.raises(InputError, match=words):
        DistillationObjective(Teacher(encoder()), terms, hardness=hardness)
