# SPDX-License-Identifier: Apache-2.0
"""What becomes of one output of an operator: inline, temporary, external, final, and its gradient.

The four parts are those of STen: the operator applies `inline` while it computes and gives the
result in the format `temporary`; `external` makes of that, in a second pass, the final `format`.
"""

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any

import torch

from gossamer.errors import InputError
from gossamer.ops.operators import CompressedTensor, Plan, convert, run_operator, works_in_place
from gossamer.ops.operators.compressed import has_compressed, tensor_format
from gossamer.ops.operators.running import is_recorded, told_dense
from gossamer.ops.sparsifiers import (
    Sparsifier,
    parse_sparsifier,
    pass_gradient_through,
    sparsify,
    sparsify_gradient,
)

THROUGH = "through"


@dataclass(frozen=True)
class SparseOutput:
    """How one output is made sparse, and held.

    Args:
        inline: sparsifier inside the operator, as text; streaming or blocking.
        temporary: format in which the operator gives its result: "dense", "csr", or a registered
            one.
        external: sparsifier of a second pass; any.
        format: in which the result goes on to what uses it; None: the temporary one.
        gradient: sparsifier of the gradient that comes back for this output. None: the gradient has
            zeros where the output has. "through": all of it, dropped entries included.
        gradient_format: of that gradient, for the operator's backward kernel.
    """

    inline: str = "keep-all"
    temporary: str = "dense"
    external: str = "keep-all"
    format: str | None = None
    gradient: str | None = None
    gradient_format: str = "dense"

    def __post_init__(self) -> None:
        inner, _, _ = self.sparsifiers
        if inner.scope == "materialising":
            raise InputError(
                f"SparseOutput: {inner} ranks the whole tensor (it is materialising) and cannot"
                f" work inside an operator. Write SparseOutput(external={str(inner)!r})."
            )
        for name in (self.temporary, self.final, self.gradient_format):
            tensor_format(name)
        if self.gradient is not None and (self.temporary, self.final) != ("dense", "dense"):
            raise InputError(
                "SparseOutput: the gradient of a compressed output has the output's entries; leave"
                " gradient out, or make the output dense."
            )
        if self.gradient == THROUGH and self.gradient_format != "dense":
            raise InputError(
                "SparseOutput: gradient='through' is all of the gradient, which is dense."
            )

    @classmethod
    def of(cls, rule: "str | SparseOutput") -> "SparseOutput":
        """A rule that is only a sparsifier: inline if it is streaming, otherwise external."""
        if isinstance(rule, SparseOutput):
            return rule
        sparsifier = parse_sparsifier(rule)
        place = "inline" if sparsifier.scope == "streaming" else "external"
        return cls(**{place: str(sparsifier)})

    @property
    def final(self) -> str:
        """The format that goes on."""
        return self.temporary if self.format is None else self.format

    @property
    def sparsifiers(self) -> tuple[Sparsifier, Sparsifier, Sparsifier | None]:
        """Inline, external and of the gradient, None for "through" and for none."""
        gradient = None if self.gradient in (None, THROUGH) else parse_sparsifier(self.gradient)
        return parse_sparsifier(self.inline), parse_sparsifier(self.external), gradient

    def __str__(self) -> str:
        said = [f"{name}={value!r}" for name, value in vars(self).items() if value != _SAID[name]]
        return f"SparseOutput({', '.join(said)})"


_SAID = {name: one.default for name, one in SparseOutput.__dataclass_fields__.items()}


class OutputRule:
    """A `SparseOutput` made ready: called in the place of an operator, or with what it gave."""

    def __init__(self, output: SparseOutput, where: str) -> None:
        self.output, self.where = output, where
        self.inline, self.external, self.gradient = output.sparsifiers
        self.through = output.gradient == THROUGH
        # Nothing but zeros in dense tensors: torch's operator, and then the sparsifiers.
        self.is_dense = (output.temporary, output.gradient_format) == ("dense", "dense")
        back = parse_sparsifier("keep-all") if self.gradient is None else self.gradient
        self._plan = Plan(where, self.inline, output.temporary, back, output.gradient_format)
        # Inside the operator: what a format does not change.
        inside = parse_sparsifier("keep-all") if self.through else self.inline
        self._given = Plan(where, inside, output.temporary)
        self._has_external = output.external != "keep-all"

    def check(self, shape: torch.Size) -> None:
        """InputError if a tensor of this shape cannot be made sparse so."""
        for sparsifier in (self.inline, self.external, self.gradient):
            if sparsifier is not None:
                sparsifier.check_shape(shape, self.where)

    def run(
        self,
        operator: str,
        function: Callable[..., Any],
        args: Any,
        kwargs: Mapping[str, Any],
    ) -> Any:
        """The output of an operator that has only one."""
        compressed = has_compressed((*args, *kwargs.values()))
        if (self.is_dense and not compressed) or works_in_place(function) or is_recorded():
            # A format, where there is one, comes after the operator instead of inside it.
            if self.output.gradient_format != "dense":
                told_dense(self.where, self.output.gradient_format)
            y = function(*args, **kwargs)
            return self(y) if isinstance(y, torch.Tensor) else y
        if self.output.gradient_format != "dense":
            y = run_operator(operator, function, args, kwargs, self._plan)
            return convert(self._outside(y), self.output.final, self.where)
        y = run_operator(operator, function, args, kwargs, self._given)
        return self(y) if self.through else self._finish(y)

    def __call__(self, x: torch.Tensor) -> torch.Tensor:
        """What an operator gave, in passes of their own."""
        if not x.is_floating_point():
            return x
        x = x.dense() if isinstance(x, CompressedTensor) else x
        return self._finish(sparsify(x, self.inline), x)

    def _finish(self, y: torch.Tensor, x: torch.Tensor | None = None) -> torch.Tensor:
        y = self._outside(y)
        if self.through and x is not None and y is not x:
            y = pass_gradient_through(x, y)
        if self.gradient is not None:
            y = sparsify_gradient(y, self.gradient)
        return convert(y, self.output.final, self.where)

    def _outside(self, y: torch.Tensor) -> torch.Tensor:
        """The second pass; a compressed tensor is made dense for it if it has one."""
        if not self._has_external:
            return y
        return sparsify(y.dense() if isinstance(y, CompressedTensor) else y, self.external)
