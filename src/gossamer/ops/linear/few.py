# SPDX-License-Identifier: Apache-2.0
"""Native kernels for 1 to 16 tokens, where the bytes of the weight decide, and N:M by permutation.

Values are stored as fp32 or rounded to bf16, int8 (one scale per row) or int4 (one scale per run of
values); arithmetic is fp32. `KERNELS` says which form serves which weight; `compile` measures.
"""

import functools

from gossamer.errors import KernelError
from gossamer.formats import SparseMatrix
from gossamer.ops import _native
from gossamer.ops.dispatch import Kernel, Problem
from gossamer.ops.kernels import active_kernels
from gossamer.ops.linear.packed_weight import PackedWeight, pack_weight
from gossamer.patterns import NM

# Weights are read once and used for all tokens; from here on the panel kernel does better.
MAX_TOKENS = 16
FORMS = ("bitmask", "indexed", "nm")
DTYPES = ("fp32", "bf16", "int8", "int4")
# The engine that reads rows of its weight, too: embeddings and head of a decoder.
TABLE = "decoder_table"


def pack_few(
    matrix: SparseMatrix,
    form: str = "bitmask",
    dtype: str = "fp32",
    group: tuple[int, int] | None = None,
    scale_group: int = 32,
) -> PackedWeight:
    """A weight for few tokens.

    Args:
        matrix: float32 on the CPU.
        form: "bitmask" (any mask), "indexed" (any mask, for many zeros), "nm".
        dtype: what values are rounded to, to nearest, ties to even: "fp32" (not at all), "bf16",
            "int8" or "int4".
        group: (N, M) of form "nm": at most N kept of every M <= 32 consecutive columns.
        scale_group: kept values that share a scale in int4, a multiple of 8. Form "bitmask" shares
            it over as many columns as keep about that many.
    """
    if form not in FORMS or dtype not in DTYPES:
        raise KernelError(
            f"few-token kernel: form must be one of {', '.join(FORMS)} and dtype one of"
            f" {', '.join(DTYPES)}; got {form!r} and {dtype!r}."
        )
    if (group is None) == (form == "nm"):
        raise KernelError(
            f"few-token kernel: form 'nm' needs group=(N, M) and the others none; got form {form!r}"
            f" and group {group}."
        )
    num_kept, window = group or (0, 0)
    try:
        return pack_weight(
            kernel_name(form, dtype),
            _native.pack_few,
            matrix,
            form=form,
            dtype=dtype,
            scale_group=scale_group,
            slots=num_kept,
            window=window,
        )
    except ValueError as error:
        raise KernelError(f"few-token kernel: {error}.") from error


def kernel_name(form: str, dtype: str) -> str:
    """As `explain` shows it: the form, and the type of the values unless it is fp32."""
    return f"few/{form}" if dtype == "fp32" else f"few/{form}-{dtype}"


def smallest_form(problem: Problem) -> str:
    """The form with the fewest bytes for a token: what a decoder takes, which races nothing."""
    if problem.engine == TABLE:
        return "bitmask"  # the others cannot give a row
    if isinstance(problem.matrix.pattern, NM):
        return "nm"
    # Below this density an index per kept weight is smaller than a bit per weight.
    return "bitmask" if problem.matrix.density >= 0.25 else "indexed"


def _accepts(form: str, problem: Problem) -> bool:
    matrix = problem.matrix
    if problem.engine:
        return form == smallest_form(problem)
    if form == "nm":
        return isinstance(matrix.pattern, NM)
    # A bitmask costs the same for every column, an index for every kept weight. At density 0.2 the
    # index was faster for every type; between the bounds both are offered and measured.
    return bool(matrix.density >= 0.25 if form == "bitmask" else matrix.density <= 0.6)


def _pack(form: str, dtype: str, problem: Problem) -> PackedWeight:
    pattern = problem.matrix.pattern
    group = (pattern.num_kept, pattern.group) if isinstance(pattern, NM) and form == "nm" else None
    return pack_few(problem.matrix, form, dtype, group, problem.scale_group)


def _pack_permute(problem: Problem) -> PackedWeight:
    packed = _pack("nm", "fp32", problem)
    packed.kernel = "permute"
    return packed


def _kernel(form: str, dtype: str) -> Kernel:
    pack, accepts = functools.partial(_pack, form, dtype), functools.partial(_accepts, form)
    engines = dict.fromkeys(("decoder", TABLE), pack)
    return Kernel(kernel_name(form, dtype), pack, accepts, dtype, MAX_TOKENS, engines=engines)


KERNELS: tuple[Kernel, ...] = (
    *(_kernel(form, dtype) for form in FORMS for dtype in DTYPES),
    # The same for any number of tokens, 16 at a time: no transposes, sums stay in registers.
    # AVX-512 picks any of 16 (or, from two registers, 32) activations with one instruction. AVX2
    # needs two for 8 and four for 16: panels were faster there from 8 tokens on, by 1.1 to 4 times.
    Kernel(
        "permute",
        _pack_permute,
        functools.partial(_accepts, "nm"),
        is_offered=lambda: active_kernels() == "avx512",
    ),
)
