# SPDX-License-Identifier: Apache-2.0
"""Options and their types that commands share; each refuses a bad value with what it wants."""

import os
import sys
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import click
from click import Choice, IntRange, option

from gossamer.recipes.fractions import is_percentage, parse_fraction


@dataclass(eq=False)
class Fraction(click.ParamType):  # type: ignore[type-arg]  # generic in new click only
    """A part of a whole: `0.9` or `90%`. One type for all options, so that all of them read alike.

    Args:
        low: the least value; the value itself is not in the range if `low_open`.
        high: the largest one; the value itself is not in the range if `high_open`.
        low_open: whether `low` is left out.
        high_open: whether `high` is left out.
        example: for messages.
    """

    name = "fraction"

    low: float = 0.0
    high: float = 1.0
    low_open: bool = False
    high_open: bool = False
    example: float = 0.9

    def convert(
        self, value: Any, param: click.Parameter | None, ctx: click.Context | None
    ) -> float:
        """The number, if it is in the range; one that was meant as a percentage is told so."""
        number = parse_fraction(value) if isinstance(value, str) else float(value)
        legal = (
            f"in {'(' if self.low_open else '['}{self.low:g},"
            f" {self.high:g}{')' if self.high_open else ']'}"
        )
        if number is None:
            self.fail(
                f"{value!r} is no number; it must be {legal}, as in {self.example:g} or"
                f" {self.example:.0%}."
            )
        # Where more than the whole is legal, a bare 1 may be meant as one per cent.
        with_sign = is_percentage(str(value))
        is_plain = self.high <= 1 or number < 1 or with_sign
        at_open_end = (self.low_open and number == self.low) or (
            self.high_open and number == self.high
        )
        if self.low <= number <= self.high and not at_open_end and is_plain:
            return number
        advice = ""
        if 1 <= number < 100 and not with_sign:
            whole = " 1 is the whole." if number == 1 else ""
            advice = f"{whole} Write {number / 100:g} for {number:g} %, or {number:g}%."
        return self.fail(f"must be {legal}, got {value}.{advice}")


SPARSITY = Fraction(high_open=True)
POSITIVE = IntRange(min=1)
PATH = click.Path(path_type=Path)

artifact_option = option("-o", "--out", "target", type=PATH, required=True, help="Artifact folder.")
set_option = option(
    "--set",
    "overrides",
    multiple=True,
    metavar="K=V",
    help="In the recipe: a variable, or a field such as stages.0.prune.damping=0.1; repeatable.",
)
resume_option = option("--resume", is_flag=True, help="Go on with a run that was stopped.")
dry_run_option = option(
    "--dry-run", is_flag=True, help="Say what it would do, need and take; write nothing."
)
precision_option = option(
    "--precision",
    type=Choice(["fp32", "int8"]),
    default="fp32",
    help="Lowest precision that kernels may compute in.",
)
kv_option = option(
    "--kv",
    type=Choice(["fp32", "int8", "int4"]),
    default="fp32",
    help="What keys and values are stored in.",
)
attention_option = option(
    "--attention",
    metavar="RULES",
    help="Which keys a token reads: sinks:4+window:1024, pages:512, mass:0.95.  [default: all]",
)
pooling_option = option(
    "--pooling",
    type=Choice(["mean", "cls", "max", "mean_sqrt_len_tokens", "weightedmean", "lasttoken"]),
    help="Of embeddings.  [default: as modules.json beside the model says, else mean]",
)
prompt_option = option(
    "--prompt",
    metavar="NAME",
    help="Prompt of the model that is set in front of texts; '' for none.  [default: the model's]",
)


def _use_threads(_: click.Context, __: click.Parameter, count: int | None) -> None:
    if count is None:
        return
    if (torch := sys.modules.get("torch")) is not None:
        torch.set_num_threads(count)
    else:
        # Read when the first library with threads is loaded, be it torch or the kernels alone.
        os.environ["OMP_NUM_THREADS"] = str(count)


threads_option = option(
    "--threads",
    type=POSITIVE,
    callback=_use_threads,
    expose_value=False,
    help="[default: as torch has it]",
)
special_tokens_option = option(
    "--special-tokens", is_flag=True, help="Read special tokens where texts spell them."
)
