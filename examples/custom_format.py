"""A plug-in on three axes with its conformance tests: a storage format, its kernel, a scorer."""

import torch
from torch import nn

import gossamer
from gossamer.formats.base import VALUE_DTYPES, Format, expect_array, expect_only
from gossamer.patterns import Unstructured


class Flat(Format):
    """Kept values and their int32 positions in the flattened [R, K] matrix, as SAMO stores them."""

    name = "flat"

    def supports(self, pattern):
        return isinstance(pattern, Unstructured)

    def pack(self, weight_RK, mask_RK, pattern):
        positions = mask_RK.flatten().nonzero().flatten()
        return {"values": weight_RK.flatten()[positions], "positions": positions.int()}

    def validate(self, arrays, shape, pattern, where="tensor"):
        expect_only(arrays, ("values", "positions"), where)
        values = expect_array(arrays, "values", VALUE_DTYPES, (None,), where)
        positions = expect_array(arrays, "positions", (torch.int32,), (len(values),), where).long()
        bounded = torch.cat([torch.tensor([-1]), positions, torch.tensor([shape[0] * shape[1]])])
        if not bool((bounded.diff() > 0).all()):
            raise gossamer.errors.FormatError(f"{where}: positions must increase and be in range.")

    def unpack(self, arrays, shape, pattern):
        weight, mask = arrays["values"].new_zeros(shape), torch.zeros(shape, dtype=torch.bool)
        weight.view(-1)[arrays["positions"].long()] = arrays["values"]
        mask.view(-1)[arrays["positions"].long()] = True
        return weight, mask

    def nbytes(self, shape, nnz, itemsize, pattern):
        return nnz * (itemsize + 4)


def linear_flat(sparse):
    rows_cols = torch.stack(torch.unravel_index(sparse.arrays["positions"].long(), sparse.shape))
    weight = torch.sparse_coo_tensor(rows_cols, sparse.values, sparse.shape, check_invariants=True)

    def run(x, bias, activation):
        y = (weight @ x.reshape(-1, sparse.shape[1]).T).T.reshape(*x.shape[:-1], sparse.shape[0])
        y = y if bias is None else y + bias
        return y if activation == "none" else getattr(nn.functional, activation)(y)

    return run


gossamer.register.format("flat", Flat())
gossamer.register.op("linear", "flat")(linear_flat)
gossamer.register.scorer("rows")(lambda c: c.weight_RK.abs() / c.weight_RK.norm(dim=1)[:, None])

gossamer.testing.check_format("flat")
gossamer.testing.check_op("linear", "flat")
print(gossamer.sparsify(nn.Sequential(nn.Linear(64, 64)), sparsity=0.9, scorer="rows"))
