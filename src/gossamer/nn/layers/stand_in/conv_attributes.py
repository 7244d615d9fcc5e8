# SPDX-License-Identifier: Apache-2.0
"""The attributes of nn.Conv2d on layers that hold them as one `ConvSettings`: models read them."""

from dataclasses import fields
from operator import attrgetter

from gossamer.ops.conv import ConvSettings, Pair


class ConvAttributes:
    """`in_channels`, `kernel_size`, `stride` and so on, out of `settings`."""

    settings: ConvSettings
    in_channels: int
    out_channels: int
    kernel_size: Pair
    stride: Pair
    padding: Pair | str
    dilation: Pair
    groups: int
    padding_mode: str


for _field in fields(ConvSettings):
    setattr(ConvAttributes, _field.name, property(attrgetter(f"settings.{_field.name}")))
