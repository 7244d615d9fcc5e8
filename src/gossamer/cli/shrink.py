# SPDX-License-Identifier: Apache-2.0
"""`gossamer shrink`: the smallest, fastest model within a quality the user names."""

import re
from collections.abc import Mapping
from typing import Any

import click
from click import argument, option

from gossamer.cli.options import POSITIVE, Fraction, artifact_option
from gossamer.cli.shell import Output, gossamer_command, table

_EXAMPLES = """
gossamer shrink demo:minilm --data pairs.jsonl --max-loss 1% -o small/
gossamer shrink my-bert/ --data sentences.txt --max-loss 0.5% --max-latency 5ms -o small/
gossamer shrink demo:smollm2 --data text.txt --max-loss 2% --length 4096 -o small/
gossamer shrink my-bert/ --data train.csv --valid-data dev.csv --test-data test.csv -o small/
"""
_BYTES = {"B": 1, "KB": 1e3, "MB": 1e6, "GB": 1e9, "KiB": 2**10, "MiB": 2**20, "GiB": 2**30}
# Of a perplexity more than all may be lost.
_LOSS = Fraction(high=10.0, low_open=True, example=0.01)


class Quantity(click.ParamType):  # type: ignore[type-arg]  # generic in new click only
    """A positive number with its unit: `5ms`, `40MB`, `20min`."""

    def __init__(self, name: str, example: str, units: Mapping[str, float]) -> None:
        self.name, self._example, self._units = name, example, units

    def convert(
        self, value: Any, param: click.Parameter | None, ctx: click.Context | None
    ) -> float:
        """The number in the base unit."""
        if isinstance(value, float | int):
            return float(value)
        match = re.fullmatch(r"([0-9.]+(?:e-?\d+)?)\s*([A-Za-z]*)", value)
        if match is None or match[2] not in self._units:
            unit = match[2].lower() if match else ""
            near = [u for u in self._units if unit and u.lower().startswith(unit)]
            hint = f" Did you mean {match[1]}{near[0]}?" if match and near else ""
            self.fail(
                f"{value!r}: expected a number with one of the units"
                f" {', '.join(map(repr, self._units))}, as in {self._example}.{hint}"
            )
        try:
            number = float(match[1]) * self._units[match[2]]
        except ValueError:
            self.fail(f"{value!r} is no number.")
        if not number > 0:
            self.fail(f"must be positive, got {value}.")
        return number


@gossamer_command("The fastest model within a quality you name.", _EXAMPLES)
@argument("model")
@option(
    "--data", required=True, metavar="FILE",
    help="Text, JSON lines, CSV, TSV or .npz images; or module:function, your own batches.",
)  # fmt: skip
@artifact_option
@option(
    "--max-loss", type=_LOSS, default="1%",
    help="Points of a score, or growth of a perplexity.",
)  # fmt: skip
@option(
    "--max-latency",
    type=Quantity("latency", "5ms", {"ms": 1.0, "s": 1e3, "us": 1e-3}),
    help="Of one sequence of 128 tokens.",
)
@option("--max-bytes", type=Quantity("bytes", "40MB", _BYTES), help="Of the tensor files.")
@option(
    "--budget",
    type=Quantity("time", "20min", {"min": 1.0, "s": 1 / 60, "h": 60.0}),
    default="20min",
    help="For the whole search; what would take longer is not begun, or stopped.",
)
@option("--valid-data", metavar="FILE", help="Data to choose by; a part of DATA if left out.")
@option(
    "--test-data", metavar="FILE", help="Data for the final figure; a part of DATA if left out."
)
@option(
    "--metric",
    metavar="MODULE:FUNCTION",
    help="Your own quality, of a model and a part of the data.",
)
@option(
    "--length", type=POSITIVE,
    help="Tokens of texts a decoder shall read: how it reads their keys is tried, too.",
)  # fmt: skip
@option("--also", multiple=True, metavar="MODEL", help="A smaller dense model to compare with.")
@option(
    "--engines/--no-engines", default=True,
    help="Compare with int8 of other engines that are installed.",
)  # fmt: skip
def shrink(
    out: Output,
    /,
    max_loss: float,
    max_latency: float | None,
    max_bytes: float | None,
    **asked: Any,
) -> int:
    """Try what makes MODEL smaller and faster, keep the best, or say: stay dense.

    Dense int8, sparse masks, recovered, slim and token-pruned models are made from part of DATA,
    compared on another part, and the one that is taken is measured on a third. A search that was
    stopped goes on: finished candidates stay in OUT.work. Exit code 4 if nothing meets the limits;
    OUT is then the nearest model.
    """
    from gossamer.cli.shrinking import run_shrink
    from gossamer.search import SearchLimits
    from gossamer.search.page import HEAD, notes_of, rows_of, verdict

    limits = SearchLimits(max_loss, max_latency, None if max_bytes is None else int(max_bytes))
    result = run_shrink(out, limits, **asked)
    shown = table(
        *(column if i in (0, 6) else f">{column}" for i, column in enumerate(HEAD)),
        rows=rows_of(result.points, result.chosen, result.front),
    )
    said = verdict(result, limits)
    final = (
        said,
        f"On data that nothing was chosen by: {result.quality_name} {result.quality:.2f}, dense"
        f" {result.dense_quality:.2f}.",
        f"Saved to {result.path}; {result.work}/report.html shows the search.",
        *notes_of(result),
    )
    out.result({**result.to_dict(), "verdict": said}, shown, "\n".join(final))
    return 0 if result.met else 4
