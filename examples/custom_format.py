"""Plug-ins on three axes with their conformance tests: a storage format, a kernel, a scorer."""

import torch
from torch import nn

import gossamer
from gossamer.formats import Format
from gossamer.formats.base import expect_array, expect_only, with_mask
from gossamer.formats.matrix import VALUE_DTYPES
from gossamer.patterns import Unstructured


class Flat(Format):
    """Kept values and their int32 positions in the flattened [R, K] matrix, as SAMO stores them."""

    name = "flat"

    def supports(self, pattern):
        return isinstance(pattern, Unstructured)

    def encode(self, matrix):
        positions = matrix.mask().flatten().nonzero().flatten()
        return {"values": matrix.values, "positions": positions.int()}

    def decode(self, arrays, shape, pattern, where="tensor"):
        expect_only(arrays, ("values", "positions"), where)
        values = expect_array(arrays, "values", VALUE_DTYPES, (None,), where)
        positions = expect_array(arrays, "positions", (torch.int32,), (len(values),), where).long()
        numel = torch.Size(shape).numel()
        bounded = torch.cat([torch.tensor([-1]), positions, torch.tensor([numel])])
        if not bool((bounded.diff() > 0).all()):
            raise gossamer.errors.FormatError(f"{where}: positions must increase and be in range.")
        mask = torch.zeros(numel, dtype=torch.bool)
        mask[positions] = True
        return with_mask(values, mask.view(shape).flatten(1), shape, pattern)

    def nbytes(self, shape, nnz, itemsize, pattern):
        return nnz * (itemsize + 4)


def linear_flat(matrix):
    weight = matrix.dense().to_sparse()

    def run(x, bias, activation):
        y = (weight @ x.reshape(-1, matrix.shape[1]).T).T.reshape(*x.shape[:-1], matrix.shape[0])
        y = y if bias is None else y + bias
        return y if activation == "none" else getattr(nn.functional, activation)(y)

    return run


gossamer.register.format("flat", Flat())
gossamer.register.op("linear", "flat")(linear_flat)
gossamer.register.scorer("rows")(lambda c: c.weight_RK.abs() / c.weight_RK.norm(dim=1)[:, None])

gossamer.testing.check_format("flat")
gossamer.testing.check_op("linear", "flat")
print(gossamer.sparsify(nn.Sequential(nn.Linear(64, 64)), sparsity=0.9, scorer="rows"))
