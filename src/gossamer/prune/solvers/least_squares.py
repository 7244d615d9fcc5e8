# SPDX-License-Identifier: Apache-2.0
"""The best kept weights for a given mask: exact least squares, row by row.

Legend: R rows, K columns, N kept weights of the fullest row of a slice.
"""

import torch

from gossamer.prune.solvers.gram import damped, damping_note
from gossamer.prune.solvers.problem import LayerProblem, LayerSolution

# Rows are solved in slices whose [N, N] systems hold about this many numbers together.
SLICE_NUMBERS = 1 << 24


def refit(problem: LayerProblem, mask_RK: torch.Tensor, damping: float = 0.01) -> LayerSolution:
    """W' = argmin ||(W - W') X||^2 over weights that `mask_RK` keeps, all others zero.

    For row r with kept columns k: G_kk w' = (G w)_k. `damping` is added to the diagonal of both
    sides, so that it pulls towards the given weights and not towards zero.
    """
    if problem.gram_KK is None:
        raise ValueError(f"{problem.name}: the re-fit needs the Gram matrix of the inputs")
    gram = damped(problem.gram_KK, damping)
    wanted_RK = problem.weight_RK @ gram.matrix_KK
    counts_R = mask_RK.sum(dim=1)
    result_RK = torch.zeros_like(problem.weight_RK)
    # Rows of like counts together: the padding of a slice is its difference in counts.
    order = counts_R.argsort(stable=True)
    start = 0
    while start < len(order):
        stop = _slice_end(counts_R[order], start)
        rows = order[start:stop]
        start = stop
        width = int(counts_R[rows].max())
        if width == 0:
            continue
        result_RK[rows] = _solve_rows(gram.matrix_KK, wanted_RK[rows], mask_RK[rows], width)
    return LayerSolution(result_RK, mask_RK, damping_note(damping, gram))


def _slice_end(counts: torch.Tensor, start: int) -> int:
    """As many rows from `start` on as fit SLICE_NUMBERS; counts ascend."""
    stop = start + 1
    while stop < len(counts) and int(counts[stop]) ** 2 * (stop + 1 - start) <= SLICE_NUMBERS:
        stop += 1
    return stop


def _solve_rows(
    gram_KK: torch.Tensor, wanted_RK: torch.Tensor, mask_RK: torch.Tensor, width: int
) -> torch.Tensor:
    # Kept columns first, in order; rows with fewer are filled up with dropped ones.
    columns_RN = (~mask_RK).byte().argsort(dim=1, stable=True)[:, :width]
    kept_RN = mask_RK.gather(1, columns_RN)
    systems_RNN = gram_KK[columns_RN[:, :, None], columns_RN[:, None, :]]
    both = kept_RN[:, :, None] & kept_RN[:, None, :]
    systems_RNN.masked_fill_(~both, 0.0)
    systems_RNN.diagonal(dim1=1, dim2=2).masked_fill_(~kept_RN, 1.0)
    right_RN = torch.where(kept_RN, wanted_RK.gather(1, columns_RN), 0.0)
    # Principal parts of a positive definite matrix: these factors exist.
    factor_RNN = torch.linalg.cholesky(systems_RNN)
    solved_RN = torch.cholesky_solve(right_RN.unsqueeze(2), factor_RNN).squeeze(2)
    return torch.zeros_like(wanted_RK).scatter_(1, columns_RN, torch.where(kept_RN, solved_RN, 0.0))
