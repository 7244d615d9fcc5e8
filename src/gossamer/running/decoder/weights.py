# SPDX-License-Identifier: Apache-2.0
"""The weights of a decoder: the list of kernels is asked on which one each runs, and how packed.

Legend: R rows (outputs), K columns (inputs).
"""

import functools
from dataclasses import dataclass, field, replace

import torch
from torch import nn

from gossamer.errors import InputError, KernelMissing
from gossamer.formats import Positions, SparseMatrix
from gossamer.formats.grid import int4_grid, offsets_grid
from gossamer.nn.layer_kinds import form_of
from gossamer.nn.layer_weights import matrix_of, weight_of
from gossamer.nn.layers.tables import table_of
from gossamer.nn.surgery.matrix_layers import conv1d_to_linear
from gossamer.ops import Kernel, Problem, kernels_for
from gossamer.ops.engines.decoder import PackedLayer
from gossamer.ops.engines.encoder import Product
from gossamer.ops.linear import PackedWeight, few, few_int
from gossamer.ops.timing import contest
from gossamer.running.layers import Row
from gossamer.running.packed import MIN_SPARSITY
from gossamer.settings import tuning_enabled

# Tables have no masks: int4 alone makes one number in seven a zero.
_TABLE_SPARSITY = 0.5


def joined(layers: list[nn.Module], where: str) -> Product:
    """Layers that read the same input as one product."""
    parts = Product.stack([_product(layer, where) for layer in layers])
    return replace(parts, layers=(where,))


def plain(weight_RK: torch.Tensor, where: str) -> Product:
    """A weight that is no layer: nothing of it is left out."""
    values = weight_RK.detach().float().cpu()
    _check_finite(values, where)
    matrix = SparseMatrix(Positions(None, tuple(values.shape)), values.flatten())
    return Product(matrix, None, (where,))


def of_experts(layer: nn.Module, num_experts: int, where: str) -> list[Product]:
    """The product of each expert of a layer of experts."""
    whole = _product(layer, where)
    biases = [None] * num_experts if whole.bias is None else whole.bias.chunk(num_experts)
    return [
        Product(matrix, bias, (f"{where} of {num_experts} experts",))
        for matrix, bias in zip(whole.matrix.unstack(num_experts), biases, strict=True)
    ]


def _check_finite(values: torch.Tensor, where: str) -> None:
    # The ends are NaN if anything is; one pass, and nothing is held.
    if values.numel() and not bool(torch.isfinite(torch.stack(values.aminmax())).all()):
        raise InputError(f"decoder: {where} holds weights that are NaN or infinite.")


def _product(layer: nn.Module, where: str) -> Product:
    (layer,) = conv1d_to_linear(nn.ModuleList([layer])).children()
    form = form_of(layer)
    if form is None and not isinstance(layer, nn.Embedding):
        raise InputError(
            f"decoder: {where} is a {type(layer).__name__}; expected a linear layer, masked,"
            " compact or dense. Merge adapters first."
        )
    table = table_of(layer)
    if table is not None:
        # What lookups see, whatever holds it.
        layer, form = table.to_dense(), None
    weight = weight_of(layer) if form in ("dense", None) else None
    few_zeros = _TABLE_SPARSITY if form is None else MIN_SPARSITY
    if weight is not None and _density(weight) > 1 - few_zeros:
        # A few zeros of a dense layer are weights like the others.
        matrix = SparseMatrix(Positions(None, tuple(weight.shape)), weight.flatten())
    else:
        matrix = matrix_of(layer)
    values = matrix.values.detach().float().cpu()
    _check_finite(values, where)
    bias = getattr(layer, "bias", None)
    if bias is not None:
        bias = bias.detach().float().cpu()
    return Product(replace(matrix, values=values), bias)


def _density(weight: torch.Tensor) -> float:
    return int(weight.count_nonzero()) / max(weight.numel(), 1)


_FEWEST = "the fewest bytes for a token"
_OFFSETS = "its weights are on a grid with offsets, so nothing is rounded"


@dataclass
class WeightPacker:
    """Packs matrices of a decoder in one type.

    The built-in kernel with the fewest bytes for a token runs a weight, or a plug-in that gives a
    `PackedWeight` and measures faster. Other runs of plug-ins stay outside: a decoder is one native
    call.

    Attributes:
        rows: what was packed, and why so.
    """

    dtype: str
    scale_group: int
    prompt_copy: bool
    reads_rows: bool = False
    rows: list[Row] = field(default_factory=list)

    def each(self, products: list[Product]) -> list[PackedLayer]:
        """Weights that are alike; what is explained of the first one holds for all."""
        packed = [self(product) for product in products[:1]]
        told = len(self.rows)
        packed += [self(product) for product in products[1:]]
        del self.rows[told:]
        return packed

    def __call__(self, product: Product) -> PackedLayer:
        """One weight, with a second layout for prompts where that is worth it."""
        matrix = product.matrix
        if self.dtype == "int4" and matrix.density == 1:
            with_offsets = _pack_offsets(matrix.dense())
            if with_offsets is not None:
                self._note(product, with_offsets, _OFFSETS)
                return PackedLayer(with_offsets, bias=product.bias)
        engine = few.TABLE if self.reads_rows else "decoder"
        problem = Problem(matrix, self.dtype, 1, scale_group=self.scale_group, engine=engine)
        given = {kernel.name: kernel.native_weight(problem) for kernel in self._kernels(problem)}
        usable = {n: packed for n, packed in given.items() if isinstance(packed, PackedWeight)}
        run, us, why = _fastest(list(usable.values()))
        others = ", ".join(name for name in given if name not in usable)
        self._note(product, run, why, us, f"not usable inside: {others}" if others else "")
        many = None
        if self.prompt_copy and self.dtype in ("fp32", "bf16") and matrix.density < 1:
            prompt = replace(problem, tokens=few.MAX_TOKENS + 1)
            many = self._kernels(prompt)[0].native_weight(prompt)
        return PackedLayer(run, many, product.bias)

    def _kernels(self, problem: Problem) -> list[Kernel]:
        """The built-in kernel with the fewest bytes, the last one of its type, and plug-ins."""
        kernels = kernels_for("linear", problem)
        usual = [k for k in kernels if not k.is_plug_in and k.precision == self.dtype]
        if not usual:
            raise KernelMissing(
                f"decoder: no linear kernel packs a {problem.matrix.pattern} weight for its native"
                f" call in {self.dtype}. Use another dtype."
            )
        return [usual[-1], *(kernel for kernel in kernels if kernel.is_plug_in)]

    def _note(
        self,
        product: Product,
        run: PackedWeight,
        why: str,
        us: float | None = None,
        inside: str = "",
    ) -> None:
        matrix = product.matrix
        facts = (matrix.shape, matrix.density, str(matrix.pattern), "-", 1, run.kernel, None, us)
        name = " + ".join(product.layers)
        self.rows.append(Row(name, "DecoderEngine", *facts, why, inside=inside))


def _fastest(packed: list[PackedWeight]) -> tuple[PackedWeight, float | None, str]:
    """Of the same weight in several layouts, for one token; the first one if nothing is timed."""
    if len(packed) == 1 or not tuning_enabled():
        return packed[0], None, _FEWEST
    x_1K = torch.randn(1, packed[0].shape[1], generator=torch.Generator().manual_seed(0))
    times = contest(*(functools.partial(one, x_1K) for one in packed)).us
    (us, number), *others = sorted(zip(times, range(len(times)), strict=True))
    ratios = (f"{time / us:.2f}x {packed[other].kernel}" for time, other in others)
    return packed[number], us, ", ".join(ratios)


def _pack_offsets(weight: torch.Tensor) -> PackedWeight | None:
    """A weight that is on a grid with offsets and on none without, which has fewer bytes."""
    if int4_grid(weight.shape[1]).encode_exactly(weight) is not None:
        return None
    for grid in (offsets_grid(64), offsets_grid(32)):
        coded = grid.encode_exactly(weight)
        if coded is not None and coded[2] is not None:
            return few_int.pack_few_int_offsets(coded[0], coded[1], coded[2], grid.span)
    return None
