# SPDX-License-Identifier: Apache-2.0
"""bench_linear: figures that follow from the measured times, on edge sizes and patterns."""

import math

import pytest
import torch

from gossamer.errors import InputError, PatternError
from gossamer.ops import _native
from gossamer.ops.kernels import active_kernels
from gossamer.running.bench import BenchRow, bench_linear, ceilings
from gossamer.running.bench.linear import mix_of, sample_weight


def test_derived_figures():
    row = BenchRow(
        rows=100,
        columns=200,
        tokens=10,
        sparsity=0.75,
        pattern="unstructured",
        format="bitmask",
        kernel="panel",
        kernels="avx2",
        threads=2,
        dense_us=40.0,
        sparse_us=20.0,
        ceiling_gflops=5.0,
    )
    assert row.ratio == 2.0
    assert row.dense_gflops == pytest.approx(10.0)  # 2 * 10 * 100 * 200 flops in 40 us
    assert row.kept_gflops == pytest.approx(5.0)
    assert row.ceiling_fraction == pytest.approx(0.5)
    assert row.to_dict()["ratio"] == 2.0
    assert row.to_dict()["rows"] == 100


@pytest.mark.parametrize(
    ("shape", "tokens", "sparsity", "pattern"),
    [
        ((1, 1), 1, 0.0, "unstructured"),
        ((17, 33), 3, 0.9, "unstructured"),
        ((16, 32), 65, 0.5, "2:4"),
        ((16, 32), 8, 0.1, "1:4"),
        ((16, 32), 8, 0.75, "block:4x4"),
    ],
)
def test_rows_say_what_was_measured(shape, tokens, sparsity, pattern):
    row = bench_linear(shape, tokens, sparsity, pattern, budget_seconds=0.01)
    assert (row.rows, row.columns) == shape
    assert row.tokens == tokens
    assert row.pattern == pattern
    assert row.kernels == active_kernels()
    expected = {"2:4": 0.5, "1:4": 0.75}.get(pattern, sparsity)
    assert row.sparsity == pytest.approx(expected, abs=1 / math.prod(shape))
    assert row.dense_us > 0
    assert row.sparse_us > 0
    assert row.ceiling_gflops > 0


@pytest.mark.parametrize(
    "arguments",
    [((0, 4), 1, 0.5), ((4, 0), 1, 0.5), ((4, 4), 0, 0.5), ((4, 4), 1, 1.0), ((4, 4), 1, -0.1)],
)
def test_bad_sizes_are_refused(arguments):
    with pytest.raises(InputError, match="bench"):
        bench_linear(*arguments)


def test_a_pattern_that_does_not_fit_is_refused():
    with pytest.raises(PatternError):
        bench_linear((4, 6), 1, 0.5, "2:4")


def test_ceilings_are_rates():
    found = ceilings(0.01)
    assert set(found) == set(_native.ceiling_mixes()) >= {"fma", "panel"}
    assert all(rate > 0.1 for rate in found.values())
    assert set(ceilings(0.01, ("panel",))) == {"panel"}


def test_a_kernel_is_judged_by_the_mix_of_its_name(monkeypatch):
    monkeypatch.setattr(_native, "ceiling_mixes", lambda: ["fma", "panel", "int8", "int8-quads"])
    names = ("panel", "int8", "int8-quads", "int8-pairs", "strip")
    assert [mix_of(name) for name in names] == ["panel", "int8", "int8-quads", "int8", "panel"]


@pytest.mark.parametrize("pattern", ["unstructured", "2:4", "block:4x4"])
def test_sample_weights_obey_their_pattern(pattern):
    weight, sparse = sample_weight((16, 32), 0.75, pattern)
    assert torch.equal(sparse.dense(), weight)
    sparse.pattern.validate(sparse.mask())
    assert str(sparse.pattern) == pattern
    assert sparse.nnz == (256 if pattern == "2:4" else 128)
    again, _ = sample_weight((16, 32), 0.75, pattern)
    assert torch.equal(again, weight)
