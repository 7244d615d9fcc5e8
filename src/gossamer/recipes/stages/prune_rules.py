# SPDX-License-Identifier: Apache-2.0
"""Which settings of `prune` go together: rules that look at more than one field.

They work on the raw mapping of a file, so that they are told beside the faults of single fields.
"""

import re
import sys
from collections.abc import Iterator, Mapping, Sequence
from typing import Any, Final

from gossamer.errors import PatternError
from gossamer.patterns.syntax import LEGAL_FORMS, PatternText, form_of, read_builtin
from gossamer.recipes.faults import near, plain, show

METHODS: Final = (
    *("magnitude", "random", "wanda", "sparsegpt", "admm", "exact-obs"),
    *("taylor", "fisher", "obert"),
)
# They solve for the weights they keep, layer by layer.
_SOLVERS: Final = ("sparsegpt", "admm", "exact-obs")
# Setting -> (methods that have it, default).
_SETTINGS: Final[dict[str, tuple[tuple[str, ...], Any]]] = {
    "damping": ((*_SOLVERS, "obert"), 0.01),
    "block": (("sparsegpt",), 128),
    "quantise": (("sparsegpt",), None),
    "match": (_SOLVERS, "pruned"),
}
# Few gradients make a poorer Fisher matrix than many inputs make a Gram matrix.
_OBERT_DAMPING: Final = 0.1
SCHEMA_HINT: Final = "Run 'gossamer recipe schema'."

Found = Iterator[tuple[str, str]]


def has_setting(name: str, prune: Mapping[str, Any]) -> bool:
    """Whether the method of a prune stage has the setting; `refit: true` brings `match`."""
    methods, _ = _SETTINGS[name]
    own = prune.get("kind", "built-in") == "built-in" and prune.get("method") in methods
    return own or (name == "match" and prune.get("refit") is True)


def default_settings(prune: Mapping[str, Any]) -> dict[str, Any]:
    """Defaults of the settings that the method has."""
    found = {
        name: default
        for name, (_, default) in _SETTINGS.items()
        if default is not None and has_setting(name, prune)
    }
    return {**found, "damping": _OBERT_DAMPING} if prune.get("method") == "obert" else found


def setting_methods(name: str) -> tuple[str, ...]:
    """The methods a setting belongs to; empty if all have it."""
    return _SETTINGS[name][0] if name in _SETTINGS else ()


def prune_faults(prune: Mapping[str, Any]) -> Found:
    """(field, message) of everything that does not go together."""
    yield from _method_faults(prune)
    yield from _setting_faults(prune)
    yield from pattern_faults(prune)
    for name in ("targets", "ignore"):
        yield from _rule_faults(name, prune.get(name))


def fraction_hint(value: Any, legal: str) -> str:
    """Why a number is no fraction; percentages get the number to write."""
    if isinstance(value, int | float) and 1 < value < 100:
        return f"must be in {legal}, got {value}. Write {value / 100:g} for {value:g} %."
    if value == 1:
        return f"must be in {legal}, got {value}. At 1.0 nothing would be left."
    return f"must be in {legal}, got {value}."


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


def _method_faults(prune: Mapping[str, Any]) -> Found:
    method, kind = prune.get("method"), prune.get("kind", "built-in")
    if method == "" and kind == "scorer":
        yield "method", "expected the name of a registered scorer, got ''."
    if isinstance(method, str) and kind == "built-in" and method not in METHODS:
        yield (
            "method",
            f"unknown method {show(method)}.{near(method, METHODS)} Expected one of"
            f" {', '.join(METHODS)}; a registered scorer needs kind: scorer. {SCHEMA_HINT}",
        )


def _setting_faults(prune: Mapping[str, Any]) -> Found:
    method = prune.get("method")
    if not isinstance(method, str) or (
        prune.get("kind", "built-in") == "built-in" and method not in METHODS
    ):
        return  # Its own fault is told; which settings it has cannot be known.
    for name, (methods, _) in _SETTINGS.items():
        if prune.get(name) is not None and not has_setting(name, prune):
            extra = ", and of any method with refit: true" if name == "match" else ""
            yield (
                name,
                f"{name} is a setting of {_listed(methods)}{extra}, not of {plain(method)}."
                " Remove it.",
            )


def pattern_faults(prune: Mapping[str, Any]) -> Found:
    """(field, message) where pattern, sparsity and budget do not go together."""
    text, sparsity = prune.get("pattern", "unstructured"), prune.get("sparsity")
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
    if not isinstance(sparsity, int | float) or isinstance(sparsity, bool):
        wrong = False
    else:
        wrong = 0 <= sparsity < 1 and abs(1 - sparsity - fixed) > 1e-6
    if wrong:
        yield (
            "sparsity",
            f"pattern {pattern.text} prunes exactly {1 - fixed:g}, got {sparsity}. Leave it out.",
        )
    budget = prune.get("budget", "uniform")
    if isinstance(budget, str) and budget != "uniform":
        yield (
            "budget",
            f"{plain(budget)} gives each layer its own sparsity, but pattern {pattern.text}"
            f" fixes it at {1 - fixed:g}. Use uniform, or a pattern such as unstructured.",
        )


def _rule_faults(name: str, rules: Any) -> Found:
    listed: Sequence[Any] = [rules] if isinstance(rules, str) else rules
    if not isinstance(listed, list | tuple):
        return
    for rule in listed:
        if isinstance(rule, str) and rule.startswith("re:"):
            try:
                re.compile(rule.removeprefix("re:"))
            except (re.error, OverflowError, RecursionError) as error:
                yield name, f"{show(rule)} is not a regular expression: {error}."


def _listed(words: Sequence[str]) -> str:
    return " and ".join([", ".join(words[:-1]), words[-1]] if len(words) > 1 else words)
