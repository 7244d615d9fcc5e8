# SPDX-License-Identifier: Apache-2.0
"""Generated click logs: long tails, the best possible AUC, Criteo's form; AUC against all pairs."""

import pytest
import torch

from gossamer.errors import InputError
from gossamer.zoo.problems import click_problem, weighted_auc, write_criteo


def problem(seed=0, **settings):
    return click_problem(torch.Generator().manual_seed(seed), **settings)


def by_pairs(scores, positives, negatives):
    s = scores.double()
    wins = (s[:, None] > s[None]).double() + (s[:, None] == s[None]).double() / 2
    pairs = positives.double()[:, None] * negatives.double()[None]
    return float((wins * pairs).sum() / pairs.sum())


@pytest.mark.parametrize("count", [2, 3, 17, 200])
@pytest.mark.parametrize("levels", [1, 2, 5, 1000])
def test_auc_is_the_part_of_pairs_in_the_right_order(count, levels):
    generator = torch.Generator().manual_seed(count * levels)
    scores = torch.randint(levels, (count,), generator=generator).float()
    labels = torch.randint(2, (count,), generator=generator)
    labels[0], labels[1] = 0, 1
    assert weighted_auc(scores, labels, 1 - labels) == pytest.approx(
        by_pairs(scores, labels, 1 - labels), abs=1e-12
    )
    chances = torch.rand(count, generator=generator, dtype=torch.float64)
    assert weighted_auc(scores, chances, 1 - chances) == pytest.approx(
        by_pairs(scores, chances, 1 - chances), abs=1e-12
    )


def test_auc_of_one_class_is_undefined():
    for label in (0, 1):
        with pytest.raises(InputError, match="undefined"):
            weighted_auc(torch.arange(3.0), torch.full((3,), label), torch.full((3,), 1 - label))


def test_ranking_by_the_true_chance_reaches_the_bayes_auc():
    drawn = problem(num_rows=60_000)
    found = weighted_auc(drawn.chances, drawn.labels, 1 - drawn.labels)
    # The standard error of an AUC of 60,000 rows is about 0.0015.
    assert found == pytest.approx(drawn.bayes_auc(), abs=0.008)
    assert 0.8 < drawn.bayes_auc() < 0.95


def test_ids_have_a_long_tail():
    drawn = problem(rows=(1000,), num_numbers=0)
    counts = drawn.ids[:, 0].bincount(minlength=1000)
    assert int(counts[0]) > 20 * int(counts[100])
    assert int((counts > 0).sum()) > 500


def test_the_generator_decides_everything():
    assert torch.equal(problem(3).labels, problem(3).labels)
    assert not torch.equal(problem(3).labels, problem(4).labels)


def test_criteos_form(tmp_path):
    drawn = problem(num_rows=3)
    write_criteo(drawn, tmp_path / "log.tsv")
    lines = (tmp_path / "log.tsv").read_text().splitlines()
    assert [len(line.split("\t")) for line in lines] == [40] * 3
    for line, label, numbers in zip(lines, drawn.labels, drawn.numbers, strict=True):
        cells = line.split("\t")
        assert cells[0] == str(int(label))
        for cell, number in zip(cells[1:14], numbers, strict=True):
            assert (cell == "") == bool(number.isnan())
            assert not cell or int(cell) == int(number)
        assert all(len(cell) == 8 and int(cell, 16) >= 0 for cell in cells[14:])


@pytest.mark.parametrize(
    "settings", [{"num_rows": 1}, {"rows": ()}, {"num_numbers": 0}, {"rows": (1, 1)}]
)
def test_edges(settings):
    drawn = problem(**{"num_rows": 5, **settings})
    assert drawn.chances.isfinite().all()
    assert drawn.ids.shape == (len(drawn.labels), len(settings.get("rows", (200,) * 26)))
    with pytest.raises(InputError, match="rows"):
        problem(rows=(0,))
