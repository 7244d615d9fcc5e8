# SPDX-License-Identifier: Apache-2.0
"""Which units of a group go together: the number stays, the summed gradient of the pruned shrinks.

Minimises |sum of the pruned units' gradients|^2 = 1' K 1 over the pruned set, K the Gram matrix of
the gradients. Every step allows the choice that changes nothing, so the objective never rises.
"""

from collections.abc import Sequence

import torch

from gossamer.errors import InputError


def rearrange_units(gradients_SU: torch.Tensor, kept: Sequence[int]) -> list[int]:
    """Kept units after rearrangement, ascending and as many as before.

    Args:
        gradients_SU: gradients of the group's mask variables.
        kept: the start, from the search.
    """
    units = gradients_SU.shape[1]
    if len(set(kept)) != len(kept) or any(not 0 <= unit < units for unit in kept):
        raise InputError(f"kept: expected different units below {units}, got {list(kept)[:8]}.")
    if not 0 < len(kept) < units:
        return sorted(kept)
    gradients = gradients_SU.double()
    gram_UU = gradients.T @ gradients
    is_pruned = _all_but(kept, units)
    _greedy_pass(gram_UU, is_pruned)
    return (~is_pruned).nonzero().flatten().tolist()


def pruned_objective(gradients_SU: torch.Tensor, kept: Sequence[int]) -> float:
    """Mean over samples of half the squared gradient along removing everything but `kept`."""
    total_S = gradients_SU.double()[:, _all_but(kept, gradients_SU.shape[1])].sum(1)
    return float(total_S.square().mean()) / 2


def _all_but(kept: Sequence[int], units: int) -> torch.Tensor:
    is_pruned = torch.ones(units, dtype=torch.bool)
    is_pruned[list(kept)] = False
    return is_pruned


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
