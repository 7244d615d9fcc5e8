# SPDX-License-Identifier: Apache-2.0
"""What every layer asks of a mask: given by a caller or found in a state dict."""

import torch

from gossamer.errors import FormatError, InputError, PatternError
from gossamer.formats.bits import check_bits, unpack_bits
from gossamer.patterns import Pattern
from gossamer.patterns.selection import check_mask


def check_layer_mask(
    mask_RK: torch.Tensor, weight_shape: tuple[int, int], pattern: Pattern, where: str
) -> None:
    """Raise unless the mask is bool, has the weight's [R, K] shape and obeys the pattern."""
    check_mask(mask_RK, where)
    if tuple(mask_RK.shape) != weight_shape:
        raise InputError(
            f"{where}: the weight seen as [out, everything else] is {list(weight_shape)}, but the"
            f" mask is {list(mask_RK.shape)}."
        )
    pattern.check_shape(weight_shape, where)
    pattern.validate(mask_RK, where)


def check_float_weight(weight: torch.Tensor, where: str) -> None:
    """Raise unless the weight is floating point and holds data."""
    if not weight.is_floating_point():
        raise InputError(
            f"{where}: expected floating point weights, got {weight.dtype}."
            " Dequantize the layer first, or leave it out with ignore=[...]."
        )
    if weight.is_meta:
        raise InputError(f"{where}: the weight is on the meta device; load its values first.")
    if weight.is_inference() and not torch.is_inference_mode_enabled():
        raise InputError(
            f"{where}: the weight was created under torch.inference_mode() and cannot be changed."
            " Load the model outside of it."
        )


def fault_in_stored_mask(
    bits_RB: torch.Tensor, shape: tuple[int, int], pattern: Pattern, where: str
) -> str | None:
    """What is wrong with a packed mask from a state dict; None if nothing is."""
    try:
        check_bits(bits_RB, shape, where)
        pattern.validate(unpack_bits(bits_RB, shape[1]), where)
    except (FormatError, PatternError) as error:
        return str(error)
    return None
