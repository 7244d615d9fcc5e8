# SPDX-License-Identifier: Apache-2.0
"""From text to pattern: `unstructured`, `2:4`, `64:2:8`, `nmg:2:4:16`, `block:4x4`, plug-ins.

Also the pattern behind a mask that came without one, such as the zeros of another pruner's file.
"""

from collections.abc import Callable

import torch

from gossamer.errors import PatternError, RegistryError
from gossamer.patterns.base import Pattern
from gossamer.patterns.block import Block
from gossamer.patterns.nm import NM
from gossamer.patterns.nmg import NMG
from gossamer.patterns.selection import check_mask
from gossamer.patterns.syntax import LEGAL_FORMS, form_of
from gossamer.patterns.unstructured import Unstructured
from gossamer.patterns.vnm import VNM
from gossamer.registry import Registry

__all__ = [
    "PATTERNS",
    "detect_pattern",
    "parse_pattern",
]

_STUB = '''\
import gossamer
from gossamer.patterns import Pattern

class MyPattern(Pattern):
    ...  # fixed_density, check_shape, padded_shape, legal_density, project, validate, __str__

    @classmethod
    def parse(cls, text):
        """Read the whole text, '{name}' or '{name}:...', or raise PatternError."""

gossamer.register.pattern("{name}", MyPattern.parse)
'''

PATTERNS: Registry[Callable[[str], Pattern]] = Registry("pattern", _STUB)
for _builtin in (Unstructured, NM, VNM, NMG, Block):
    PATTERNS.add(_builtin.form, _builtin.parse)


# Most specific first: every 2:4 mask is 4:8 too, every 8x8 block mask is 4x4 too.
_GROUPS = (4, 8, 16, 32)
_BLOCKS = (
    *((32, 32), (16, 16), (8, 8), (4, 4)),
    *((1, 32), (32, 1), (1, 16), (16, 1), (1, 8), (8, 1), (1, 4), (4, 1)),
)


def parse_pattern(text: str) -> Pattern:
    """The pattern that `text` names; `str()` of it gives the canonical text back.

    The part before the first colon is looked up among the registered patterns; texts made of
    numbers only are N:M with one colon and V:N:M with two.
    """
    if not isinstance(text, str):
        raise PatternError(
            f"pattern: expected text, got {type(text).__name__}. Legal: {LEGAL_FORMS}."
        )
    try:
        parse = PATTERNS.get(form_of(text))
    except RegistryError as error:
        raise PatternError(f"pattern {text!r}: legal are {LEGAL_FORMS}. {error}") from error
    return parse(text)


def detect_pattern(mask: torch.Tensor) -> Pattern:
    """The most specific of N:M (M = 4, 8, 16, 32), common blocks and unstructured that fits.

    Exact: one group with one weight too few or too many is enough to refuse N:M. A mask inferred
    from zeros therefore misses the pattern when a kept weight happens to be 0; prefer the mask.
    Masks that keep everything or nothing say nothing and are unstructured.
    """
    check_mask(mask, "mask")
    if mask.numel() == 0 or mask.all() or not mask.any():
        return Unstructured()
    for group in _GROUPS:
        # All groups must agree with the first, so its count is the only N worth trying.
        num_kept = int(mask[0, :group].sum())
        if 0 < num_kept < group and _fits(NM(num_kept, group), mask):
            return NM(num_kept, group)
    for rows, columns in _BLOCKS:
        if _fits(Block(rows, columns), mask):
            return Block(rows, columns)
    return Unstructured()


def _fits(pattern: Pattern, mask: torch.Tensor) -> bool:
    try:
        # Nearly every wrong guess fails within a few rows; every block height divides this many.
        pattern.validate(mask[:32])
        pattern.validate(mask)
    except PatternError:
        return False
    return True
