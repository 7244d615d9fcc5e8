# SPDX-License-Identifier: Apache-2.0
"""The way between the forms of a layer: dense, masked, compact.

The packed form is made by `gossamer.compile`; its classes are in `running/`.
"""

from gossamer.nn.forms.changes import (
    can_mask,
    in_form_of,
    mask_in,
    to_compact,
    to_dense,
    to_masked,
    why_not_compact,
)

__all__ = [
    "can_mask",
    "in_form_of",
    "mask_in",
    "to_compact",
    "to_dense",
    "to_masked",
    "why_not_compact",
]
