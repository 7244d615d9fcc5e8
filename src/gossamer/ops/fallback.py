# SPDX-License-Identifier: Apache-2.0
"""Dense work where a sparse kernel was asked for: counted and explained, an error under `strict`.

`report_fallback` is called by whoever falls back, `fallbacks` says how often that happened and why,
and `is_strict` is asked by those who have more to say about it.
"""

import contextlib
import contextvars
from collections import Counter
from collections.abc import Iterator

from gossamer.errors import DenseFallback

__all__ = [
    "fallbacks",
    "is_strict",
    "report_fallback",
    "strict",
]

_strict: contextvars.ContextVar[bool] = contextvars.ContextVar("gossamer_strict", default=False)
_fallbacks: Counter[str] = Counter()


def report_fallback(where: str, reason: str) -> None:
    """Count a fall back to dense; an error under `strict()`."""
    if _strict.get():
        raise DenseFallback(f"{where}: {reason}; this is an error under gossamer.strict().")
    _fallbacks[f"{where}: {reason}"] += 1


def fallbacks() -> dict[str, int]:
    """How often work fell back to dense in this process, by place and reason."""
    return dict(_fallbacks)


@contextlib.contextmanager
def strict() -> Iterator[None]:
    """Inside this context a fall back to dense is an error instead of a counted event."""
    token = _strict.set(True)
    try:
        yield
    finally:
        _strict.reset(token)


def is_strict() -> bool:
    """Whether a fall back to dense is an error here."""
    return _strict.get()
