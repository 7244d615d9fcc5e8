# SPDX-License-Identifier: Apache-2.0
"""A whole search on a tiny encoder: made, measured, chosen, resumed, refused."""

import json
from dataclasses import replace

import pytest
import torch
from search_tools import make_quick, random_lines, tiny_encoder, tiny_tokenizer

import gossamer
from gossamer.errors import ArtifactError, InputError
from gossamer.ops.timing import Duel
from gossamer.ops.timing.load import Load
from gossamer.search import Mask, SearchLimits, forecast, rungs, trial
from gossamer.search.budget import NEVER, Deadline, OutOfTime
from gossamer.search.candidates import MASKS, fewer_tokens, one_shot, recovered, slim
from gossamer.search.forecast import MaskForecast, worth_trying
from gossamer.search.page import rows_of, search_page, verdict
from gossamer.search.workloads import load_workload

TWO = (Mask("unstructured", 0.5), Mask("unstructured", 0.9))


@pytest.fixture(scope="module")
def tokenizer():
    return tiny_tokenizer()


@pytest.fixture(scope="module")
def model():
    return tiny_encoder()


@pytest.fixture
def sentences(tmp_path):
    path = tmp_path / "sentences.txt"
    path.write_text("\n".join(random_lines(80)))
    return path


@pytest.fixture
def quick(monkeypatch):
    make_quick(monkeypatch)
    # A random model is ruined by little: nothing is hopeless here.
    monkeypatch.setattr(rungs, "_HOPELESS", 10.0)


def search(model, sentences, tokenizer, out, **options):
    return gossamer.shrink(model, sentences, out, tokenizer=tokenizer, masks=TWO, **options)


def test_a_search_makes_measures_and_chooses(model, sentences, tokenizer, tmp_path, quick):
    before = {name: tensor.clone() for name, tensor in model.state_dict().items()}
    seen = []
    # Faster than anything, so that every idea is tried.
    result = search(
        model, sentences, tokenizer, tmp_path / "out", max_loss=0.5, max_ms=1e-6,
        on_trial=lambda done: seen.append(done.candidate),
    )  # fmt: skip
    assert seen[:3] == ["dense", "dense-int8", "dense-bf16"]
    assert {"oneshot-50", "oneshot-90", "slim-50", "tokens-80"} <= set(seen)
    recoveries = [name for name in seen if name.startswith("recovered")]
    # Three rates for the first, one for the second, then the best of them with more steps.
    assert len(recoveries) == 5
    assert len({name.split("-")[-1] for name in recoveries}) == 3
    assert not result.met
    assert result.points[0].name == "dense fp32"
    assert result.points[0].lost == 0
    assert {p.name for p in result.front} <= {p.name for p in result.points}
    assert {each.mask for each in result.forecasts} == {"50", "90"}
    # The dense model is untouched, and the artifact is the one that was measured.
    assert all(torch.equal(before[name], tensor) for name, tensor in model.state_dict().items())
    gossamer.load(result.path)
    json.dumps(result.to_dict())
    assert "no model met all limits" in (result.path / "card.md").read_text()
    assert not list(result.work.glob("*.run")) + list(result.work.glob("*.journal"))


def test_artifacts_hold_integers(model, sentences, tokenizer, tmp_path, quick):
    result = search(model, sentences, tokenizer, tmp_path / "out", max_ms=1e-6)
    sizes = {point.candidate: point.size for point in result.points}
    assert sizes["dense-int8"] < 0.45 * sizes["dense"]
    assert sizes["dense-bf16"] < 0.6 * sizes["dense"]
    assert sizes["oneshot-90"] < 0.7 * sizes["dense-int8"]


def test_a_stopped_search_goes_on_to_the_same_result(
    model, sentences, tokenizer, tmp_path, quick, monkeypatch
):
    out = tmp_path / "out"
    whole = search(model, sentences, tokenizer, tmp_path / "other", max_ms=1e-6)

    def dies(self, candidate, path, deadline):
        if candidate.name == "oneshot-50":
            raise KeyboardInterrupt
        return made(self, candidate, path, deadline)

    made = trial.Workshop._make
    monkeypatch.setattr(trial.Workshop, "_make", dies)
    with pytest.raises(KeyboardInterrupt):
        search(model, sentences, tokenizer, out, max_ms=1e-6)
    monkeypatch.setattr(trial.Workshop, "_make", made)
    result = search(model, sentences, tokenizer, out, max_ms=1e-6)
    assert [(p.name, p.quality) for p in result.points] == [
        (p.name, p.quality) for p in whole.points
    ]
    # Everything is known now: nothing is made again.
    monkeypatch.setattr(trial.Workshop, "_make", None)
    again = search(model, sentences, tokenizer, out, max_ms=1e-6)
    assert again.chosen == result.chosen


def test_noise_does_not_make_more_zeros_slower():
    noisy = {0.5: 1.0, 0.9: 1.3}
    assert [forecast._on_line(sparsity, noisy) for sparsity in (0.5, 0.7, 0.9)] == [1.0, 1.0, 1.0]
    fair = {0.5: 1.0, 0.9: 0.6}
    assert forecast._on_line(0.7, fair) == pytest.approx(0.8)


def test_no_loss_allowed_means_stay_dense(model, sentences, tokenizer, tmp_path, quick):
    result = search(model, sentences, tokenizer, tmp_path / "out", max_loss=1e-7)
    assert result.met
    assert result.stay_dense


def test_no_time_means_dense_only(model, sentences, tokenizer, tmp_path, quick):
    result = search(model, sentences, tokenizer, tmp_path / "out", budget_minutes=1e-9)
    assert result.out_of_time
    assert {p.candidate for p in result.points} == {"dense"}
    said = verdict(result, SearchLimits(0.01))
    assert said.startswith("Dense in fp32 is the best of what was tried; no pruned model was tried")
    assert "faster" not in said
    left = [text.partition(":")[0] for text in result.left_out]
    assert left[:2] == ["oneshot-50", "oneshot-90"]
    assert {"dense-int8", "dense-bf16"} < set(left)
    card = (result.path / "card.md").read_text()
    assert "No pruned model was measured" in card
    assert "were not tried or not finished" in card
    page = search_page(result, SearchLimits(0.01), "tiny")
    assert page.lead == said
    assert any("oneshot-90: the time was up" in note for note in page.notes)


def test_time_that_earlier_runs_took_counts(model, sentences, tokenizer, tmp_path, quick):
    out = tmp_path / "out"
    search(model, sentences, tokenizer, out, budget_minutes=1e-9)
    record = tmp_path / "out.work" / "dense.trial.json"
    held = json.loads(record.read_text())
    record.write_text(json.dumps({**held, "seconds": 90.0}))
    result = search(model, sentences, tokenizer, out, budget_minutes=1.0)
    assert result.out_of_time
    assert [p.candidate for p in result.points] == ["dense"]
    more = search(model, sentences, tokenizer, out, budget_minutes=30.0)
    assert {"dense", "dense-int8"} <= {p.candidate for p in more.points}


def test_a_candidate_is_stopped_at_a_safe_point_and_goes_on_with_more_time(
    model, sentences, tokenizer, tmp_path, quick
):
    work = load_workload(model, tokenizer, sentences)
    shop = trial.Workshop(work, tmp_path, 1.0, {})
    now = iter(range(10**6))
    candidate = one_shot(TWO[1], table="int4")
    with pytest.raises(OutOfTime):
        shop.try_out(candidate, Deadline(3.5, lambda: float(next(now))))
    stopped = shop.stopped(candidate)
    assert stopped.seconds == 4.0
    assert stopped.allowed == 3.5
    assert not shop.path(candidate.name).exists()
    # Solved layers are not solved again: their journal is there.
    assert list((tmp_path / "oneshot-90.journal").iterdir())
    done = shop.try_out(candidate)
    assert done.seconds > 4.0
    assert shop.stopped(candidate) == NEVER
    whole = trial.Workshop(work, tmp_path / "whole", 1.0, {}).try_out(candidate)
    assert [p.quality for p in done.points] == [p.quality for p in whole.points]


@pytest.mark.parametrize("kind", ["recovered", "tokens", "slim"])
def test_training_and_slimming_stop_at_a_step(model, sentences, tokenizer, tmp_path, quick, kind):
    work = load_workload(model, tokenizer, sentences)
    shop = trial.Workshop(work, tmp_path, 1.0, {})
    seen = []

    def look():
        seen.append(None)
        if len(seen) == 2:
            raise OutOfTime(1.0, 2.0)

    made = {
        "tokens": lambda: fewer_tokens(0.8, 4, work.aim, table="int4"),
        "slim": lambda: slim(0.5, table="int4"),
        "recovered": lambda: recovered("oneshot-90", TWO[1], 4, 1e-3, work.aim, int8=False),
    }
    if kind == "recovered":
        shop.try_out(one_shot(TWO[1], table="int4"))
    with pytest.raises(OutOfTime):
        shop.try_out(made[kind](), Deadline(on_tick=look))
    assert shop.stopped(made[kind]()).needs == 2.0


def test_times_of_a_busy_machine_stay_out_of_the_card(
    model, sentences, tokenizer, tmp_path, quick, monkeypatch
):
    busy = Load(others=4.0, cores=2)
    monkeypatch.setattr(trial, "duel", lambda *calls, **more: Duel(45170.0, 1333.0, 0.4, busy))
    result = search(model, sentences, tokenizer, tmp_path / "out", budget_minutes=1e-9)
    card = (result.path / "card.md").read_text()
    assert "not measured (busy machine: 4.0 other programs on 2 cores)" in card
    assert "45.17" not in card
    assert "1.33" not in card
    assert "busy machine" in rows_of(result.points, result.chosen, result.front)[0][-1]


def test_another_search_in_the_folder_is_refused(model, sentences, tokenizer, tmp_path, quick):
    search(model, sentences, tokenizer, tmp_path / "out", budget_minutes=1e-9)
    other = tmp_path / "other.txt"
    other.write_text(sentences.read_text() + "\nred cat\n")
    with pytest.raises(InputError, match="belongs to another run: the data is another one"):
        search(model, other, tokenizer, tmp_path / "out")


def test_a_folder_that_is_no_artifact_is_left_alone(model, sentences, tokenizer, tmp_path):
    out = tmp_path / "mine"
    out.mkdir()
    (out / "thesis.txt").write_text("years")
    with pytest.raises(ArtifactError, match="not a gossamer artifact"):
        search(model, sentences, tokenizer, out)
    assert (out / "thesis.txt").read_text() == "years"
    assert not (tmp_path / "mine.work").exists()


def test_pruned_models_are_measured_compiled(model, sentences, tokenizer, tmp_path, quick):
    seen = []

    def measure(fast):
        seen.append({type(module).__name__ for module in fast.modules()})
        return 1.0

    work = load_workload(model, tokenizer, sentences)
    work = replace(work, choosing=replace(work.choosing, measure=measure))
    trial.Workshop(work, tmp_path, 1.0, {}).try_out(one_shot(TWO[1], table="int4"))
    assert len(seen) == 1
    assert "MaskedLinear" not in seen[0]


def test_bad_requests(model, sentences, tokenizer, tmp_path):
    with pytest.raises(InputError, match="max_loss must be positive"):
        search(model, sentences, tokenizer, tmp_path / "out", max_loss=0)
    few = tmp_path / "few.txt"
    few.write_text("red cat\n" * 5)
    with pytest.raises(InputError, match="5 samples are too few"):
        search(model, few, tokenizer, tmp_path / "out")


def test_masks_that_others_beat_are_not_tried():
    found = {
        "50": MaskForecast("50", 10.0, 0.1),
        "80": MaskForecast("80", 5.0, 0.2),
        "2of4": MaskForecast("2of4", 12.0, 0.2),
    }
    assert [mask.name for mask in worth_trying(found, MASKS)] == ["50", "80"]


def test_masks_no_faster_than_the_best_are_skipped():
    point = trial.Point("dense-int8", "int8", 1.0, 0.0, 4.0, 2.0, 100)
    found = {"80": MaskForecast("80", 5.0, 0.2), "90": MaskForecast("90", 3.0, 0.4)}
    state = rungs.Search(None, SearchLimits(0.01), lambda: found, MASKS, points=[point])
    assert "no faster than dense int8" in state._reason_against(MASKS[3], found, [])
    assert state._reason_against(MASKS[5], found, []) is None
    lost = trial.Point("oneshot-80", "int8", 0.0, 1.0, 2.0, 2.0, 100)
    state.points.append(lost)
    assert "gentler" in state._reason_against(MASKS[5], found, [MASKS[3]])


@pytest.mark.parametrize("mask", MASKS)
def test_names_of_masks_are_folders_and_recipes_are_legal(mask):
    assert not set(mask.name) & set("/:. ")
    prune = one_shot(mask, table="int8").recipe.stages[1].prune
    assert prune.pattern == mask.pattern
