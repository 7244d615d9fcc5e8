# SPDX-License-Identifier: Apache-2.0
"""What the text of a pattern says, and which sparsities and budgets go with it."""

import sys
from collections.abc import Iterator, Mapping
from typing import Any

from gossamer.errors import PatternError
from gossamer.patterns import LEGAL_FORMS, PatternText, form_of, read_builtin
from gossamer.recipes.faults import near, plain, show


def read_pattern(text: str) -> PatternText:
    """What a pattern's text says, plug-ins included; PatternError otherwise."""
    found = read_builtin(text)
    if found is not None:
        return found
    # A plug-in can be registered only where this module is loaded; else torch is not needed.
    registry = sys.modules.get("gossamer.patterns.text")
    if registry is not None and form_of(text) in registry.PATTERNS:
        pattern = registry.parse_pattern(text)
        return PatternText(str(pattern), pattern.fixed_density)
    names = ("unstructured", "nmg", "block")
    raise PatternError(
        f"unknown pattern {show(text)}.{near(form_of(text), names)} Legal: {LEGAL_FORMS}."
    )


def pattern_faults(raw: Mapping[str, Any]) -> Iterator[tuple[str, str]]:
    """(field, message) where pattern, sparsity and budget do not go together."""
    text, sparsity = raw.get("pattern", "unstructured"), raw.get("sparsity")
    if not isinstance(text, str):
        return
    try:
        pattern = read_pattern(text)
    except PatternError as error:
        yield "pattern", str(error).removeprefix(f"pattern {text!r}: ").removeprefix("pattern ")
        return
    fixed = pattern.fixed_density
    if fixed is None:
        if sparsity is None:
            yield "sparsity", f"is missing; pattern {pattern.text} needs one, such as 0.5."
        return
    is_number = isinstance(sparsity, int | float) and not isinstance(sparsity, bool)
    asked = sparsity if sparsity is not None and is_number else 1.0
    if 0 <= asked < 1 and abs(1 - asked - fixed) > 1e-6:
        yield (
            "sparsity",
            f"pattern {pattern.text} prunes exactly {1 - fixed:g}, got {sparsity}. Leave it out.",
        )
    budget = raw.get("budget", "uniform")
    if isinstance(budget, str) and budget != "uniform":
        yield (
            "budget",
            f"{plain(budget)} gives each layer its own sparsity, but pattern {pattern.text}"
            f" fixes it at {1 - fixed:g}. Use uniform, or a pattern such as unstructured.",
        )
