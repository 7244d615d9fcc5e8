# SPDX-License-Identifier: Apache-2.0
"""A candidate of a search is compiled and timed once per precision, and named by its recipe."""

import pytest
from search_tools import make_quick, random_lines, tiny_encoder, tiny_tokenizer

from gossamer.recipes.digest import recipe_digest
from gossamer.runs import executor
from gossamer.search import Mask, trial
from gossamer.search.candidates import one_shot, slim
from gossamer.search.workloads import load_workload


@pytest.mark.parametrize("kind", ["one shot", "slim"])
def test_a_candidate_is_compiled_and_timed_once(kind, tmp_path, monkeypatch):
    make_quick(monkeypatch)
    lines = tmp_path / "sentences.txt"
    lines.write_text("\n".join(random_lines(80)))
    work = load_workload(tiny_encoder(), tiny_tokenizer(), lines)
    made = {
        "one shot": one_shot(Mask("unstructured", 0.9), table="int4"),
        "slim": slim(0.5, table="int4"),
    }
    calls, keys = [], []

    def counted(name, real):
        return lambda *args, **settings: calls.append(name) or real(*args, **settings)

    def journal(path, key):
        keys.append(key)
        return real_journal(path, key)

    real_journal = trial.DiskJournal
    monkeypatch.setattr(trial, "compile_model", counted("compiled", trial.compile_model))
    monkeypatch.setattr(trial, "duel", counted("timed", trial.duel))
    monkeypatch.setattr(executor, "compile_model", counted("compiled", executor.compile_model))
    monkeypatch.setattr(executor, "duel", counted("timed", executor.duel))
    monkeypatch.setattr(trial, "DiskJournal", journal)
    candidate = made[kind]
    done = trial.Workshop(work, tmp_path / "shop", 1.0, {}).try_out(candidate)
    assert len(done.points) == len(candidate.precisions)
    assert calls == ["compiled", "timed"] * len(candidate.precisions)
    assert keys[0]["recipe"] == recipe_digest(candidate.recipe)
    assert not list((tmp_path / "shop" / candidate.name).glob("report*"))
