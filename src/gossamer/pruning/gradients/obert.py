# SPDX-License-Identifier: Apache-2.0
"""Optimal brain surgery with the block Fisher matrix (in the manner of oBERT, arXiv 2203.07259).

Which weights go: for V:N:M by costs of pairs, else by the saliency of single weights under the
pattern. Then all weights that stay make up for all that go, inside each Fisher block at once.
"""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass

import torch

from gossamer.errors import InputError
from gossamer.patterns import VNM
from gossamer.pruning.gradients.fisher import FisherBlocks, saliency
from gossamer.pruning.gradients.pairs import choose_by_pairs
from gossamer.pruning.gradients.scores import GradientMethod, GradientProblems, check_reached
from gossamer.pruning.solvers import LayerProblem, LayerSolution


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
            scores_RK = saliency(layer.weight_RK, blocks.neighbours()[0])
            yield scores_RK.to(layer.weight_RK.dtype)

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
