"""What the tests of the strip and the nmg kernel share: a float64 oracle and its bound."""

import torch
import torch.nn.functional as F

from gossamer.formats import SparseMatrix

FUNCTIONS = {"none": lambda v: v, "relu": F.relu, "gelu": F.gelu, "silu": F.silu}


def matrix(weight, mask):
    return SparseMatrix.from_dense(weight, mask)


def check_against_float64(layer, weight, mask, x, bias=None, activation="none"):
    y = layer(x, bias, activation)
    wanted = F.linear(x.double(), weight.double(), None if bias is None else bias.double())
    wanted = FUNCTIONS[activation](wanted)
    # Rounding grows with the number of additions; 4e-7 is the bound of the polynomials.
    scale = F.linear(x.abs().double(), weight.abs().double(), None)
    scale = scale + (0 if bias is None else bias.abs().double()) + 1e-30
    terms = max(int(mask.sum(1).max()) if mask.numel() else 0, 1) + 1
    bound = scale * torch.finfo(torch.float32).eps * (2 + terms**0.5)
    bound = bound + (scale * 4e-7 if activation in ("gelu", "silu") else 0)
    assert y.shape == wanted.shape
    assert y.dtype is torch.float32
    assert bool(((y.double() - wanted).abs() <= bound).all())


def same_bits_on_two_threads(layer, columns):
    before = torch.get_num_threads()
    try:
        for tokens in (3, 24, 70, 200):
            x = torch.randn(tokens, columns)
            torch.set_num_threads(1)
            one = layer(x)
            torch.set_num_threads(2)
            if not torch.equal(one, layer(x)):
                return False
    finally:
        torch.set_num_threads(before)
    return True
