# SPDX-License-Identifier: Apache-2.0
"""How well vectors of nodes rank pairs that were held out: recall, AUC and the loss.

Legend: N nodes, D width, P pairs.
"""

import torch
from torch import Tensor
from torch.nn.functional import softplus

from gossamer.data.batches import generator_of
from gossamer.data.graphs.batches import other_items
from gossamer.data.graphs.links import LinkData
from gossamer.errors import InputError

FIRST = 20
_OTHERS = 100  # items that each pair is compared with for its AUC
_USERS_AT_ONCE = 1024
_PAIRS_AT_ONCE = 4096


def link_metrics(vectors: Tensor, data: LinkData, part: str) -> dict[str, float]:
    """Numbers of vectors [N, D] on the pairs of a part; pairs of the parts before are left out.

    - `recall_at_20`: which part of a user's items is among the 20 best, mean over users.
    - `auc`: the chance that an item of a user is ranked above one that is not; ties count half.
    - `eval_loss`: mean of -log sigmoid of the difference of both (BPR).

    AUC and loss compare each pair with 100 items that are drawn once and for all.
    """
    pairs = data.parts[part]
    if not len(pairs):
        raise InputError(f"graph: there are no pairs to measure on in part {part}.")
    if not bool(torch.isfinite(vectors).all()):
        raise InputError("graph: the model gives vectors that are NaN or infinite.")
    before = ("train",) if part == "validation" else ("train", "validation")
    return {
        "recall_at_20": _recall(vectors, data, pairs, data.known(*before)),
        **_compared(vectors, data, pairs, data.known(*before, part)),
    }


def _recall(vectors: Tensor, data: LinkData, pairs: Tensor, known: Tensor) -> float:
    """Mean over users of the part of their items among the best."""
    items = vectors[data.first_item :]
    users, counts = pairs[:, 0].unique(return_counts=True)  # type: ignore[no-untyped-call]
    wanted = pairs @ torch.tensor([data.num_nodes, 1])
    total = torch.zeros((), dtype=torch.float64)
    for chosen, of_user in zip(
        users.split(_USERS_AT_ONCE), counts.split(_USERS_AT_ONCE), strict=True
    ):
        scores = vectors[chosen] @ items.t()
        first = torch.searchsorted(known, chosen * data.num_nodes)
        last = torch.searchsorted(known, (chosen + 1) * data.num_nodes)
        rows = torch.arange(len(chosen)).repeat_interleave(last - first)
        shift = torch.arange(len(rows)) - (last - first).cumsum(0).sub(last - first)[rows]
        taken = known[first[rows] + shift] % data.num_nodes - data.first_item
        scores[rows, taken] = -torch.inf
        if data.first_item == 0:
            scores[torch.arange(len(chosen)), chosen] = -torch.inf
        best = scores.topk(min(FIRST, scores.shape[1]), dim=1).indices + data.first_item
        hits = torch.isin(chosen[:, None] * data.num_nodes + best, wanted).sum(1)
        total += (hits.double() / of_user).sum()
    return float(total / len(users))


def _compared(vectors: Tensor, data: LinkData, pairs: Tensor, known: Tensor) -> dict[str, float]:
    generator = generator_of(0, len(pairs), data.num_nodes)
    above = lost = 0.0
    for some in pairs.split(_PAIRS_AT_ONCE):  # type: ignore[no-untyped-call]
        others = other_items(data, some[:, :1], known, generator, _OTHERS)
        users = vectors[some[:, 0]]
        own = (users * vectors[some[:, 1]]).sum(1, keepdim=True)
        gap = own - torch.einsum("pd,pod->po", users, vectors[others])
        above += float((gap > 0).double().sum() + (gap == 0).double().sum() / 2)
        lost += float(softplus(-gap.double()).sum())
    count = len(pairs) * _OTHERS
    return {"auc": above / count, "eval_loss": lost / count}
