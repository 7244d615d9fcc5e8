# SPDX-License-Identifier: Apache-2.0
"""Neurons that fire together, in clusters of one size.

Legend: F neurons, T tokens, E clusters.
"""

import torch

_ROUNDS = 12


def balanced_clusters(fired_FT: torch.Tensor, clusters: int, seed: int = 0) -> torch.Tensor:
    """Neurons of each cluster, int64 [E, F / E], ascending; the same seed gives the same ones.

    A round gives every neuron to a cluster: first those that lose most by having their second
    choice, each to the best cluster that has a place; then centres are means anew. The round that
    leaves the smallest distances is taken.

    Args:
        fired_FT: how much each neuron did for each token; rows are compared by their direction.
        clusters: E, which divides F.
        seed: of the neurons that the first centres are.
    """
    neurons = len(fired_FT)
    each = neurons // clusters
    norms_F1 = torch.linalg.vector_norm(fired_FT, dim=1, keepdim=True).clamp(min=1e-12)
    points_FT = fired_FT / norms_F1
    centres_ET = points_FT[_first_centres(points_FT, clusters, seed)]
    best, best_sum = torch.zeros(neurons, dtype=torch.long), -torch.inf
    for _ in range(_ROUNDS):
        near_FE = points_FT @ centres_ET.t()
        own_F = _assign(near_FE, each)
        total = float(near_FE.gather(1, own_F[:, None]).sum())
        if total <= best_sum:
            break
        best, best_sum = own_F, total
        sums_ET = torch.zeros_like(centres_ET).index_add_(0, own_F, points_FT)
        centres_ET = sums_ET / torch.linalg.vector_norm(sums_ET, dim=1, keepdim=True).clamp(1e-12)
    return best.argsort(stable=True).view(clusters, each)


def _first_centres(points_FT: torch.Tensor, clusters: int, seed: int) -> torch.Tensor:
    """Neurons that are far from one another, the first one drawn."""
    generator = torch.Generator().manual_seed(seed)
    chosen = [int(torch.randint(len(points_FT), (), generator=generator))]
    nearest_F = points_FT @ points_FT[chosen[0]]
    for _ in range(clusters - 1):
        nearest_F[chosen] = torch.inf
        chosen.append(int(nearest_F.argmin()))
        nearest_F = torch.maximum(nearest_F, points_FT @ points_FT[chosen[-1]])
    return torch.tensor(chosen)


def _assign(near_FE: torch.Tensor, each: int) -> torch.Tensor:
    """The cluster of every neuron, `each` in all of them."""
    clusters = near_FE.shape[1]
    own_F = torch.full((len(near_FE),), -1)
    room_E = torch.full((clusters,), each)
    waiting = torch.arange(len(near_FE))
    near_FE = near_FE.clone()
    while len(waiting):
        left_WE = near_FE[waiting]
        choice_W = left_WE.argmax(1)
        if int((room_E > 0).sum()) > 1:
            first_W2 = left_WE.topk(2, dim=1).values
            regret_W = first_W2[:, 0] - first_W2[:, 1]
        else:
            regret_W = torch.zeros(len(waiting))
        for cluster in sorted(set(choice_W.tolist())):
            here = (choice_W == cluster).nonzero().flatten()
            taken = here[regret_W[here].argsort(descending=True, stable=True)]
            taken = waiting[taken[: int(room_E[cluster])]]
            own_F[taken] = cluster
            room_E[cluster] -= len(taken)
            if not int(room_E[cluster]):
                near_FE[:, cluster] = -torch.inf
        waiting = waiting[own_F[waiting] < 0]
    return own_F
