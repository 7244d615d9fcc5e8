# SPDX-License-Identifier: Apache-2.0
"""Measured figures of several models side by side: the one table every report shows first."""

from dataclasses import asdict, dataclass, replace
from typing import Any, Literal

from gossamer.errors import InputError
from gossamer.report.report import NOT_MEASURED, format_bytes

Unit = Literal["bytes", "ms", "score"]


@dataclass(frozen=True)
class Figure:
    """One measured quantity; `values` follow the order of the models, None = not measured.

    Bytes and milliseconds are better when lower, scores when higher. `doubt` says why the values
    should not be believed, such as a busy machine; empty if they should.
    """

    name: str
    unit: Unit
    values: tuple[float | None, ...]
    doubt: str = ""

    @property
    def label(self) -> str:
        """The name, with what is to be said of it."""
        return f"{self.name} [{self.doubt}]" if self.doubt else self.name

    def cell(self, index: int) -> str:
        """The value of one model, as people read it."""
        value = self.values[index]
        if value is None:
            return NOT_MEASURED
        if self.unit == "bytes":
            return format_bytes(round(value))
        return f"{value:.3f}" if self.unit == "score" or value < 10 else f"{value:.1f}"

    def gain(self, index: int) -> float | None:
        """How many times smaller or faster than the first model; None for scores."""
        first, value = self.values[0], self.values[index]
        if self.unit == "score" or first is None or not value:
            return None
        return first / value

    def is_worse(self, index: int) -> bool:
        """Whether this model is larger, slower or of lower score than the first."""
        first, value = self.values[0], self.values[index]
        if first is None or value is None:
            return False
        return value < first if self.unit == "score" else value > first

    def change(self, index: int) -> str:
        """The gain, or the difference of a score, as people read it."""
        first, value, gain = self.values[0], self.values[index], self.gain(index)
        if gain is not None:
            return f"{gain:.2f}x"
        if self.unit != "score" or first is None or value is None:
            return ""
        return f"{value - first:+.3f}"


@dataclass(frozen=True)
class Comparison:
    """Models as columns, figures as rows. The first model is the dense one."""

    models: tuple[str, ...]
    figures: tuple[Figure, ...]

    def __post_init__(self) -> None:
        for figure in self.figures:
            if len(figure.values) != len(self.models):
                raise InputError(
                    f"comparison: figure {figure.name!r} needs {len(self.models)} values,"
                    f" got {len(figure.values)}."
                )

    def cells(self) -> list[list[str]]:
        """Header and rows; the last column compares the second model with the first."""
        places = range(len(self.models))
        return [["", *self.models, "ratio"]] + [
            [figure.label, *map(figure.cell, places), figure.change(1)] for figure in self.figures
        ]

    def trusted(self) -> "Comparison":
        """The same without doubtful figures: what may be written down for good."""
        kept = tuple(
            replace(figure, values=(None,) * len(figure.values)) if figure.doubt else figure
            for figure in self.figures
        )
        return replace(self, figures=kept)

    def to_dict(self) -> dict[str, Any]:
        """Plain data: numbers as measured and the gains derived from them."""
        places = range(len(self.models))
        figures = [
            {**asdict(each), "values": list(each.values), "gains": [*map(each.gain, places)]}
            for each in self.figures
        ]
        return {"models": list(self.models), "figures": figures}
