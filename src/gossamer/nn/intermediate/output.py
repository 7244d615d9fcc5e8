# SPDX-License-Identifier: Apache-2.0
"""What becomes of one output of an operator: inline, temporary, external, final, and its gradient.

The four parts are those of STen: the operator applies `inline` while it computes and gives the
result in the format `temporary`; `external` makes of that, in a second pass, the final `format`.
"""

from dataclasses import dataclass

import torch

from gossamer.errors import InputError
from gossamer.ops.sparsifiers import (
    Sparsifier,
    parse_sparsifier,
    pass_gradient_through,
    sparsify,
    sparsify_gradient,
)

THROUGH = "through"


@dataclass(frozen=True)
class Output:
    """How one output is made sparse.

    Args:
        inline: sparsifier inside the operator, as text; streaming or blocking.
        external: sparsifier of a second pass; any.
        gradient: sparsifier of the gradient that comes back for this output. None: the gradient has
            zeros where the output has. "through": all of it, dropped entries included.
    """

    inline: str = "keep-all"
    external: str = "keep-all"
    gradient: str | None = None

    def __post_init__(self) -> None:
        inner, _, _ = self.sparsifiers
        if inner.scope == "materialising":
            raise InputError(
                f"Output: {inner} ranks the whole tensor (it is materialising) and cannot work"
                f" inside an operator. Write Output(external={str(inner)!r})."
            )

    @classmethod
    def of(cls, rule: "str | Output") -> "Output":
        """A rule that is only a sparsifier: inline if it is streaming, otherwise external."""
        if isinstance(rule, Output):
            return rule
        sparsifier = parse_sparsifier(rule)
        place = "inline" if sparsifier.scope == "streaming" else "external"
        return cls(**{place: str(sparsifier)})

    @property
    def sparsifiers(self) -> tuple[Sparsifier, Sparsifier, Sparsifier | None]:
        """Inline, external and of the gradient, None for "through" and for none."""
        gradient = None if self.gradient in (None, THROUGH) else parse_sparsifier(self.gradient)
        return parse_sparsifier(self.inline), parse_sparsifier(self.external), gradient


class OutputRule:
    """An `Output` made ready: what is called with each tensor."""

    def __init__(self, output: Output, where: str) -> None:
        self.output, self.where = output, where
        self.inline, self.external, self.gradient = output.sparsifiers
        self.through = output.gradient == THROUGH

    def check(self, shape: torch.Size) -> None:
        """InputError if a tensor of this shape cannot be made sparse so."""
        for sparsifier in (self.inline, self.external, self.gradient):
            if sparsifier is not None:
                sparsifier.check_shape(shape, self.where)

    def __call__(self, x: torch.Tensor) -> torch.Tensor:
        """The tensor with its zeros, and its gradient as the rule says."""
        y = sparsify(sparsify(x, self.inline), self.external)
        if self.through and y is not x:
            y = pass_gradient_through(x, y)
        return y if self.gradient is None else sparsify_gradient(y, self.gradient)
