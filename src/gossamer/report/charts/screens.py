# SPDX-License-Identifier: Apache-2.0
"""Pictures are drawn twice, for wide windows and telephones: letters keep their size."""

from collections.abc import Callable
from dataclasses import replace

from gossamer.report.charts.shapes import WIDTH, Chart

__all__ = ["for_screens", "shorten"]

# What a window of 400 pixels leaves for a picture.
NARROW = 344.0
_LABEL_LENGTH = 46


def for_screens(draw: Callable[[float], Chart]) -> Chart:
    """The picture that `draw` makes for a width, with its narrow form."""
    return replace(draw(WIDTH), narrow=draw(NARROW))


def shorten(name: str, length: int = _LABEL_LENGTH) -> str:
    """A long name with its middle cut out."""
    if len(name) <= length:
        return name
    left = length - 3
    half = left // 2
    return f"{name[: left - half]}...{name[-half:]}"
