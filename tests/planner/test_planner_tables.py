# SPDX-License-Identifier: Apache-2.0
"""Plans of models with tables: rows that are touched, and what they add to a step."""

from dataclasses import replace

import numpy as np
import pytest
import torch
from torch import nn

from gossamer.planner import load_cluster
from gossamer.planner.candidates import Evaluator
from gossamer.planner.model_shape import GPTSizes, gpt_shape
from gossamer.planner.model_tracing import trace_shape
from gossamer.planner.planning import plan_workload
from gossamer.planner.states import find_state
from gossamer.planner.table_step import TableShape, table_step, touched_rows
from gossamer.planner.workload import RankGrid, RankLayout, StepSpec

TABLES = (TableShape(100_000, 16), TableShape(50, 16), TableShape(10_000, 64, ids=3))


@pytest.mark.parametrize("rows", [1, 2, 50, 20_000])
@pytest.mark.parametrize("skew", [0.0, 1.0, 1.2])
def test_touched_rows_are_those_of_draws(rows, skew):
    chances = np.arange(1, rows + 1.0) ** -skew
    draws = np.random.default_rng(0).choice(rows, 4000, p=chances / chances.sum())
    assert touched_rows(rows, 4000, skew) == pytest.approx(len(np.unique(draws)), rel=0.04)
    assert touched_rows(rows, 0, skew) == 0


def test_bytes_are_those_of_rows():
    mine = [touched_rows(t.rows, 100 * t.ids, 1.0) for t in TABLES]
    sizes = {"full": (68, 68, 260), "int8": (20, 20, 68), "int4": (12, 12, 36)}
    for wire, of_row in sizes.items():
        packet = sum(n * size for n, size in zip(mine, of_row, strict=True))
        found = table_step(TABLES, 100, 2, wire, 1.0)
        assert found.bytes == pytest.approx(packet + 3 * 8)
        assert found.messages == 2
    # Many ranks touch the same rows: owners add them up.
    assert table_step(TABLES, 1000, 64, "int8", 1.0).messages == 4


def test_tables_travel_by_rows_and_not_with_the_others():
    cluster = load_cluster("workstations")
    dense = gpt_shape(GPTSizes(2, 64, 2, vocabulary=256, tokens=32), "small")
    entries = sum(table.rows * table.width for table in TABLES)
    first = replace(dense.units[0], rest=dense.units[0].rest + entries)
    shape = replace(dense, units=(first, *dense.units[1:]), tables=TABLES)
    layout = RankLayout(RankGrid(4, 1), "1f1b", 1, 2, 1)
    found = {}
    for wire in ("full", "int8"):
        work = StepSpec(8, 0.9, table_wire=wire)
        found[wire] = Evaluator(shape, cluster, find_state("fp32"), work).evaluate(layout)
    plain = Evaluator(dense, cluster, find_state("fp32"), StepSpec(8, 0.9)).evaluate(layout)
    for one in found.values():
        assert one.traffic.all_reduce == pytest.approx(plain.traffic.all_reduce)
        assert one.time.total > plain.time.total
    assert plain.traffic.tables == plain.time.tables == 0
    assert found["full"].traffic.tables > 3 * found["int8"].traffic.tables
    # Neither stages nor shards: the mesh refuses them with touched rows.
    plan = plan_workload(shape, cluster, StepSpec(8, 0.9), ranks=4)
    grids = {(one.layout.grid.pipeline, one.layout.grid.shard) for one in plan.states[0].candidates}
    assert grids == {(1, 1)}


def test_a_traced_model_names_its_tables():
    class Bags(nn.Module):
        def __init__(self):
            super().__init__()
            self.bag = nn.EmbeddingBag(30, 4, mode="sum", sparse=True)
            self.top = nn.Linear(4, 2)

        def forward(self, ids):
            return self.top(self.bag(ids))

    with torch.device("meta"):
        model = Bags()
    shape = trace_shape(model, [3], name="bags", tokens=1, ids=True)
    assert shape.tables == (TableShape(30, 4),)
