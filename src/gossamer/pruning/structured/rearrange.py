# SPDX-License-Identifier: Apache-2.0
"""Which units of a group go together: the number stays, the summed gradient of the pruned shrinks.

Minimises |sum of the pruned units' gradients|^2 = 1' K 1 over the pruned set, K the Gram matrix of
the gradients. Every step allows the choice that changes nothing, so the objective never rises.
"""

from collections.abc import Sequence

import torch

from gossamer.errors import InputError

MAX_SWAPS = 10_000


def rearrange_units(
    gradients_SU: torch.Tensor, kept: Sequence[int], *, until_converged: bool = False
) -> list[int]:
    """Kept units after rearrangement, ascending and as many as before.

    Args:
        gradients_SU: gradients of the group's mask variables.
        kept: the start, from the search.
        until_converged: after the one greedy pass, swap pairs as long as one lowers the objective.
    """
    units = gradients_SU.shape[1]
    if len(set(kept)) != len(kept) or any(not 0 <= unit < units for unit in kept):
        raise InputError(f"kept: expected different units below {units}, got {list(kept)[:8]}.")
    if not 0 < len(kept) < units:
        return sorted(kept)
    gradients = gradients_SU.double()
    gram_UU = gradients.T @ gradients
    is_pruned = torch.ones(units, dtype=torch.bool)
    is_pruned[list(kept)] = False
    _greedy_pass(gram_UU, is_pruned)
    if until_converged:
        _swap_pairs(gram_UU, is_pruned)
    return (~is_pruned).nonzero().flatten().tolist()


def pruned_objective(gradients_SU: torch.Tensor, kept: Sequence[int]) -> float:
    """Mean over samples of half the squared gradient along removing everything but `kept`."""
    is_pruned = torch.ones(gradients_SU.shape[1], dtype=torch.bool)
    is_pruned[list(kept)] = False
    total_S = gradients_SU.double()[:, is_pruned].sum(1)
    return float(total_S.square().mean()) / 2


def _greedy_pass(gram_UU: torch.Tensor, is_pruned: torch.Tensor) -> None:
    """Every kept unit, least important first, may take the place of a pruned one."""
    diagonal_U = gram_UU.diagonal()
    order = torch.sort(diagonal_U, stable=True).indices.tolist()
    start = is_pruned.clone()
    # sums_U[u] is the product of unit u's gradient with the sum of the pruned ones.
    sums_U = gram_UU[:, is_pruned].sum(1)
    for unit in order:
        if start[unit]:
            continue
        is_pruned[unit] = True
        sums_U += gram_UU[unit]
        gain_U = 2 * sums_U - diagonal_U
        gain_U[~is_pruned] = -torch.inf
        # Of equal gains, taking the unit out again is preferred.
        leaves = unit if gain_U[unit] >= gain_U.max() else int(gain_U.argmax())
        is_pruned[leaves] = False
        sums_U -= gram_UU[leaves]


def _swap_pairs(gram_UU: torch.Tensor, is_pruned: torch.Tensor) -> None:
    """The best exchange of a pruned and a kept unit, again and again."""
    diagonal_U = gram_UU.diagonal()
    sums_U = gram_UU[:, is_pruned].sum(1)
    scale = float(diagonal_U.max())
    for _ in range(MAX_SWAPS):
        out = is_pruned.nonzero().flatten()
        into = (~is_pruned).nonzero().flatten()
        # Change of the objective when `out` leaves the pruned set and `into` joins it.
        change = (
            (diagonal_U[out] - 2 * sums_U[out])[:, None]
            + (diagonal_U[into] + 2 * sums_U[into])[None, :]
            - 2 * gram_UU[out][:, into]
        )
        best = int(change.argmin())
        if float(change.flatten()[best]) >= -1e-12 * scale:
            return
        leaves, joins = int(out[best // len(into)]), int(into[best % len(into)])
        is_pruned[leaves], is_pruned[joins] = False, True
        sums_U += gram_UU[joins] - gram_UU[leaves]
