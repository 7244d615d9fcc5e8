# SPDX-License-Identifier: Apache-2.0
"""A layer's empirical Fisher matrix in blocks along its rows, and optimal brain surgery with it.

F = damp I + (sum of g g^T over the passes) / passes, cut to blocks of neighbouring weights of one
row. The last block of a row is filled up with weights that have neither value nor gradient.

Legend: P backward passes, R rows, K columns, N blocks, B weights of a block.
"""

from collections.abc import Iterator
from dataclasses import dataclass

import torch
from torch.nn.functional import pad

from gossamer.errors import InputError

# Numbers of a slice of rows that are held together: 32 MiB of float64.
SLICE_NUMBERS = 1 << 22


@dataclass(frozen=True)
class FisherBlocks:
    """All gradients of one layer, and how they are cut.

    Attributes:
        name: of the layer, for messages.
        gradients_PRK: one matrix per pass.
        width: B.
        damping: added to the diagonal, as a part of the mean diagonal of the layer. A part and
            not a number: gradients of one layer may be a thousand times those of another.
    """

    name: str
    gradients_PRK: torch.Tensor  # noqa: N815  (shape suffix)
    width: int
    damping: float

    def damp(self) -> float:
        """What is added to the diagonal."""
        # A norm, not the mean of squares: no second copy of all gradients.
        norm = float(torch.linalg.vector_norm(self.gradients_PRK, dtype=torch.float64))
        return self.damping * norm**2 / max(1, self.gradients_PRK.numel())

    def slices(self) -> Iterator[tuple[slice, torch.Tensor]]:
        """(rows, inverses [N, B, B] of the blocks of these rows).

        They are computed anew for every sweep: a layer's inverses are B times its weights.
        """
        num_passes, num_rows, num_columns = self.gradients_PRK.shape
        # Per row: the inverses, or its gradients in float64.
        per_row = (num_columns + self.width) * max(self.width, num_passes)
        height = max(1, SLICE_NUMBERS // per_row)
        damp = self.damp()
        for start in range(0, num_rows, height):
            rows = slice(start, min(start + height, num_rows))
            cut_PNB = in_blocks(self.gradients_PRK[:, rows], self.width)
            yield rows, inverse_blocks(cut_PNB, damp, self.name)

    def neighbours(self) -> tuple[torch.Tensor, torch.Tensor]:
        """Of the inverse: its diagonal [R, K], and its entries between each weight and the next."""
        shape = self.gradients_PRK.shape[1:]
        diagonal_RK = self.gradients_PRK.new_empty(shape, dtype=torch.float64)
        next_RK = torch.empty_like(diagonal_RK)
        for rows, inverse_NBB in self.slices():
            diagonal_RK[rows] = in_rows(inverse_NBB.diagonal(dim1=1, dim2=2), shape[1])
            # Zero behind the last weight of a block: blocks do not know each other.
            beside_NB = pad(inverse_NBB.diagonal(offset=1, dim1=1, dim2=2), (0, 1))
            next_RK[rows] = in_rows(beside_NB, shape[1])
        return diagonal_RK, next_RK

    def update(self, weight_RK: torch.Tensor, mask_RK: torch.Tensor) -> torch.Tensor:
        """The weights that raise the loss least once all weights outside the mask are zero."""
        result_RK = torch.zeros_like(weight_RK)
        for rows, inverse_NBB in self.slices():
            weight_NB = in_blocks(weight_RK[rows].double(), self.width)
            dropped_NB = in_blocks(~mask_RK[rows], self.width)
            moved_NB = without(weight_NB, inverse_NBB, dropped_NB, self.name)
            result_RK[rows] = in_rows(moved_NB, weight_RK.shape[1]).to(weight_RK.dtype)
        return torch.where(mask_RK, result_RK, 0.0)


def in_blocks(matrix: torch.Tensor, width: int) -> torch.Tensor:
    """[..., N, B] of [..., R, K]: rows cut into blocks, the last one of each filled with zeros."""
    return pad(matrix, (0, -matrix.shape[-1] % width)).reshape(*matrix.shape[:-2], -1, width)


def in_rows(values_NB: torch.Tensor, num_columns: int) -> torch.Tensor:
    """[R, K] of what `in_blocks` cut."""
    per_row = -(-num_columns // values_NB.shape[1])
    return values_NB.reshape(-1, per_row * values_NB.shape[1])[:, :num_columns]


def inverse_blocks(gradients_PNB: torch.Tensor, damp: float, where: str) -> torch.Tensor:
    """(damp I + mean of g g^T)^-1 of every block, in float64 whatever the gradients are.

    By a product and a Cholesky factor. The usual recursion, one rank-one update of the inverse per
    gradient, gives the same matrix, but reads and writes all of it every time: three times as slow
    for 64 gradients and blocks of 32. In float32 neither holds where gradients differ by orders of
    magnitude.
    """
    num_passes = len(gradients_PNB)
    gradients_NBP = gradients_PNB.permute(1, 2, 0).double()
    fisher_NBB = torch.bmm(gradients_NBP, gradients_NBP.transpose(1, 2)).div_(num_passes)
    # A layer that is pruned as a whole has no gradients: any diagonal serves.
    fisher_NBB.diagonal(dim1=1, dim2=2).add_(damp or 1.0)
    return torch.cholesky_inverse(_factor(fisher_NBB, where))


def without(
    weight_NB: torch.Tensor, inverse_NBB: torch.Tensor, dropped_NB: torch.Tensor, where: str
) -> torch.Tensor:
    """Weights minus F^-1 E_Q ([F^-1]_QQ)^-1 w_Q, for the dropped set Q of every block.

    Every block has its own Q: kept weights get the identity's rows and columns in [F^-1]_QQ, and
    zero on the right, so that all blocks are solved at once.
    """
    system_NBB = torch.where(dropped_NB[:, :, None] & dropped_NB[:, None], inverse_NBB, 0.0)
    system_NBB.diagonal(dim1=1, dim2=2).masked_fill_(~dropped_NB, 1.0)
    right_NB1 = torch.where(dropped_NB, weight_NB, 0.0)[:, :, None]
    pull_NB1 = torch.cholesky_solve(right_NB1, _factor(system_NBB, where))
    return weight_NB - torch.bmm(inverse_NBB, pull_NB1).squeeze(2)


def _factor(matrix_NBB: torch.Tensor, where: str) -> torch.Tensor:
    factor_NBB, failed_N = torch.linalg.cholesky_ex(matrix_NBB)
    num_failed = int((failed_N != 0).sum())
    if num_failed:
        raise InputError(
            f"{where}: {num_failed} of {len(failed_N)} blocks of the Fisher matrix have no Cholesky"
            " factor: gradients differ by too many orders of magnitude for this damping. Raise"
            " damping."
        )
    return torch.as_tensor(factor_NBB)


def saliency(weight_RK: torch.Tensor, diagonal_RK: torch.Tensor) -> torch.Tensor:
    """w^2 / (2 [F^-1]_ii): what the loss rises by without one weight, the others making up."""
    return weight_RK.double().square() / diagonal_RK / 2
