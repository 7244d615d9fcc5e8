# SPDX-License-Identifier: Apache-2.0
"""The recover stage: settings, data, and what it leaves of a model."""

import copy
import json

import pytest
import torch
from torch.nn.functional import cross_entropy

import gossamer
from gossamer import sparsify
from gossamer.data.files import Pair
from gossamer.data.token_ids import draw
from gossamer.errors import InputError, RecipeError, TargetError
from gossamer.nn import Linear, MaskedLinear
from gossamer.nn.batch import Batch
from gossamer.recipes import make_recipe
from gossamer.recipes.stages import Recover
from gossamer.runs import execute
from gossamer.runs.stages import StageInput
from gossamer.runs.stages.recover import run_recover_stage
from gossamer.runs.stages.recover_data import (
    SortedBatches,
    samples_of_batches,
    samples_of_pairs,
    samples_of_texts,
    samples_of_windows,
)
from gossamer.training.recovery.fake_int8 import FakeInt8
from gossamer.zoo import TinyEncoder

PRUNE = {"prune": {"method": "magnitude", "sparsity": 0.8}}


def recipe(**settings):
    recover = {"logits": 1.0, "steps": 40, "rate": 0.003, **settings}
    return make_recipe({"gossamer": 1, "stages": [PRUNE, {"recover": recover}]}, "test")


def tiny():
    torch.manual_seed(0)
    return TinyEncoder(50, 3, width=32, num_heads=4, num_layers=2, ffn_width=64).eval()


def data(count=6):
    generator = torch.Generator().manual_seed(1)
    return [torch.randint(50, (16, 10), generator=generator) for _ in range(count)]


def distance(dense, model, batches):
    with torch.no_grad():
        return sum(float((model(x) - dense(x)).square().mean()) for x in batches)


class Words:
    """A tokenizer: one number per word."""

    def enable_truncation(self, limit):
        self.limit = limit

    def no_truncation(self):
        self.limit = None

    def encode_batch(self, texts):
        return [type("E", (), {"ids": [len(w) for w in t.split()][: self.limit]}) for t in texts]


@pytest.mark.parametrize("quantise", [None, "int8"])
def test_a_pruned_model_gets_closer_to_the_dense_one(quantise):
    dense, batches = tiny(), data()
    oneshot = copy.deepcopy(dense)
    sparsify(oneshot, make_recipe({"gossamer": 1, "stages": [PRUNE]}, "test"), data=batches)
    model = copy.deepcopy(dense)
    report = execute(recipe(quantise=quantise), model, batches)
    assert report.sparsity == pytest.approx(0.8, abs=0.01)
    assert distance(dense, model, batches) < 0.5 * distance(dense, oneshot, batches)
    masked = [m for m in model.modules() if isinstance(m, MaskedLinear)]
    assert len(masked) == len(report.layers)
    assert not any(isinstance(m, FakeInt8) for m in model.modules())
    others = [m for m in oneshot.modules() if isinstance(m, MaskedLinear)]
    for one, two in zip(masked, others, strict=True):
        assert torch.equal(one.mask(), two.mask())
        assert not one.weight_parameter()[~one.mask()].any()
    assert report.notes[0].startswith("recovered in 40 steps on 5 samples")
    assert any("int8 kernels" in note for note in report.notes) == (quantise == "int8")
    assert all(parameter.requires_grad for parameter in model.parameters())


def test_quality_is_that_of_the_loop_recovery_once_had():
    # Its own loop reached 0.18, 0.23, 0.25, 0.23 and 0.25 of the distance with seeds 0 to 4; which
    # batches come when decides the second digit.
    dense, batches = tiny(), data()
    oneshot = copy.deepcopy(dense)
    sparsify(oneshot, make_recipe({"gossamer": 1, "stages": [PRUNE]}, "test"), data=batches)
    left = []
    for seed in range(3):
        model = copy.deepcopy(dense)
        execute(recipe(seed=seed), model, batches)
        left.append(distance(dense, model, batches) / distance(dense, oneshot, batches))
    assert sum(left) / len(left) < 0.26
    assert max(left) < 0.3


def test_scales_that_end_with_the_stage_are_named():
    report = execute(recipe(quantise="int8", scales="learned", steps=2), tiny(), data())
    assert any("learned scales of activations end with the stage" in note for note in report.notes)


def test_steps_are_reproducible_to_the_bit(monkeypatch):
    monkeypatch.setenv("GOSSAMER_TUNE", "off")
    models = [tiny() for _ in range(2)]
    for model in models:
        execute(recipe(steps=6), model, data())
    first, second = (model.state_dict() for model in models)
    assert all(torch.equal(first[name], second[name]) for name in first)


def test_frozen_modules_stay_as_they_were():
    model = tiny()
    before = copy.deepcopy(model.state_dict())
    execute(recipe(freeze=["Embedding", "re:layers.0.*"]), model, data())
    names = {n for n in before if "embedding" in n or n.startswith("layers.0")}
    assert names
    kept = {n for n, value in model.state_dict().items() if n in before and "mask" not in n}
    masked = {n for n in names if n.endswith("weight") and n.startswith("layers.0")}
    for name in names & kept - masked:
        assert torch.equal(model.state_dict()[name], before[name]), name
    assert not torch.equal(model.layers[1].query.weight, before["layers.1.query.weight"])
    with pytest.raises(TargetError, match=r"recover.freeze: 'Embeding' matched 0"):
        execute(recipe(freeze="Embeding"), tiny(), data())


def test_a_pruned_model_needs_a_teacher():
    dense, model, batches = tiny(), tiny(), data()
    sparsify(model, sparsity=0.8)
    alone = make_recipe(
        {"gossamer": 1, "stages": [{"recover": {"logits": 1.0, "steps": 30, "rate": 0.003}}]}, "t"
    )
    with pytest.raises(RecipeError, match="cannot be its own teacher"):
        execute(alone, model, batches)
    given = StageInput(batches=_b(batches), teacher=model)
    with pytest.raises(InputError, match="with the model that is trained"):
        run_recover_stage(model, alone.stages[0].step, given)
    assert all(parameter.requires_grad for parameter in model.parameters())
    before = distance(dense, model, batches)
    execute(alone, model, batches, given=StageInput(teacher=copy.deepcopy(dense)))
    assert distance(dense, model, batches) < 0.5 * before


def _b(batches):
    return [Batch(x) for x in batches]


def test_compact_models_stay_compact():
    dense, model, batches = tiny(), tiny(), data()
    sparsify(model, sparsity=0.8)
    gossamer.compact(model)
    step = Recover(logits=1.0, steps=5)
    given = StageInput(batches=_b(batches), teacher=dense)
    result = run_recover_stage(model, step, given)
    assert result.loop.step == 5
    assert isinstance(model.layers[0].query, Linear)


def test_labels_are_looked_at_with_hardness():
    seen = []

    def loss(net, batch):
        seen.append(batch.labels)
        return torch.nn.functional.cross_entropy(net(batch.arguments), batch.labels)

    batches = [Batch(x, labels=torch.zeros(16, dtype=torch.int64)) for x in data()]
    model = tiny()
    given = StageInput(loss=loss)
    execute(recipe(hardness=0.9, steps=30), model, batches, given=given)
    assert len(seen) > 30
    with torch.no_grad():
        chosen = torch.cat([model(batch.arguments).argmax(dim=1) for batch in batches])
    assert float((chosen == 0).float().mean()) > 0.9


def test_hardness_without_a_task_is_refused():
    with pytest.raises(RecipeError, match=r"recover.hardness: .* there is none"):
        execute(recipe(hardness=0.5), tiny(), data())


@pytest.mark.parametrize("hardness", [0.0, 1.0])
def test_a_causal_model_learns_distributions_or_next_tokens(hardness):
    transformers = pytest.importorskip("transformers")
    torch.manual_seed(0)
    config = transformers.LlamaConfig(
        vocab_size=40,
        hidden_size=32,
        intermediate_size=64,
        num_hidden_layers=2,
        num_attention_heads=4,
        max_position_embeddings=32,
        initializer_range=0.2,
    )
    dense = transformers.LlamaForCausalLM(config).eval()
    ids = torch.randint(40, (24, 12), generator=torch.Generator().manual_seed(1))
    given = StageInput(samples=samples_of_windows(ids, named=True))
    batches = [{"input_ids": ids[:8]}]

    def gap(net):
        with torch.no_grad():
            logits = net(input_ids=ids).logits
            if hardness:
                return float(cross_entropy(logits[:, :-1].flatten(0, 1), ids[:, 1:].flatten()))
            wanted = dense(input_ids=ids).logits.softmax(dim=-1)
            return float((logits.softmax(dim=-1) - wanted).abs().sum())

    settings = {"batch": 6, "hardness": hardness, "hidden": 0.5, "freeze": "Embedding"}
    oneshot, model = copy.deepcopy(dense), copy.deepcopy(dense)
    execute(recipe(steps=1, rate=1e-9, **settings), oneshot, batches, given=given)
    execute(recipe(**settings), model, batches, given=given)
    assert gap(model) < 0.9 * gap(oneshot)


def test_pairs_become_batches_whose_rows_have_numbers():
    pairs = [Pair("a bb", "ccc", 5.0), Pair("a", "bb ccc dddd", 2.5), Pair("a", "b", 0.0)]
    samples = samples_of_pairs(pairs, Words(), 2)
    batch = samples.make([2, 1])
    assert batch.samples == (4, 2, 5, 3)
    assert batch.labels.tolist() == [0.0, 0.5]
    assert batch.arguments["input_ids"].tolist() == [[1, 0], [1, 0], [1, 0], [2, 3]]
    assert batch.keep.tolist() == [[True, False], [True, False], [True, False], [True, True]]


@pytest.mark.parametrize("size", [1, 3, 7, 100])
def test_every_sample_comes_once_an_epoch_in_another_order(size):
    texts = [torch.full((1 + i % 5,), i) for i in range(50)]
    samples = samples_of_texts(texts)
    batches = SortedBatches(samples, size, 0)
    epochs = [[batches[e * len(batches) + i] for i in range(len(batches))] for e in range(2)]
    orders = [[n for batch in epoch for n in batch.samples] for epoch in epochs]
    assert orders[0] != orders[1]
    assert all(sorted(order) == list(range(50)) for order in orders)
    assert all(len(batch.samples) <= size for batch in epochs[0])
    # By number: in any order, from a fresh object, the same ones.
    again = SortedBatches(samples, size, 0)
    for number in (len(batches) + 1, 0, len(batches)):
        assert again[number].samples == batches[number].samples
    other = SortedBatches(samples, size, 1)
    assert [other[i].samples for i in range(len(other))] != [b.samples for b in epochs[0]]
    fixed = [batch.samples for batch in samples.in_order(size)]
    assert fixed == [batch.samples for batch in samples.in_order(size)]
    lengths = [len(texts[n]) for batch in fixed for n in batch]
    assert lengths == sorted(lengths)


def test_a_part_is_set_aside_and_never_trained_on():
    samples = samples_of_texts([torch.ones(2)] * 40)
    train, held = samples.split(0.25, 0)
    assert len(held.numbers) == 10
    assert sorted([*train.numbers, *held.numbers]) == list(range(40))
    assert held.numbers != draw(40, 10, 0)
    assert samples.split(0.25, 1)[1].numbers != held.numbers
    big = samples_of_texts([torch.ones(2)] * 6000)
    assert len(big.split(0.5, 0)[1].numbers) == 512
    train, held = samples_of_texts([torch.ones(2)] * 2).split(0.1, 0)
    assert len(train.numbers) == len(held.numbers) == 1
    with pytest.raises(InputError, match="needs at least 2 samples"):
        samples_of_texts([torch.ones(2)]).split(0.1, 0)


def test_windows_and_batches_are_samples_too():
    ids = torch.arange(12).view(3, 4)
    assert samples_of_windows(ids, named=True).make([2])
    assert torch.equal(samples_of_windows(ids, named=False).make([2, 0]).arguments, ids[[2, 0]])
    batches = [Batch(torch.zeros(4, 7)), Batch(torch.zeros(2, 3, dtype=torch.int64))]
    samples = samples_of_batches(batches)
    assert samples.make([1]).arguments is batches[1].arguments
    assert samples.lengths == [4, 6]
    assert samples.mean_tokens(1) == 5


@pytest.mark.parametrize(
    ("settings", "words"),
    [
        ({"logits": 0.0}, "every term is 0"),
        ({"scales": "learned"}, "belongs to quantise: int8"),
        ({"quantise": "int4"}, "quantise"),
        ({"hardness": 2.0}, "must be at most 1"),
        ({"steps": 0}, "must be at least 1"),
        ({"minutes": 0.0}, "must be more than 0"),
        ({"temprature": 1.0}, "Did you mean 'temperature'"),
        ({"rate": "fast"}, "expected a number"),
    ],
)
def test_faults_are_told_with_their_place(settings, words):
    with pytest.raises(RecipeError) as error:
        recipe(**settings)
    assert "stages[1].recover" in str(error.value)
    assert words in str(error.value)


def test_a_recover_stage_needs_data_and_is_described():
    assert recipe().needs_data
    with pytest.raises(RecipeError, match="a recover stage looks at what data does"):
        execute(recipe(), tiny())
    from gossamer.recipes import json_schema

    properties = json_schema()["$defs"]["Recover"]["properties"]
    assert all(rule["description"] for rule in properties.values())
    assert json.dumps(properties)
