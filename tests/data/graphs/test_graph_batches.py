# SPDX-License-Identifier: Apache-2.0
"""Batches of pairs, and recall, AUC and loss of vectors against loops over everything."""

import math

import pytest
import torch

from gossamer.data import generator_of
from gossamer.data.graphs import GraphRules, LinkBatches, LinkData, NodeBatches, link_metrics
from gossamer.errors import InputError
from gossamer.zoo.problems.graphs import partition_problem, taste_problem


def tastes(apart=True, **sizes):
    problem = taste_problem(generator_of(1, 2), **sizes)
    shift = problem.num_users if apart else 0
    count = problem.num_users + problem.num_items if apart else problem.num_users
    pairs = problem.pairs + torch.tensor([0, shift])
    if not apart:
        pairs = pairs[pairs[:, 0] != pairs[:, 1]]
    return LinkData.of(pairs, count, shift, GraphRules(validation=0.2, test=0.2))


def test_a_batch_is_a_function_of_its_number():
    data = tastes(num_users=30, num_items=20)
    first, second = (LinkBatches(data, 16, seed=3) for _ in range(2))
    assert torch.equal(first[7], second[7])
    assert not torch.equal(first[7], first[8])
    train = {tuple(pair) for pair in data.parts["train"].tolist()}
    for number in range(2 * len(first)):
        for user, item, other in first[number].tolist():
            assert (user, item) in train
            assert (user, other) not in train
            assert data.first_item <= other < data.num_nodes
    seen = torch.cat([first[number][:, :2] for number in range(len(first))])
    assert len(seen.unique(dim=0)) == len(seen)


def test_a_batch_of_nodes_carries_its_number():
    nodes = torch.tensor([5, 7, 9, 11, 13])
    batches = NodeBatches(nodes, 2, seed=0)
    assert len(batches) == 2
    own, numbers = batches[3]
    assert set(own.tolist()) <= set(nodes.tolist())
    assert numbers.tolist() == [3, 3]


@pytest.mark.parametrize("apart", [True, False])
@pytest.mark.parametrize("part", ["validation", "test"])
def test_numbers_equal_a_loop_over_all_users(apart, part):
    data = tastes(apart, num_users=30, num_items=30, inside=0.6, between=0.1)
    vectors = torch.randn(data.num_nodes, 4, generator=generator_of(5))
    found = link_metrics(vectors, data, part)
    known = {tuple(p) for p in data.parts["train"].tolist()}
    if part == "test":
        known |= {tuple(p) for p in data.parts["validation"].tolist()}
    wanted = {}
    for user, item in data.parts[part].tolist():
        wanted.setdefault(user, set()).add(item)
    recalls = []
    for user, items in wanted.items():
        free = [
            item
            for item in range(data.first_item, data.num_nodes)
            if (user, item) not in known and (apart or item != user)
        ]
        scores = {item: float(vectors[user] @ vectors[item]) for item in free}
        best = set(sorted(free, key=scores.get, reverse=True)[:20])
        recalls.append(len(best & items) / len(items))
    assert found["recall_at_20"] == pytest.approx(sum(recalls) / len(recalls))
    assert 0.2 < found["auc"] < 0.8
    assert found["eval_loss"] > math.log(2) / 2


def test_vectors_of_kinds_reach_the_best_auc():
    problem = taste_problem(generator_of(1, 2), num_users=200, num_items=150)
    pairs = problem.pairs + torch.tensor([0, problem.num_users])
    data = LinkData.of(pairs, 350, 200, GraphRules(validation=0.3, test=0.3))
    kinds = torch.cat([problem.user_kind, problem.item_kind])
    vectors = torch.nn.functional.one_hot(kinds).float()
    # Ties count half there and here; pairs to measure on are a sample.
    assert link_metrics(vectors, data, "test")["auc"] == pytest.approx(problem.best_auc(), abs=0.02)
    constant = link_metrics(torch.ones(350, 2), data, "test")
    assert constant["auc"] == 0.5
    assert constant["eval_loss"] == pytest.approx(math.log(2))


def test_vectors_that_are_not_finite_are_refused():
    data = tastes(num_users=10, num_items=10)
    with pytest.raises(InputError, match="NaN or infinite"):
        link_metrics(torch.full((20, 2), torch.nan), data, "test")


def test_the_best_guess_beats_features_alone():
    problem = partition_problem(generator_of(0, 1))
    best = (problem.best_guess() == problem.y).double().mean()
    alone = (problem.x.argmax(1) == problem.y).double().mean()
    assert best > 0.85 > 0.65 > alone
    with pytest.raises(InputError, match="partition_problem"):
        partition_problem(generator_of(0), inside=0.1, between=0.2)
    with pytest.raises(InputError, match="taste_problem"):
        taste_problem(generator_of(0), inside=0.1, between=0.2)
