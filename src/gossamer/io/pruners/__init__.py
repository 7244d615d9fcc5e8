# SPDX-License-Identifier: Apache-2.0
"""Models and files that other pruners made: their zeros and masks become masks of ours.

Start at `read_dense_checkpoint` for files, at `adopt_zeros` and `adopt_pruned` for models in
memory: each `AdoptedLayer` is one that became masked, and `adoption_text` tells people about them.
`DetectedMask` is what zeros say. `describe_foreign` says what a file is that cannot be read, and
what to do about it. `plain_checkpoint` reads ordinary files, `compressed_tensors` those of vLLM.
"""

from gossamer.io.pruners.dense_checkpoint import (
    AdoptedLayer,
    DetectedMask,
    adopt_pruned,
    adopt_zeros,
    adoption_text,
    read_dense_checkpoint,
)
from gossamer.io.pruners.foreign_file import describe_foreign

__all__ = [
    "AdoptedLayer",
    "DetectedMask",
    "adopt_pruned",
    "adopt_zeros",
    "adoption_text",
    "describe_foreign",
    "read_dense_checkpoint",
]
