# SPDX-License-Identifier: Apache-2.0
"""Plans: memory, time and traffic of layouts, the published figures, and what is refused."""

import itertools
from dataclasses import replace

import pytest

import gossamer
from gossamer.errors import InputError
from gossamer.planner import load_cluster
from gossamer.planner.candidates import Evaluator, divisors, layouts
from gossamer.planner.explaining import plan_page, plan_table, reasons
from gossamer.planner.model_shape import NAMED_SHAPES, GPTSizes, gpt_shape
from gossamer.planner.planning import plan_workload
from gossamer.planner.states import STATES, find_state
from gossamer.planner.step_time import exposed, interpolate, reduce_seconds
from gossamer.planner.workload import RankGrid, StepSpec
from gossamer.report.page import render_html

DENSE = "dense, mixed precision"
SMALL = gpt_shape(GPTSizes(4, 64, 2, vocabulary=256, tokens=32), "small")


def published(name, ranks, batch, *, everything=True, cut="even", tied=True):
    """As SAMO's authors ran AxoNN: microbatches of one sample, the fewest stages that fit."""
    shape = gpt_shape(replace(NAMED_SHAPES[name], tied=tied), name)
    return plan_workload(
        shape.all_pruned() if everything else shape,
        load_cluster("summit"),
        StepSpec(batch, 0.9, microbatch=1, recompute="sqrt", cut=cut, buckets=False),
        ranks=ranks,
        schedules=("message-driven",),
        max_shard=1,
        choice="smallest-pipeline",
    )


def cut_of(plan, state="samo"):
    times = [plan.state(name).best.time.total for name in (DENSE, state)]
    return 1 - times[1] / times[0]


def test_samo_saves_66_and_78_percent_of_the_state():
    dense = STATES[DENSE].pruned.bytes_per_parameter(1.0)
    for sparsity, saved in ((0.8, 0.66), (0.9, 0.78)):
        samo = STATES["samo"].pruned.bytes_per_parameter(1 - sparsity)
        assert 1 - samo / dense == pytest.approx(saved, abs=1e-12)


def test_gpt3_2_7b_on_512_ranks_is_within_3_points_of_the_published_speed_up():
    assert cut_of(published("gpt3-2.7b", 512, 512)) == pytest.approx(0.34, abs=0.03)


def test_it_holds_with_unpruned_embeddings():
    plan = published("gpt3-2.7b", 512, 512, everything=False)
    assert cut_of(plan) == pytest.approx(0.34, abs=0.03)


def test_it_holds_with_real_stages_and_a_tied_head_between_nodes_adds_to_it():
    plans = [
        published("gpt3-2.7b", 512, 512, everything=False, cut="cost", tied=tied)
        for tied in (False, True)
    ]
    assert cut_of(plans[0]) == pytest.approx(0.34, abs=0.03)
    # Dense has its ends in two nodes, SAMO in one: what that costs, and nothing else, is new.
    dense = [plan.state(DENSE).best.time for plan in plans]
    assert dense[1].total - dense[0].total == pytest.approx(50257 * 2560 * 2 / 12.5e9, rel=0.01)
    assert cut_of(plans[1]) > cut_of(plans[0])


@pytest.mark.parametrize(
    ("name", "ranks", "batch", "stages", "seconds"),
    [
        ("gpt3-xl", 512, 512, (4, 1, 1), (0.94, 0.43)),
        ("gpt3-2.7b", 64, 512, (8, 2, 1), (7.40, 6.73)),
        ("gpt3-2.7b", 512, 512, (8, 2, 1), (1.84, 1.23)),
        ("gpt3-6.7b", 1024, 1024, (16, 4, 2), (4.17, 3.46)),
        ("gpt3-13b", 2048, 2048, (32, 8, 4), (9.09, 6.98)),
    ],
)
def test_the_model_of_axonn_and_samo_is_reproduced(name, ranks, batch, stages, seconds):
    plan = published(name, ranks, batch)
    bests = [plan.state(state).best for state in (DENSE, "samo", "exact")]
    assert tuple(best.layout.grid.pipeline for best in bests) == stages
    assert [best.time.total for best in bests[:2]] == pytest.approx(seconds, rel=0.025)


def test_parameters_and_operations_follow_the_formulas():
    shape = gpt_shape(NAMED_SHAPES["gpt3-13b"])
    h, n = 5120, 40
    assert shape.parameters == 12 * n * h * h + 13 * n * h + (50257 + 2048) * h
    assert shape.flops_per_token == 24 * n * h * h + 4 * 2048 * h * n + 2 * h * 50257
    assert shape.all_pruned().prunable == shape.parameters


def test_layouts_are_all_grids_that_divide_ranks_and_batch():
    work = StepSpec(12, microbatch=1)
    grids = {(one.grid.data, one.grid.pipeline, one.grid.shard) for one in layouts(4, work)}
    assert grids == {(4, 1, 1), (2, 1, 2), (1, 1, 4), (2, 2, 1), (1, 2, 2), (1, 4, 1)}
    for one in layouts(8, StepSpec(24)):
        assert one.grid.ranks == 8
        assert one.microbatch * one.microbatches * one.grid.batch_ways == 24
    assert divisors(1) == [1]
    assert divisors(12) == [1, 2, 3, 4, 6, 12]


def test_traffic_of_replicas_is_two_ring_passes_over_the_kept_gradients():
    cluster, work = load_cluster("workstations"), StepSpec(16, 0.9, microbatch=1)
    plan = plan_workload(SMALL, cluster, work, max_shard=1)
    for name, per_kept in (("dense fp32", 4), ("fp32", 4), ("exact", 2)):
        found = plan.state(name).candidates
        ring = next(one for one in found if one.layout.grid == RankGrid(4, 1))
        density = 1 if name == "dense fp32" else work.density
        payload = SMALL.prunable * density * per_kept
        payload += (SMALL.parameters - SMALL.prunable) * 4
        assert ring.traffic.all_reduce == pytest.approx(2 * payload * 3 / 4)
        assert ring.traffic.p2p == 0


def test_the_busiest_rank_of_a_pipeline_has_two_neighbours_or_a_tied_head():
    cluster, work = load_cluster("workstations"), StepSpec(16, 0.9, microbatch=1)
    for tied, stages in itertools.product((True, False), (2, 4)):
        # Of 1.5 neighbours' worth: more than one message a microbatch, less than two.
        messages = 16 * 32 * 64 * 4
        sizes = GPTSizes(4, 64, 2, vocabulary=messages * 3 // 2 // 4 // 64, tokens=32, tied=tied)
        plan = plan_workload(gpt_shape(sizes), cluster, work, max_shard=1, ranks=stages)
        found = plan.state("dense fp32").candidates
        one = next(one for one in found if one.layout.grid == RankGrid(1, stages))
        if tied:
            assert one.traffic.p2p == messages
            assert one.traffic.all_reduce == sizes.vocabulary * 64 * 4
        else:
            assert one.traffic.p2p == messages * (1 if stages == 2 else 2)
            assert one.traffic.all_reduce == 0
        assert (one.time.all_reduce > 0) == tied


def test_gradients_of_stages_hide_behind_nothing():
    """They travel after the last microbatch; replicas without stages send while they compute."""
    cluster, work = load_cluster("workstations"), StepSpec(16, 0.9, microbatch=1)
    large = gpt_shape(replace(NAMED_SHAPES["gpt3-xl"], tied=False), "gpt3-xl")
    found = plan_workload(large, cluster, work, max_shard=1).state("dense fp32").candidates
    for grid, hides in ((RankGrid(4, 1), True), (RankGrid(2, 2), False)):
        one = next(one for one in found if one.layout.grid == grid)
        # Both ways of a ring carry this much of the payload.
        payload = one.traffic.all_reduce / 2 / (1 - 1 / grid.data)
        whole = reduce_seconds(cluster, grid, payload)
        assert (one.time.all_reduce < 0.9 * whole) == hides


def test_shards_divide_the_state():
    evaluator = Evaluator(SMALL, load_cluster("workstations"), find_state("fp32"), StepSpec(16))
    whole, half = (
        next(evaluator.evaluate(one) for one in layouts(4, StepSpec(16)) if one.grid == grid)
        for grid in (RankGrid(4, 1, 1), RankGrid(2, 1, 2))
    )
    assert half.memory.state == pytest.approx(whole.memory.state / 2)
    assert half.memory.weights == pytest.approx(whole.memory.weights / 2)


def test_a_memory_limit_makes_dense_pipeline_and_compact_not():
    shape = gpt_shape(GPTSizes(16, 512, 8, vocabulary=256, tokens=128), "gpt")
    cluster = load_cluster("workstations")
    needs = plan_workload(shape, cluster, StepSpec(16, recompute=1), max_shard=1)
    dense = needs.state("dense fp32").candidates
    by_stages = {
        p: min(c.memory.total for c in dense if c.layout.grid.pipeline == p) for p in (1, 2, 4)
    }
    assert by_stages[4] < by_stages[2] < by_stages[1]
    memory = cluster.memory.model_copy(
        update={"gb": (by_stages[2] + by_stages[4]) / 2 / 0.94e9, "overhead_gb": 0.0}
    )
    small = cluster.model_copy(update={"memory": memory})
    plan = plan_workload(shape, small, StepSpec(16, recompute=1), max_shard=1)
    assert plan.state("dense fp32").best.layout.grid.pipeline == 4
    fitting = [one.layout.grid.pipeline for one in plan.state("fp32").candidates if one.fits]
    assert min(fitting) == 1
    assert any("4 stages are the fewest that fit" in text for text in reasons(plan))


def test_what_does_not_fit_is_said():
    shape = gpt_shape(NAMED_SHAPES["gpt3-13b"])
    plan = plan_workload(shape, load_cluster("workstations"), StepSpec(4, recompute="sqrt"))
    assert plan.state("dense fp32").best is None
    assert "does not fit" in plan_table(plan)[1][0]
    assert "no layout of 4 ranks fits" in reasons(plan)[0]
    render_html(plan_page(plan, "workstations"))


def test_the_page_of_a_plan_has_pictures_and_is_marked_as_a_forecast():
    plan = published("gpt3-2.7b", 64, 512)
    page = render_html(plan_page(plan, "summit"))
    assert page.count("<svg") == 4  # time, memory, and the pipelines of dense and SAMO
    assert "A forecast: nothing was run" in page
    assert plan.to_dict()["forecast"] is True


def test_sharing_cores_slows_ranks_down():
    cluster = load_cluster("workstations")
    shared = cluster.model_copy(update={"shared_cores": 2})
    work = StepSpec(16, microbatch=4)
    alone, crowded = (
        plan_workload(SMALL, one, work, states=[find_state("dense fp32")])
        for one in (cluster, shared)
    )
    assert crowded.states[0].best.seconds > alone.states[0].best.seconds


def test_gradients_hide_behind_the_backward_pass_except_for_the_last_bucket():
    assert exposed(0.0, 0.0, 1.0) == 0
    assert exposed(8.0, 1e9, 0.0) == 8
    assert exposed(8.0, 1e9, 3.0) == 5
    assert exposed(8.0, 1e9, 100.0) == pytest.approx(8 * 25 * 2**20 / 1e9)
    assert exposed(8.0, 1e6, 100.0) == 8


def test_rings_share_the_links_of_their_node():
    summit = load_cluster("summit")
    one = reduce_seconds(summit, RankGrid(64, 1), 1e9)
    six = reduce_seconds(summit, RankGrid(64, 6), 1e9)
    assert six == pytest.approx(6 * one, rel=1e-2)
    assert reduce_seconds(summit, RankGrid(1, 8), 1e9) == 0
    assert reduce_seconds(summit, RankGrid(2, 3), 1e9) == pytest.approx(1e9 / 45e9, rel=1e-3)


def test_speed_ups_are_interpolated_between_measured_densities():
    table = load_cluster("workstations").compute.compact
    assert interpolate(table, 0.01) == 4.0
    assert interpolate(table, 0.15) == pytest.approx(2.5)
    assert interpolate(table, 1.0) == 1.0


@pytest.mark.parametrize(
    ("options", "words"),
    [
        ({"batch": 0}, "batch: must be at least 1"),
        ({"batch": 4, "sparsity": 90}, "sparsity: must be in"),
        ({"batch": 4, "microbatch": 0}, "microbatch: must be at least 1"),
        ({"batch": 4, "recompute": -1}, "recompute: must be at least 0"),
        ({"batch": 3, "microbatch": 2}, "cannot be shared by 4 ranks"),
    ],
)
def test_bad_workloads_are_refused(options, words):
    with pytest.raises(InputError, match=words):
        plan_workload(SMALL, load_cluster("workstations"), StepSpec(**options))


def test_too_many_ranks_and_unknown_states_are_refused():
    with pytest.raises(InputError, match="the cluster has 4, got 5"):
        plan_workload(SMALL, load_cluster("workstations"), StepSpec(4), ranks=5)
    with pytest.raises(InputError, match="state: must be one of"):
        gossamer.plan(SMALL, "workstations", states=["sparse"])
    with pytest.raises(InputError, match="layers: must be at least 1"):
        GPTSizes(0, 64, 2)
