# SPDX-License-Identifier: Apache-2.0
"""From text to pattern: `unstructured`, `2:4`, `64:2:8`, `nmg:2:4:16`, `block:4x4`, plug-ins."""

from collections.abc import Callable

from gossamer.errors import PatternError, RegistryError
from gossamer.patterns.base import Pattern
from gossamer.patterns.block import Block
from gossamer.patterns.nm import NM
from gossamer.patterns.nmg import NMG
from gossamer.patterns.syntax import LEGAL_FORMS, form_of
from gossamer.patterns.unstructured import Unstructured
from gossamer.patterns.vnm import VNM
from gossamer.registry import Registry

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
