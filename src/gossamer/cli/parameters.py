# SPDX-License-Identifier: Apache-2.0
"""Options and their types that commands share; each refuses a bad value with what it wants."""

import re
from typing import Any

import click


class Shape(click.ParamType):  # type: ignore[type-arg]  # generic in new click only
    """`768x3072` as (outputs, inputs)."""

    name = "OUTxIN"

    def convert(
        self, value: Any, param: click.Parameter | None, ctx: click.Context | None
    ) -> tuple[int, int]:
        """The two sizes."""
        if isinstance(value, tuple):
            return value
        match = re.fullmatch(r"(\d+)x(\d+)", value)
        if match is None or "0" in match.groups():
            self.fail(f"{value!r} is no shape; expected outputs x inputs, as in 768x3072.")
        return int(match[1]), int(match[2])


class Sparsity(click.ParamType):  # type: ignore[type-arg]  # generic in new click only
    """A fraction in [0, 1)."""

    name = "fraction"

    def convert(
        self, value: Any, param: click.Parameter | None, ctx: click.Context | None
    ) -> float:
        """The number; percentages are refused with the fraction to write."""
        try:
            number = float(value)
        except ValueError:
            self.fail(f"{value!r} is no number; expected a fraction in [0, 1), as in 0.9.")
        if 1 <= number < 100:
            self.fail(f"must be in [0, 1), got {value}. Write {number / 100:g} for {value} %.")
        if not 0 <= number < 1:
            self.fail(f"must be in [0, 1), got {value}.")
        return number


POSITIVE = click.IntRange(min=1)

precision_option = click.option(
    "--precision",
    type=click.Choice(["fp32", "int8"]),
    default="fp32",
    show_default=True,
    help="Lowest precision that kernels may compute in.",
)
pooling_option = click.option(
    "--pooling",
    type=click.Choice(["mean", "cls"]),
    default="mean",
    show_default=True,
    help="Of embeddings: mean of all tokens, or the first token.",
)
threads_option = click.option("--threads", type=POSITIVE, help="[default: as torch has it]")
special_tokens_option = click.option(
    "--special-tokens", is_flag=True, help="Read special tokens where texts spell them."
)
