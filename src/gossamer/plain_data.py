# SPDX-License-Identifier: Apache-2.0
"""Nested data of mappings and lists, as JSON and YAML have it."""

from collections.abc import Callable, Mapping
from typing import Any


def map_leaves(value: Any, change: Callable[[Any], Any]) -> Any:
    """The same data with every number, text or other leaf changed; tuples become lists."""
    if isinstance(value, Mapping):
        return {key: map_leaves(item, change) for key, item in value.items()}
    if isinstance(value, list | tuple):
        return [map_leaves(item, change) for item in value]
    return change(value)
