# SPDX-License-Identifier: Apache-2.0
"""Rules that name modules: a class name, a glob over dotted names, or `re:` and a regex.

"Linear"                          every module of that class or a subclass of it
"encoder.layer.*.attention.*"     glob; a star also crosses dots
"encoder.layer.0"                 that module and everything inside it
"re:.*(query|key|value)"          regular expression, matched from the start of the name
"""

import difflib
import fnmatch
import re
from collections.abc import Mapping, Sequence

from torch import nn

from gossamer.errors import TargetError

Rules = str | Sequence[str] | None
# A name that is less like the rule than this is no help.
_ALIKE = 0.75
_SHOWN = 8


def as_rules(rules: Rules, where: str) -> list[str]:
    """The rules as a list of non-empty strings."""
    if rules is None:
        return []
    listed = [rules] if isinstance(rules, str) else list(rules)
    for rule in listed:
        if not isinstance(rule, str) or not rule:
            raise TargetError(f"{where}: expected module names, globs or 're:...', got {rule!r}.")
    return listed


def match(rule: str, modules: Mapping[str, nn.Module], where: str) -> list[str]:
    """Names the rule selects; an error with the closest name if there is none.

    An exact name selects that module alone.
    """
    if rule.startswith("re:"):
        try:
            expression = re.compile(rule.removeprefix("re:"))
        except re.error as error:
            raise TargetError(f"{where}: {rule!r} is not a regular expression: {error}.") from error
        names = [name for name in modules if expression.match(name)]
    elif rule in modules:
        names = [rule]
    else:
        names = [
            name
            for name, module in modules.items()
            if any(kind.__name__ == rule for kind in type(module).__mro__)
            or fnmatch.fnmatchcase(name, rule)
        ]
    if not names:
        raise TargetError(
            f"{where}: {rule!r} matched 0 of {len(modules)} modules. {suggestion(rule, modules)}"
        )
    return names


def inside(container: str, modules: Mapping[str, nn.Module]) -> list[str]:
    """The names of `container` and of everything below it."""
    return [name for name in modules if f"{name}.".startswith(f"{container}.") or not container]


def suggestion(rule: str, modules: Mapping[str, nn.Module]) -> str:
    """The name most like the rule, globs and regex signs aside; without one, what there is."""
    wanted = re.sub(r"[^\w.]", "", rule.removeprefix("re:")).strip(".").lower()

    def likeness(name: str) -> float:
        candidates = (name.lower(), name.rsplit(".", 1)[-1].lower())
        return max(difflib.SequenceMatcher(None, wanted, text).ratio() for text in candidates)

    classes = {type(module).__name__: None for name, module in modules.items() if name}
    names = [name for name in [*modules, *classes] if name]
    if not names:
        return "The model has no layers."
    best = max(names, key=likeness)
    if likeness(best) >= _ALIKE:
        return f"Closest: {best}."
    # Layers themselves, not the containers around them.
    leaves = [name for name, module in modules.items() if name and not any(module.children())]
    return (
        f"The model has layers {_some(leaves)} of classes {_some(list(classes))}; write a name, a"
        " class, a glob such as '*.0', or re: and a regular expression."
    )


def _some(names: list[str]) -> str:
    return ", ".join(names[:_SHOWN]) + (f" and {len(names) - _SHOWN} more" * (len(names) > _SHOWN))
