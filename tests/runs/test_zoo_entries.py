# SPDX-License-Identifier: Apache-2.0
"""Models of the zoo: made twice they are the same bytes, and the record is checked."""

import json
from dataclasses import replace

import pytest
import torch

import gossamer
from gossamer.cli.main import main
from gossamer.cli.models import demo_path
from gossamer.errors import ArtifactError, InputError
from gossamer.recipes import load_recipe
from gossamer.runs.sources import load_path
from gossamer.runs.zoo import ENTRIES, make_entry
from gossamer.runs.zoo.making import kernel_set
from gossamer.runs.zoo.sentences import generated_sentences

CHEAPEST = ENTRIES[0]


def packaged(model):
    return load_path(demo_path(model), f"demo:{model}", print)


def twice(entry, folder):
    made = [make_entry(entry.name, folder / str(turn), packaged) for turn in (1, 2)]
    assert made[0].digest == made[1].digest
    assert made[0].score == made[1].score
    return made[0]


def test_the_cheapest_entry_is_made_twice_to_the_same_bytes(tmp_path):
    threads = torch.get_num_threads()
    made = twice(CHEAPEST, tmp_path)
    assert torch.get_num_threads() == threads
    assert made.weight_bytes == sum(f.stat().st_size for f in (tmp_path / "1").glob("*.safetens*"))
    assert gossamer.load(tmp_path / "1") is not None


@pytest.mark.slow
@pytest.mark.timeout(1200)
@pytest.mark.parametrize("entry", ENTRIES[1:], ids=lambda entry: entry.name)
def test_the_others_are_too(entry, tmp_path):
    twice(entry, tmp_path)


@pytest.mark.parametrize("entry", ENTRIES, ids=lambda entry: entry.name)
def test_records_are_whole_and_recipes_take_their_settings(entry):
    recipe = load_recipe(entry.recipe, entry.overrides)
    assert recipe.needs_data <= bool(entry.data)
    assert entry.reached > 0
    assert entry.weight_bytes > 0
    assert entry.digests
    assert all(len(digest) == 64 for digest in entry.digests.values())


def test_what_differs_from_the_record_is_refused(tmp_path):
    few = tuple(text for text in CHEAPEST.overrides if not text.startswith("steps"))
    small = replace(CHEAPEST, overrides=(*few, "steps=20"), digests={}, reached=0.0)
    made = make_entry(small.name, tmp_path / "a", packaged, entries=(small,))
    assert made.same_bytes is None
    right = replace(small, digests={kernel_set(): made.digest})
    again = make_entry(small.name, tmp_path / "b", packaged, entries=(right,))
    assert again.same_bytes
    wrong = replace(small, digests={kernel_set(): "0" * 64})
    with pytest.raises(ArtifactError, match="expected weights with digest 0000000000000000"):
        make_entry(small.name, tmp_path / "c", packaged, entries=(wrong,))
    better = replace(small, reached=made.score + 0.5, digests={"another machine": made.digest})
    with pytest.raises(ArtifactError, match=r"expected a score of .* no digest is recorded"):
        make_entry(small.name, tmp_path / "d", packaged, entries=(better,))
    lower = replace(better, lower_is_better=True)
    assert make_entry(small.name, tmp_path / "e", packaged, entries=(lower,)).same_bytes is None


def test_unknown_names_are_told(tmp_path):
    with pytest.raises(InputError, match="no entry 'x'; expected one of images-gradual-90"):
        make_entry("x", tmp_path / "x", packaged)


def test_sentences_are_the_same_everywhere():
    assert generated_sentences(0) == []
    found = generated_sentences(400)
    assert len(set(found)) == 400
    assert found[:50] == generated_sentences(50)
    assert found != generated_sentences(400, seed=1)


def test_the_list_is_a_document(capsys):
    assert main(["zoo", "list", "--json"]) == 0
    document = json.loads(capsys.readouterr().out)
    assert [row["name"] for row in document["entries"]] == [entry.name for entry in ENTRIES]
