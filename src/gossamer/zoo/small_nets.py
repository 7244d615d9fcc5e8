# SPDX-License-Identifier: Apache-2.0
"""Small dense networks for images that zeros have to beat: `SqueezeNet`, `ShiftNet`.

Legend: N images, C channels, H height, W width.
"""

import torch
import torch.nn.functional as F
from torch import nn

from gossamer.nn.layers.shortcut import PaddedShortcut
from gossamer.zoo.arguments import ZooArgs, check_size

__all__ = ["Shift", "ShiftNet", "SqueezeNet"]

# Of SqueezeNet 1.1: the width of a Fire module, in that of the stem, and where images are halved.
_FIRES, _POOLED_BEFORE = (1, 1, 2, 2, 3, 3, 4, 4), (2, 4)


class Fire(nn.Module):
    """1x1 to few channels, then 1x1 and 3x3 side by side, joined."""

    def __init__(self, inputs: int, squeezed: int, expanded: int) -> None:
        super().__init__()
        self.squeeze = nn.Conv2d(inputs, squeezed, 1)
        self.one = nn.Conv2d(squeezed, expanded, 1)
        self.three = nn.Conv2d(squeezed, expanded, 3, padding=1)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        """[N, 2 * expanded, H, W]."""
        x = F.relu(self.squeeze(x))
        return torch.cat([F.relu(self.one(x)), F.relu(self.three(x))], 1)


class SqueezeNet(nn.Module):
    """SqueezeNet 1.1 (arXiv 1602.07360): Fire modules, late halving, no Linear.

    Args:
        channels: of an image.
        classes: that it may be of.
        width: of the stem, 64 as published; everything else follows.
        small: for images of about 32 x 32: the stem keeps their size and the first halving is left
            out.
    """

    def __init__(
        self, channels: int = 3, classes: int = 1000, width: int = 64, small: bool = False
    ) -> None:
        super().__init__()
        self.channels = check_size("SqueezeNet: channels", channels)
        self.classes = check_size("SqueezeNet: classes", classes)
        self.width = check_size("SqueezeNet: width", width, low=4)
        self.small = bool(small)
        step = 1 if self.small else 2
        self.stem = nn.Conv2d(channels, width, 3, step, padding=1 if self.small else 0)
        self.fires = nn.ModuleList()
        inputs = width
        for times in _FIRES:
            self.fires.append(Fire(inputs, max(1, times * width // 4), times * width))
            inputs = 2 * times * width
        self.drop = nn.Dropout(0.5)
        self.head = nn.Conv2d(inputs, classes, 1)
        # As published: the last layer starts near 0.
        nn.init.normal_(self.head.weight, std=0.01)
        nn.init.zeros_(self.head.bias)  # type: ignore[arg-type]

    def zoo_args(self) -> ZooArgs:
        """The arguments that build this model again."""
        names = ("channels", "classes", "width", "small")
        return {name: getattr(self, name) for name in names}

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        """Logits [N, classes] of x [N, C, H, W]."""
        x = F.relu(self.stem(x))
        if not self.small:
            x = F.max_pool2d(x, 3, 2, ceil_mode=True)
        for number, fire in enumerate(self.fires):
            if number in _POOLED_BEFORE:
                x = F.max_pool2d(x, 3, 2, ceil_mode=True)
            x = fire(x)
        return F.relu(self.head(self.drop(x))).mean((2, 3))


class Shift(nn.Module):
    """Channels moved by a pixel in one of nine directions (arXiv 1711.08141): no weights, no sums.

    Channels are dealt out to the directions in equal parts, what is left over stays; pixels from
    outside of the image are 0.

    Args:
        stride: between pixels that stay, in both directions.
    """

    def __init__(self, stride: int = 1) -> None:
        super().__init__()
        self.stride = stride

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        """X [N, C, H, W], moved."""
        height, width = x.shape[-2:]
        around = F.pad(x, (1, 1, 1, 1))
        part = x.shape[1] // 9
        moved = [
            around[
                :,
                number * part : (number + 1) * part,
                number // 3 : number // 3 + height,
                number % 3 : number % 3 + width,
            ]
            for number in range(9)
        ]
        y = torch.cat([*moved, x[:, 9 * part :]], 1)
        return y if self.stride == 1 else y[:, :, :: self.stride, :: self.stride]


class ShiftBlock(nn.Module):
    """1x1, shift, 1x1, and a shortcut around them."""

    def __init__(self, inputs: int, outputs: int, wider: int, stride: int) -> None:
        super().__init__()
        inner = wider * inputs
        self.conv1, self.norm1 = nn.Conv2d(inputs, inner, 1, bias=False), nn.BatchNorm2d(inner)
        self.shift = Shift(stride)
        self.conv2, self.norm2 = nn.Conv2d(inner, outputs, 1, bias=False), nn.BatchNorm2d(outputs)
        same = inputs == outputs and stride == 1
        self.shortcut = nn.Identity() if same else PaddedShortcut(0, outputs - inputs, stride)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        """[N, outputs, H / stride, W / stride]."""
        y = self.shift(F.relu(self.norm1(self.conv1(x))))
        return F.relu(self.norm2(self.conv2(y)) + self.shortcut(x))


class ShiftNet(nn.Module):
    """Three stages of shift blocks behind a 3x3 stem: all other products are 1x1.

    Args:
        channels: of an image.
        classes: that it may be of.
        width: of the first stage; it doubles in each.
        blocks: of each stage.
        wider: channels inside of a block, in those of its input.
    """

    def __init__(
        self, channels: int = 3, classes: int = 10, width: int = 16, blocks: int = 3, wider: int = 4
    ) -> None:
        super().__init__()
        self.channels = check_size("ShiftNet: channels", channels)
        self.classes = check_size("ShiftNet: classes", classes)
        self.width = check_size("ShiftNet: width", width)
        self.blocks = check_size("ShiftNet: blocks", blocks, high=1024)
        self.wider = check_size("ShiftNet: wider", wider, high=1024)
        self.stem = nn.Conv2d(channels, width, 3, padding=1, bias=False)
        self.stem_norm = nn.BatchNorm2d(width)
        self.stages = nn.ModuleList()
        inputs = width
        for stage in range(3):
            for block in range(blocks):
                outputs = width * 2**stage
                stride = 2 if stage and not block else 1
                self.stages.append(ShiftBlock(inputs, outputs, wider, stride))
                inputs = outputs
        self.head = nn.Linear(inputs, classes)

    def zoo_args(self) -> ZooArgs:
        """The arguments that build this model again."""
        names = ("channels", "classes", "width", "blocks", "wider")
        return {name: getattr(self, name) for name in names}

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        """Logits [N, classes] of x [N, C, H, W]."""
        x = F.relu(self.stem_norm(self.stem(x)))
        for block in self.stages:
            x = block(x)
        logits: torch.Tensor = self.head(x.mean((2, 3)))
        return logits
