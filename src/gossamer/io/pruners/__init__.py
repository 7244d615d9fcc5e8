# SPDX-License-Identifier: Apache-2.0
"""Models and files that other pruners made: their zeros and masks become masks of ours.

Start at `read_dense_checkpoint` for files, at `adopt_zeros` and `adopt_pruned` for models in
memory. `describe_foreign` says what a file is that cannot be read, and what to do about it.
"""

from gossamer.io.pruners.compressed_tensors import bitmask_settings, expand_bitmasks, row_offsets
from gossamer.io.pruners.dense_checkpoint import (
    SINGLE_FILE,
    AdoptedLayer,
    DetectedMask,
    adopt_zeros,
    adoption_text,
    apply_masks,
    fold_pruned,
    read_dense_checkpoint,
    read_tensors_of,
)
from gossamer.io.pruners.foreign_file import describe_foreign
from gossamer.io.pruners.pruned_layers import adopt_pruned

__all__ = [
    "SINGLE_FILE",
    "AdoptedLayer",
    "DetectedMask",
    "adopt_pruned",
    "adopt_zeros",
    "adoption_text",
    "apply_masks",
    "bitmask_settings",
    "describe_foreign",
    "expand_bitmasks",
    "fold_pruned",
    "read_dense_checkpoint",
    "read_tensors_of",
    "row_offsets",
]
