# SPDX-License-Identifier: Apache-2.0
"""Optimal brain surgery with the block Fisher matrix (in the manner of oBERT, arXiv 2203.07259).

Which weights go: for V:N:M by costs of pairs, else by the saliency of single weights under the
pattern. Then all weights that stay make up for all that go, inside each Fisher block at once.

To know what a whole set of dropped weights costs, one would have to try all sets. For V:N:M the
weights of a group are taken in neighbouring pairs; inside a pair the cost of dropping one, the
other or both is exact, and pairs are taken to be independent. Under that assumption the search is
exact.

Step A: all rows of a block drop the same M - 4 columns of a group, at the least sum of costs.
Step B: every row drops two more of the four that are left, given what is gone.

Legend: R rows, B row blocks, V rows of a block, G column groups, M columns of a group, P pairs of a
group (the last column of an odd group has an empty partner), N weights to drop + 1.
"""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import NamedTuple

import torch
from torch.nn.functional import pad

from gossamer.errors import InputError
from gossamer.patterns import VNM
from gossamer.patterns.syntax import NUM_KEPT, NUM_SHARED
from gossamer.pruning.gradients.fisher import FisherBlocks, saliency
from gossamer.pruning.gradients.passes import GradientMethod, GradientProblems, check_reached
from gossamer.pruning.solvers import LayerProblem, LayerSolution

# Rows are searched in slices of about this many table entries.
SLICE_NUMBERS = 1 << 22


class PairCosts(NamedTuple):
    """What dropping none, one or both weights of a pair costs; inf where it is not allowed."""

    none: torch.Tensor
    first: torch.Tensor
    second: torch.Tensor
    both: torch.Tensor

    def given(self, gone_P2: torch.Tensor) -> "PairCosts":
        """The same where the weights `gone` [..., P, 2] must be dropped."""
        first, second = gone_P2.unbind(dim=-1)
        return PairCosts(
            self.none.masked_fill(first | second, torch.inf),
            self.first.masked_fill(second, torch.inf),
            self.second.masked_fill(first, torch.inf),
            self.both,
        )


def choose_by_pairs(
    pattern: VNM,
    weight_RK: torch.Tensor,
    diagonal_RK: torch.Tensor,
    next_RK: torch.Tensor,
    allowed_RK: torch.Tensor | None,
) -> torch.Tensor:
    """The mask of `pattern` by steps A and B.

    Args:
        pattern: fits the weight.
        weight_RK: the weights.
        diagonal_RK: of the inverse Fisher matrix.
        next_RK: its entries between each weight and its right neighbour.
        allowed_RK: an earlier mask; what it pruned is dropped before anything else.
    """
    if not weight_RK.numel():
        return torch.zeros_like(weight_RK, dtype=torch.bool)
    costs = pair_costs(pattern, weight_RK, diagonal_RK, next_RK, allowed_RK)
    missing = -len(weight_RK) % pattern.block_rows
    # [B, G, P]: costs of the rows of each block together.
    block = PairCosts(
        *(
            torch.unflatten(pad(part, (0, 0, 0, 0, 0, missing)), 0, (-1, pattern.block_rows)).sum(1)
            for part in costs
        )
    )
    shared_BGP2 = drop_cheapest(block, pattern.group - NUM_SHARED)
    gone_RGP2 = shared_BGP2.repeat_interleave(pattern.block_rows, dim=0)[: len(weight_RK)]
    step = max(1, SLICE_NUMBERS // max(1, weight_RK.shape[1] * pattern.group))
    dropped = [
        drop_cheapest(PairCosts(*parts).given(gone), pattern.group - NUM_KEPT)
        for *parts, gone in zip(
            *(torch.split(part, step) for part in (*costs, gone_RGP2)), strict=True
        )
    ]
    return ~torch.cat(dropped).flatten(2)[:, :, : pattern.group].flatten(1)


def pair_costs(
    pattern: VNM,
    weight_RK: torch.Tensor,
    diagonal_RK: torch.Tensor,
    next_RK: torch.Tensor,
    allowed_RK: torch.Tensor | None,
) -> PairCosts:
    """w_Q^T ([F^-1]_QQ)^-1 w_Q / 2 of Q = first, second, both: tensors [R, G, P]."""

    def in_pairs(matrix_RK: torch.Tensor, filling: float) -> tuple[torch.Tensor, torch.Tensor]:
        groups_RGM = matrix_RK.double().reshape(len(matrix_RK), -1, pattern.group)
        padded = pad(groups_RGM, (0, pattern.group % 2), value=filling)
        return padded[..., 0::2], padded[..., 1::2]

    w, v = in_pairs(weight_RK, 0.0)
    a, b = in_pairs(diagonal_RK, 1.0)
    c, _ = in_pairs(next_RK, 0.0)
    if pattern.group % 2:
        c = c.clone()
        c[..., -1] = 0.0
    first, second = w.square() / a / 2, v.square() / b / 2
    both = (w.square() * b - 2 * w * v * c + v.square() * a) / (a * b - c.square()) / 2
    if allowed_RK is not None:
        # More than all other costs together: what is pruned already goes first.
        reward = 1.0 + 2.0 * float((first + second + both).sum())
        p, q = in_pairs(allowed_RK, 1.0)
        first = first - reward * (1 - p)
        second = second - reward * (1 - q)
        both = both - reward * (2 - p - q)
    if pattern.group % 2:
        # The empty partner cannot be dropped.
        second, both = second.clone(), both.clone()
        second[..., -1] = both[..., -1] = torch.inf
    return PairCosts(torch.zeros_like(first), first, second, both)


def drop_cheapest(costs: PairCosts, num_dropped: int) -> torch.Tensor:
    """Bool [..., P, 2], True = dropped: exactly `num_dropped` weights at the least total cost.

    Exact: a table over pairs of the least cost for every number of weights dropped so far.
    """
    one = torch.minimum(costs.first, costs.second)
    best_N = one.new_full((*one.shape[:-1], num_dropped + 1), torch.inf)
    best_N[..., 0] = 0.0
    choices = []
    for pair in range(one.shape[-1]):
        options = [
            pad(best_N, (used, 0), value=torch.inf)[..., : num_dropped + 1] + cost[..., pair, None]
            for used, cost in enumerate((costs.none, one, costs.both))
        ]
        best_N, choice_N = torch.stack(options).min(dim=0)
        choices.append(choice_N.to(torch.int8))
    left = one.new_full((*one.shape[:-1], 1), num_dropped, dtype=torch.int64)
    counts = []
    for choice_N in reversed(choices):
        used = choice_N.gather(-1, left).long()
        counts.append(used)
        left = left - used
    count_P1 = torch.cat(counts[::-1], dim=-1).unsqueeze(-1)
    is_first = costs.first <= costs.second
    return (count_P1 == 2) | ((count_P1 == 1) & torch.stack([is_first, ~is_first], dim=-1))


@dataclass(frozen=True)
class OBERT(GradientMethod):
    """The method and its settings.

    Attributes:
        damping: added to the diagonal of the Fisher matrix, as a part of its mean in the layer.
            With hundreds of gradients 0.01 does as well as 0.1; with fewer than a block has weights
            it loses much, and 1 is better still.
        fisher_block: weights of a row that know each other.
        max_bytes: of gradients that are held at once, if one layer alone does not need more.
    """

    damping: float = 0.1
    fisher_block: int = 32
    max_bytes: int = 1 << 30

    def __post_init__(self) -> None:
        if not self.damping > 0:
            raise InputError(f"damping: must be above 0, got {self.damping}.")
        if self.fisher_block < 1:
            raise InputError(f"fisher_block: must be at least 1, got {self.fisher_block}.")

    @property
    def num_needed(self) -> int:
        """Gradients below which a report warns.

        Fewer gradients than a block has weights leave directions of it to the damping alone.
        Measured on two small networks at 80 % zeros, with a probe of the outputs as the loss: worse
        than magnitude with 1 to 32 gradients of single samples, better with 128 and more.
        """
        return 4 * self.fisher_block

    def check_data(self, num_batches: int) -> None:
        """Refuse data that would give a single gradient: it is no estimate of a mean."""
        if num_batches < 2:
            raise InputError(
                f"obert: takes one gradient from every batch and needs {self.num_needed}; the data"
                f" is {num_batches} batch. Cut it into more and smaller batches, or use a method"
                " that needs no gradients, such as sparsegpt or wanda."
            )

    def scores(self, problems: GradientProblems) -> Iterator[torch.Tensor]:
        """Saliencies of the single weights of every target."""
        for layer, blocks in self._blocks(problems):
            yield saliency(layer.weight_RK, blocks.neighbours()[0]).to(layer.weight_RK.dtype)

    def solutions(self, problems: GradientProblems) -> Iterator[LayerSolution]:
        """The mask and new weights of every target."""
        num_passes = len(problems.passes.batches)
        notes: tuple[str, ...] = ()
        if num_passes < self.num_needed:
            notes = (
                f"{num_passes} gradients, one per batch, are too few for obert: it needs"
                f" {self.num_needed}, and with fewer it can be worse than magnitude. Give more"
                " batches, smaller ones if need be, or use sparsegpt or wanda",
            )
        for layer, blocks in self._blocks(problems):
            mask_RK = self._mask(layer, blocks)
            yield LayerSolution(blocks.update(layer.weight_RK, mask_RK), mask_RK, notes)

    def _mask(self, problem: LayerProblem, blocks: FisherBlocks) -> torch.Tensor:
        diagonal_RK, next_RK = blocks.neighbours()
        if isinstance(problem.pattern, VNM):
            mask_RK = choose_by_pairs(
                problem.pattern, problem.weight_RK, diagonal_RK, next_RK, problem.allowed_RK
            )
            if problem.allowed_RK is None or not (mask_RK & ~problem.allowed_RK).any():
                return mask_RK
            # Sums over rows can leave an earlier mask of another pattern where the search of the
            # pattern, which looks at each row's best two, finds a way to stay inside.
        return problem.mask(saliency(problem.weight_RK, diagonal_RK))

    def _blocks(self, problems: GradientProblems) -> Iterator[tuple[LayerProblem, FisherBlocks]]:
        """Layer by layer, with all gradients of the layer.

        The inverse of a block needs all of its gradients, so they are held: passes x weights
        numbers. For a whole model that is too much, so layers are taken in groups that fit
        `max_bytes` and the backward passes run again for each group: memory is paid with time.
        Accumulating the blocks themselves instead takes fisher_block numbers per weight whatever
        the number of passes; it would pay only for many more passes than that.
        The result does not depend on the groups: nothing is written before the last one.
        """
        passes, layers = problems.passes, problems.layers
        num_passes = len(passes.batches)
        for group in _groups(layers, num_passes, self.max_bytes):
            held = [
                layer.weight_RK.new_empty(num_passes, *layer.weight_RK.shape)
                for layer in layers[group]
            ]
            for number, gradients in enumerate(passes.each(problems.targets[group])):
                for gradients_PRK, gradient_RK in zip(held, gradients, strict=True):
                    gradients_PRK[number] = gradient_RK
            for layer in layers[group]:
                gradients_PRK = held.pop(0)
                check_reached(layer, gradients_PRK)
                fisher = FisherBlocks(layer.name, gradients_PRK, self.fisher_block, self.damping)
                yield layer, fisher


def _groups(problems: Sequence[LayerProblem], num_passes: int, max_bytes: int) -> Iterator[slice]:
    """Neighbouring layers whose gradients fit together; at least one layer each."""
    start = used = 0
    for index, problem in enumerate(problems):
        size = num_passes * problem.weight_RK.numel() * problem.weight_RK.element_size()
        if index > start and used + size > max_bytes:
            yield slice(start, index)
            start, used = index, 0
        used += size
    yield slice(start, len(problems))
