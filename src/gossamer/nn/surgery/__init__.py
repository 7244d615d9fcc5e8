# SPDX-License-Identifier: Apache-2.0
"""Modules of a model are replaced, cut and compacted; what users hung on them is kept.

Whoever replaces a layer asks `carried` what would be lost and hands the rest over. `compaction`
fixes masks, `slimming` cuts units out. Work in `unchanged_on_error` leaves the model as it was if
it fails.
"""

from gossamer.nn.surgery.replace import (
    READ_BY_ATTENTION,
    attention_outputs,
    disable_fast_paths,
    inherit_hooks,
    replace_module,
    submodule_at,
)
from gossamer.nn.surgery.unchanged import unchanged_on_error

__all__ = [
    "READ_BY_ATTENTION",
    "attention_outputs",
    "disable_fast_paths",
    "inherit_hooks",
    "replace_module",
    "submodule_at",
    "unchanged_on_error",
]
