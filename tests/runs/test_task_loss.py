# SPDX-License-Identifier: Apache-2.0
"""`loss=` of sparsify: which gradients it gives, on which data, and where it is refused."""

import copy

import pytest
import torch
from torch import nn
from torch.nn.functional import cross_entropy

import gossamer
from gossamer.errors import GossamerError, InputError, RecipeError
from gossamer.nn.batch import Batch
from gossamer.patterns import Unstructured
from gossamer.pruning.gradients import prune_by_gradients
from gossamer.pruning.targets import find_targets


def make_model() -> nn.Sequential:
    torch.manual_seed(0)
    return nn.Sequential(nn.Linear(6, 16), nn.ReLU(), nn.Linear(16, 3)).double()


def pairs(count=4, size=5):
    generator = torch.Generator().manual_seed(3)
    return [
        (
            torch.randn(size, 6, generator=generator, dtype=torch.float64),
            torch.randint(3, (size,), generator=generator),
        )
        for _ in range(count)
    ]


def task_loss(model, batch):
    x, y = batch
    return cross_entropy(model(x), y)


@pytest.mark.parametrize("scorer", ["taylor", "fisher", "obert"])
def test_pairs_with_a_loss_prune_by_the_gradients_of_the_task(scorer):
    model, expected = make_model(), make_model()
    report = gossamer.sparsify(model, sparsity=0.5, scorer=scorer, data=pairs(), loss=task_loss)
    targets = find_targets(expected)
    prune_by_gradients(
        expected,
        [Batch(x, labels=y) for x, y in pairs()],
        lambda m, batch: cross_entropy(m(batch.arguments), batch.labels),
        targets,
        [round(t.weight.numel() / 2) for t in targets],
        Unstructured(),
        scorer,
    )
    for index in (0, 2):
        assert torch.equal(model[index].masked_weight(), expected[index].weight)
    assert report.ms_dense is not None
    without = make_model()
    gossamer.sparsify(without, sparsity=0.5, scorer=scorer, data=[x for x, _ in pairs()])
    assert not torch.equal(model[0].mask(), without[0].mask())


def test_other_forms_of_batches_reach_the_loss_as_they_are():
    seen = []

    def loss(model, batch):
        seen.append(batch)
        return model(batch["input"]).square().mean()

    data = [{"input": x} for x, _ in pairs()]
    gossamer.sparsify(make_model(), sparsity=0.5, scorer="fisher", data=data, loss=loss)
    assert all(any(batch is item for item in data) for batch in seen)


@pytest.mark.parametrize(
    "arguments",
    [
        {},
        {"scorer": "wanda"},
        {"scorer": "sparsegpt"},
        {"recipe": {"scorer": "magnitude"}},
        {"scorer": "random"},
    ],
)
def test_a_loss_that_nobody_would_call_is_refused(arguments):
    model = make_model()
    before = copy.deepcopy(model.state_dict())
    with pytest.raises((InputError, RecipeError), match=r"loss: .*[Ll]eave it out.*taylor"):
        gossamer.sparsify(model, sparsity=0.5, data=pairs(), loss=task_loss, **arguments)
    assert all(torch.equal(model.state_dict()[name], value) for name, value in before.items())


def test_a_loss_that_is_no_function_is_refused():
    with pytest.raises(InputError, match=r"loss: expected loss\(model, batch\), got str"):
        gossamer.sparsify(make_model(), sparsity=0.5, scorer="taylor", data=pairs(), loss="mse")


@pytest.mark.parametrize("scorer", ["magnitude", "wanda", "sparsegpt", "taylor", "obert"])
@pytest.mark.parametrize("form", [tuple, list])
def test_pairs_without_a_loss_are_refused_with_the_cure(scorer, form):
    data = [form(pair) for pair in pairs()]
    with pytest.raises(GossamerError, match=r"data: Sequential\.forward cannot be called.*loss="):
        gossamer.sparsify(make_model(), sparsity=0.5, scorer=scorer, data=data)


def test_a_type_error_of_the_model_itself_stays_as_it_is():
    class Broken(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.fc = nn.Linear(6, 6).double()

        def forward(self, x):
            return self.fc(x) + "text"

    with pytest.raises(TypeError, match="unsupported operand"):
        gossamer.sparsify(Broken(), sparsity=0.5, data=[x for x, _ in pairs()])


def test_obert_says_how_many_gradients_it_needs():
    def report(count):
        data = pairs(count, size=1)
        return gossamer.sparsify(
            make_model(), sparsity=0.5, scorer="obert", data=data, loss=task_loss
        )

    few = [note for note in report(3).notes if "gradients" in note]
    assert few == [
        "3 gradients, one per batch, are too few for obert: it needs 128, and with fewer it can be"
        " worse than magnitude. Give more batches, smaller ones if need be, or use sparsegpt or"
        " wanda."
    ]
    assert "it needs 128" in str(report(127))
    assert "gradients" not in str(report(128))
    with pytest.raises(InputError, match="needs 128; the data is 1 batch"):
        report(1)
