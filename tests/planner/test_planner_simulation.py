# SPDX-License-Identifier: Apache-2.0
"""Schedules are torch's, and simulation agrees with closed forms where there are some."""

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from torch.distributed.pipelining import schedules as torch_schedules

from gossamer.errors import InputError
from gossamer.planner import Costs, PipelineSpec, simulate
from gossamer.planner.candidates import held
from gossamer.planner.pipeline_orders import rank_order, schedule_fault
from gossamer.planner.workload import RankGrid, RankLayout

ORDERED = [("gpipe", 1), ("1f1b", 1), ("interleaved", 2), ("zero-bubble", 1), ("zero-bubble", 2)]
SIZES = [(1, 1), (1, 3), (2, 1), (2, 2), (3, 7), (4, 8), (8, 16)]


def legal(schedule, ranks, microbatches, chunks):
    return schedule_fault(schedule, ranks, microbatches, chunks) is None


def even(pipeline, **more):
    """One second each for forward, gradient of the input and of the weights, of a whole rank."""
    part = [1 / pipeline.chunks] * pipeline.stages
    return Costs(part, part, part, **more)


@pytest.mark.parametrize(("ranks", "microbatches"), SIZES)
@pytest.mark.parametrize(
    ("name", "kind", "chunks"),
    [
        ("interleaved", "ScheduleInterleaved1F1B", 2),
        ("interleaved", "ScheduleInterleaved1F1B", 3),
        ("zero-bubble", "ScheduleInterleavedZeroBubble", 1),
        ("zero-bubble", "ScheduleInterleavedZeroBubble", 2),
    ],
)
def test_orders_are_those_of_torch(name, kind, chunks, ranks, microbatches):
    if not legal(name, ranks, microbatches, chunks):
        pytest.skip("no whole rounds")
    theirs = object.__new__(getattr(torch_schedules, kind))
    theirs.pp_group_size, theirs.n_local_stages = ranks, chunks
    theirs._n_microbatches = microbatches
    theirs.number_of_rounds = max(1, microbatches // ranks)
    theirs.microbatches_per_round = microbatches // theirs.number_of_rounds
    words = {
        "FORWARD": "forward",
        "FULL_BACKWARD": "backward",
        "BACKWARD_INPUT": "input",
        "BACKWARD_WEIGHT": "weight",
    }
    for rank in range(ranks):
        wanted = [
            (words[action.computation_type.name], action.stage_index, action.microbatch_index)
            for action in theirs._calculate_single_rank_operations(rank)
            if action is not None
        ]
        ours = rank_order(PipelineSpec(name, ranks, microbatches, chunks), rank)
        assert [(a.kind, a.stage, a.microbatch) for a in ours] == wanted


@pytest.mark.parametrize(("name", "chunks"), ORDERED)
@pytest.mark.parametrize(("ranks", "microbatches"), SIZES)
def test_every_microbatch_passes_every_stage_once(name, chunks, ranks, microbatches):
    if not legal(name, ranks, microbatches, chunks):
        pytest.skip("no whole rounds")
    pipeline = PipelineSpec(name, ranks, microbatches, chunks)
    done = [action for rank in range(ranks) for action in rank_order(pipeline, rank)]
    kinds = ("forward", "input", "weight") if pipeline.splits_backward else ("forward", "backward")
    wanted = {(k, s, m) for k in kinds for s in range(ranks * chunks) for m in range(microbatches)}
    assert len(done) == len(wanted)
    assert {tuple(action) for action in done} == wanted


@pytest.mark.parametrize(("name", "chunks"), ORDERED)
@pytest.mark.parametrize(("ranks", "microbatches"), [(1, 3), (2, 2), (4, 4), (4, 8), (8, 32)])
def test_simulation_equals_the_closed_form_of_equal_stages(name, chunks, ranks, microbatches):
    played = simulate(pipeline := PipelineSpec(name, ranks, microbatches, chunks), even(pipeline))
    bubble = (ranks - 1) * (1 if name == "zero-bubble" else 3) / chunks
    assert played.seconds == pytest.approx(3 * microbatches + bubble, rel=1e-12)
    assert played.busy == pytest.approx([3 * microbatches] * ranks)


@pytest.mark.parametrize(("name", "chunks"), ORDERED)
@pytest.mark.parametrize(("ranks", "microbatches"), [(1, 3), (2, 2), (4, 4), (4, 8), (8, 16)])
def test_activations_in_flight_are_those_of_the_formula(name, chunks, ranks, microbatches):
    pipeline = PipelineSpec(name, ranks, microbatches, chunks)
    played = simulate(pipeline, even(pipeline))
    layout = RankLayout(RankGrid(1, ranks), name, chunks, 1, microbatches)
    for rank, most in enumerate(played.most_held):
        formula = held(layout, rank) * chunks
        # Zero-bubble's late ranks may hold less than the bound that all of them share.
        assert most <= formula if name == "zero-bubble" else most == formula


def test_messages_between_stages_are_latency_and_bandwidth():
    pipeline = PipelineSpec("1f1b", 2, 1)
    played = simulate(pipeline, even(pipeline, message=0.5, latency=0.25))
    assert played.seconds == pytest.approx(6 + 2 * 0.75)


stage_times = st.lists(st.floats(0.1, 3.0), min_size=1, max_size=5)


@settings(max_examples=60, deadline=None)
@given(
    stage_times,
    st.integers(1, 9),
    st.sampled_from(["gpipe", "1f1b", "zero-bubble"]),
    st.floats(0, 1),
)
def test_events_agree_with_propagation_on_uneven_stages(times, microbatches, name, message):
    if not legal(name, len(times), microbatches, 1):
        return
    pipeline = PipelineSpec(name, len(times), microbatches)
    costs = Costs(times, times, times, message=message, latency=message / 3)
    ordered = simulate(pipeline, costs)
    by_events = simulate(pipeline, costs, cores=len(times))
    assert by_events.seconds == pytest.approx(ordered.seconds, rel=1e-9)
    assert by_events.finished == pytest.approx(ordered.finished, rel=1e-9)


@settings(max_examples=60, deadline=None)
@given(stage_times, st.integers(1, 9), st.floats(0, 0.5), st.integers(0, 1000))
def test_message_driven_ends_for_any_delays_and_holds_at_most_p(times, microbatches, jitter, seed):
    pipeline = PipelineSpec("message-driven", len(times), microbatches)
    costs = Costs(times, times, times, message=0.3, jitter=jitter)
    played = simulate(pipeline, costs, seed=seed)
    most_work = max(times) * 3 * microbatches
    if not jitter:
        assert played.seconds >= most_work * (1 - 1e-9)
    assert max(played.most_held) <= min(len(times), microbatches)
    forwards = sum(span.kind == "forward" for span in played.spans)
    assert forwards == len(times) * microbatches


def test_message_driven_is_within_five_percent_of_1f1b_on_even_stages():
    for ranks, microbatches in ((2, 8), (4, 16), (8, 64)):
        both = [
            simulate(p := PipelineSpec(name, ranks, microbatches), even(p)).seconds
            for name in ("message-driven", "1f1b")
        ]
        assert both[0] <= 1.05 * both[1]


def test_ranks_that_share_cores_take_all_the_work_through_them():
    pipeline = PipelineSpec("1f1b", 4, 8)
    shared = simulate(pipeline, even(pipeline), cores=2)
    assert shared.seconds >= 4 * 8 * 3 / 2
    assert simulate(pipeline, even(pipeline), cores=1).seconds == pytest.approx(4 * 8 * 3)
    four = simulate(
        PipelineSpec("1f1b", 1, 8), even(PipelineSpec("1f1b", 1, 8)), replicas=4, cores=2
    )
    assert four.seconds == pytest.approx(4 * 8 * 3 / 2)


def test_slow_parts_and_jitter_cost_time():
    pipeline = PipelineSpec("1f1b", 4, 8)
    quick = simulate(pipeline, even(pipeline, message=0.1)).seconds
    assert (
        simulate(pipeline, even(pipeline, message=0.1, slow_ranks={2: 2.0})).seconds > quick * 1.5
    )
    assert simulate(pipeline, even(pipeline, message=0.1, slow_links={(0, 1): 20})).seconds > quick
    noisy = simulate(pipeline, even(pipeline, jitter=0.2), replicas=16, seed=1)
    assert noisy.seconds > 33
    assert (
        noisy.seconds == simulate(pipeline, even(pipeline, jitter=0.2), replicas=16, seed=1).seconds
    )


def test_thousands_of_ranks_cost_one_pipeline():
    pipeline = PipelineSpec("1f1b", 32, 64)
    played = simulate(pipeline, even(pipeline, jitter=0.1), replicas=128)
    assert len(played.finished) == 32
    assert played.seconds > 95 * 3


@pytest.mark.parametrize(
    ("build", "words"),
    [
        (lambda: PipelineSpec("1f1b", 0, 1), "needs a rank"),
        (lambda: PipelineSpec("1f1b", 2, 4, 2), "one chunk per rank"),
        (lambda: PipelineSpec("interleaved", 3, 7, 2), "whole rounds"),
        (lambda: PipelineSpec("fastest", 3, 7), "unknown schedule"),
        (lambda: simulate(PipelineSpec("1f1b", 2, 1), Costs([1], [1], [1])), "needs 2 values"),
        (lambda: simulate(PipelineSpec("1f1b", 1, 1), Costs([-1], [1], [1])), "cannot be negative"),
        (lambda: rank_order(PipelineSpec("message-driven", 2, 1), 0), "has no order"),
    ],
)
def test_bad_pipelines_are_refused(build, words):
    with pytest.raises(InputError, match=words):
        build()
