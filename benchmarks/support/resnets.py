# SPDX-License-Identifier: Apache-2.0
"""The residual networks that benchmarks run: ResNet-20 of CIFAR-10 and one of ResNet-50's shape."""

import sys

import torch
import torch.nn.functional as F
from safetensors.torch import load_file
from torch import nn

from gossamer import settings

WEIGHTS = "resnet-cifar/resnet20-12fca82f.safetensors"


class Padded(nn.Module):
    """A shortcut without weights: every other pixel, zeros for the channels that are new."""

    def __init__(self, more_channels):
        super().__init__()
        self.more = more_channels

    def forward(self, x):
        """Half as high and wide."""
        side = self.more // 2
        return F.pad(x[:, :, ::2, ::2], (0, 0, 0, 0, side, side))


class BasicBlock(nn.Module):
    """Two 3x3 convolutions."""

    def __init__(self, inner, outer, stride):
        super().__init__()
        self.conv1 = nn.Conv2d(inner, outer, 3, stride, padding=1, bias=False)
        self.bn1 = nn.BatchNorm2d(outer)
        self.conv2 = nn.Conv2d(outer, outer, 3, padding=1, bias=False)
        self.bn2 = nn.BatchNorm2d(outer)
        self.shortcut = nn.Identity() if inner == outer else Padded(outer - inner)

    def forward(self, x):
        """The sum with its shortcut."""
        y = F.relu(self.bn1(self.conv1(x)))
        return F.relu(self.bn2(self.conv2(y)) + self.shortcut(x))


class ResNet20(nn.Module):
    """Three stages of 16, 32 and 64 channels for images of 32 x 32."""

    def __init__(self):
        super().__init__()
        self.conv1 = nn.Conv2d(3, 16, 3, padding=1, bias=False)
        self.bn1 = nn.BatchNorm2d(16)
        widths = (16, 16, 32, 64)
        for number in (1, 2, 3):
            inner, outer = widths[number - 1 : number + 1]
            first = BasicBlock(inner, outer, 1 if number == 1 else 2)
            stage = nn.Sequential(first, *(BasicBlock(outer, outer, 1) for _ in range(2)))
            setattr(self, f"layer{number}", stage)
        self.linear = nn.Linear(64, 10)

    def forward(self, x):
        """Logits."""
        x = F.relu(self.bn1(self.conv1(x)))
        x = self.layer3(self.layer2(self.layer1(x)))
        return self.linear(x.mean((2, 3)))


class Bottleneck(nn.Module):
    """1x1, 3x3 and 1x1, four times as wide at its end."""

    def __init__(self, inner, width, stride):
        super().__init__()
        outer = 4 * width
        self.conv1 = nn.Conv2d(inner, width, 1, bias=False)
        self.bn1 = nn.BatchNorm2d(width)
        self.conv2 = nn.Conv2d(width, width, 3, stride, padding=1, bias=False)
        self.bn2 = nn.BatchNorm2d(width)
        self.conv3 = nn.Conv2d(width, outer, 1, bias=False)
        self.bn3 = nn.BatchNorm2d(outer)
        self.downsample = nn.Identity()
        if inner != outer or stride != 1:
            projection = nn.Conv2d(inner, outer, 1, stride, bias=False)
            self.downsample = nn.Sequential(projection, nn.BatchNorm2d(outer))

    def forward(self, x):
        """The sum with its shortcut."""
        y = F.relu(self.bn1(self.conv1(x)))
        y = F.relu(self.bn2(self.conv2(y)))
        return F.relu(self.bn3(self.conv3(y)) + self.downsample(x))


class ResNet50(nn.Module):
    """Four stages of bottlenecks for images of 224 x 224."""

    def __init__(self):
        super().__init__()
        self.conv1 = nn.Conv2d(3, 64, 7, 2, padding=3, bias=False)
        self.bn1 = nn.BatchNorm2d(64)
        self.maxpool = nn.MaxPool2d(3, 2, padding=1)
        inner = 64
        for number, (width, blocks) in enumerate(((64, 3), (128, 4), (256, 6), (512, 3)), 1):
            stage = []
            for block in range(blocks):
                stage.append(Bottleneck(inner, width, 2 if number > 1 and block == 0 else 1))
                inner = 4 * width
            setattr(self, f"layer{number}", nn.Sequential(*stage))
        self.fc = nn.Linear(2048, 1000)

    def forward(self, x):
        """Logits."""
        x = self.maxpool(F.relu(self.bn1(self.conv1(x))))
        x = self.layer4(self.layer3(self.layer2(self.layer1(x))))
        return self.fc(x.mean((2, 3)))


def trained_resnet20():
    """ResNet-20 with the trained weights under GOSSAMER_DATA."""
    folder = settings.data_dir()
    if folder is None or not (folder / WEIGHTS).exists():
        sys.exit(f"set GOSSAMER_DATA to the folder that holds {WEIGHTS}.")
    model = ResNet20()
    # The file has no counters of batches, which inference does not need.
    missing, unexpected = model.load_state_dict(load_file(folder / WEIGHTS), strict=False)
    wrong = [name for name in missing if not name.endswith("num_batches_tracked")]
    if wrong or unexpected:
        sys.exit(f"{WEIGHTS}: missing {wrong}, unexpected {unexpected}.")
    return model.eval()


def random_resnet50(seed=0):
    """ResNet-50's shape with random weights and statistics, as far from trivial as trained ones."""
    torch.manual_seed(seed)
    model = ResNet50()
    for module in model.modules():
        if isinstance(module, nn.Conv2d):
            nn.init.kaiming_normal_(module.weight, mode="fan_out", nonlinearity="relu")
        elif isinstance(module, nn.BatchNorm2d):
            nn.init.uniform_(module.weight, 0.5, 1.0)
            nn.init.normal_(module.bias, std=0.1)
    # Statistics of its own activations: what a trained network has.
    model.train()
    with torch.no_grad():
        for module in model.modules():
            if isinstance(module, nn.BatchNorm2d):
                module.momentum = 1.0
        model(torch.randn(4, 3, 224, 224))
    return model.eval()
