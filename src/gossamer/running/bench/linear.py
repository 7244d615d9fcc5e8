# SPDX-License-Identifier: Apache-2.0
"""Sparse against dense for one linear layer, and what the instruction mix could reach at best.

The rate of a shared machine moves by 30 % within minutes. So dense, sparse and the ceilings are
timed in short turns, many times over, and the best time of each is kept: a slow moment hits all.

Legend: T tokens, R rows (outputs), K columns (inputs).
"""

import functools
from collections.abc import Callable, Sequence
from dataclasses import asdict, dataclass
from typing import Any

import torch
import torch.nn.functional as F

from gossamer.errors import InputError
from gossamer.formats import SparseMatrix, choose_format
from gossamer.ops import Problem, _native, kernels_for
from gossamer.ops.kernels import active_kernels
from gossamer.ops.timing import duel, fair_clock, race, spread_of, stopwatch
from gossamer.ops.timing.load import LoadWatch
from gossamer.patterns import Pattern, parse_pattern

_TURNS = 6
_CEILING_SECONDS = 0.02
# About a millisecond per call: long against the call, short against a slow moment.
_CEILING_FLOPS = 2e7


@dataclass(frozen=True)
class BenchRow:
    """One layer at one token count; times in microseconds, rates in GFLOP/s.

    `spread` is how far best times of its turns lie apart, `doubt` what else a busy machine did.
    """

    rows: int
    columns: int
    tokens: int
    sparsity: float
    pattern: str
    format: str
    kernel: str
    kernels: str
    threads: int
    dense_us: float
    sparse_us: float
    ceiling_gflops: float
    spread: float = 0.0
    doubt: str = ""

    @property
    def ratio(self) -> float:
        """How many times faster sparse is."""
        return self.dense_us / self.sparse_us

    @property
    def dense_gflops(self) -> float:
        """Rate of the dense product."""
        return 2e-3 * self.tokens * self.rows * self.columns / self.dense_us

    @property
    def kept_gflops(self) -> float:
        """Rate of the sparse product, counting kept weights only."""
        kept = round((1 - self.sparsity) * self.rows * self.columns)
        return 2e-3 * self.tokens * kept / self.sparse_us

    @property
    def ceiling_fraction(self) -> float:
        """Part of the rate that the kernel's instruction mix reaches on rows that never end."""
        return self.kept_gflops / (self.ceiling_gflops * self.threads)

    def to_dict(self) -> dict[str, Any]:
        """Plain data with the derived figures, for --json."""
        derived = ("ratio", "dense_gflops", "kept_gflops", "ceiling_fraction")
        return {**asdict(self), **{name: getattr(self, name) for name in derived}}


def bench_linear(
    shape: tuple[int, int],
    tokens: int,
    sparsity: float,
    pattern: str | Pattern = "unstructured",
    *,
    budget_seconds: float = 0.6,
    seed: int = 0,
) -> BenchRow:
    """Dense `F.linear` against the sparse kernel, fp32, with torch's current number of threads.

    Args:
        shape: (outputs R, inputs K) of the weight.
        tokens: rows of the activation.
        sparsity: fraction of zeros in [0, 1); patterns with a density of their own ignore it.
        pattern: which zeros are legal.
        budget_seconds: time to spend measuring.
        seed: of the weights and activations.
    """
    if tokens < 1 or min(shape) < 1 or not 0 <= sparsity < 1:
        raise InputError(
            f"bench: expected positive sizes and a sparsity in [0, 1), got shape {list(shape)},"
            f" tokens {tokens}, sparsity {sparsity}."
        )
    w_RK, sparse = sample_weight(shape, sparsity, pattern, seed=seed)
    generator = torch.Generator().manual_seed(seed + 1)
    x_TK = torch.randn(tokens, shape[1], generator=generator)
    bias_R = torch.randn(shape[0], generator=generator)
    kernel = kernels_for("linear", Problem(sparse))[0]
    run = kernel.pack(Problem(sparse))
    turns = []
    ceiling, watch = 0.0, LoadWatch()
    mix = mix_of(kernel.name)
    with torch.inference_mode():
        for _ in range(_TURNS):
            turns.append(
                duel(
                    functools.partial(F.linear, x_TK, w_RK, bias_R),
                    functools.partial(run, x_TK, bias_R, "none"),
                    budget_seconds=budget_seconds / _TURNS,
                    max_rounds=1000,
                    watch=watch,
                )
            )
            ceiling = max(ceiling, *ceilings(_CEILING_SECONDS, (mix,)).values())
    return BenchRow(
        rows=shape[0],
        columns=shape[1],
        tokens=tokens,
        sparsity=1 - sparse.nnz / w_RK.numel(),
        pattern=str(sparse.pattern),
        format=choose_format(sparse.shape, sparse.nnz, w_RK.element_size(), sparse.pattern),
        kernel=kernel.name,
        kernels=active_kernels(),
        threads=torch.get_num_threads(),
        dense_us=min(turn.first_us for turn in turns),
        sparse_us=min(turn.second_us for turn in turns),
        ceiling_gflops=ceiling,
        spread=max(spread_of(times) for times in zip(*(turn.us for turn in turns), strict=True)),
        doubt=turns[-1].doubt,
    )


def sample_weight(
    shape: tuple[int, int],
    sparsity: float,
    pattern: str | Pattern = "unstructured",
    *,
    seed: int = 0,
) -> tuple[torch.Tensor, SparseMatrix]:
    """A random weight [R, K] pruned by magnitude to a pattern: dense with its zeros, and sparse.

    Patterns with a density of their own ignore `sparsity`.
    """
    chosen = parse_pattern(pattern) if isinstance(pattern, str) else pattern
    w_RK = torch.randn(shape, generator=torch.Generator().manual_seed(seed))
    fixed = chosen.fixed_density
    mask_RK = chosen.project(w_RK.abs(), 1 - sparsity if fixed is None else fixed)
    w_RK = w_RK * mask_RK
    return w_RK, SparseMatrix.from_dense(w_RK, mask_RK, chosen)


def mix_of(kernel: str) -> str:
    """The instruction mix that bounds a kernel: its own, else its family's, else the panel's."""
    known = [mix for mix in _native.ceiling_mixes() if kernel.startswith(mix)]
    return max(known, key=len, default="panel")


def ceiling_run(mix: str) -> tuple[Callable[[], object], float]:
    """About a millisecond of one instruction mix on one thread, and the flops of it."""
    kernels = active_kernels()
    repeats = max(1, round(_CEILING_FLOPS / _native.run_ceiling(kernels, mix, 1)))
    run = functools.partial(_native.run_ceiling, kernels, mix, repeats)
    return run, run()


def ceilings(budget_seconds: float = 0.3, mixes: Sequence[str] | None = None) -> dict[str, float]:
    """GFLOP/s of one thread: pure FMAs ("fma"), and the kernels' own mixes without row ends."""
    names = _native.ceiling_mixes() if mixes is None else list(mixes)
    runs = [ceiling_run(mix) for mix in names]
    times = race(
        [stopwatch(run, fair_clock()) for run, _ in runs],
        budget_seconds=budget_seconds,
        max_rounds=1000,
    )
    return {mix: flops / us * 1e-3 for mix, (_, flops), us in zip(names, runs, times, strict=True)}
