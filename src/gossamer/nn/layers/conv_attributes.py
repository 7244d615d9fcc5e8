# SPDX-License-Identifier: Apache-2.0
"""The attributes of nn.Conv2d on layers that hold them as one `ConvSettings`: models read them."""

from gossamer.ops.conv import ConvSettings, Pair


class ConvAttributes:
    """`in_channels`, `kernel_size`, `stride` and so on, out of `settings`."""

    settings: ConvSettings

    @property
    def in_channels(self) -> int:
        """Channels of the input."""
        return self.settings.in_channels

    @property
    def out_channels(self) -> int:
        """Channels of the output."""
        return self.settings.out_channels

    @property
    def kernel_size(self) -> Pair:
        """(height, width)."""
        return self.settings.kernel_size

    @property
    def stride(self) -> Pair:
        """(height, width)."""
        return self.settings.stride

    @property
    def padding(self) -> Pair | str:
        """(height, width), "same" or "valid"."""
        return self.settings.padding

    @property
    def dilation(self) -> Pair:
        """(height, width)."""
        return self.settings.dilation

    @property
    def groups(self) -> int:
        """Groups of channels that do not see each other."""
        return self.settings.groups

    @property
    def padding_mode(self) -> str:
        """What the border is filled with: "zeros", "reflect", "replicate" or "circular"."""
        return self.settings.padding_mode
