# SPDX-License-Identifier: Apache-2.0
"""A small model of clicks: tables of several widths, bags of several ids, a dense top."""

import torch
from torch import nn
from torch.nn.functional import binary_cross_entropy_with_logits

HEIGHTS, WIDTHS, IDS = (60, 7, 200), (4, 5, 4), 3


class Clicks(nn.Module):
    """Three tables, 3 ids of each per sample, summed; two linear layers."""

    def __init__(self, *, sparse: bool = True) -> None:
        super().__init__()
        self.tables = nn.ModuleList(
            nn.EmbeddingBag(height, width, mode="sum", sparse=sparse)
            for height, width in zip(HEIGHTS, WIDTHS, strict=True)
        )
        self.inner, self.top = nn.Linear(sum(WIDTHS), 8), nn.Linear(8, 1)

    def forward(self, ids: torch.Tensor) -> torch.Tensor:
        parts = ids.split(IDS, 1)
        pooled = [table(part) for table, part in zip(self.tables, parts, strict=True)]
        return self.top(self.inner(torch.cat(pooled, 1)).relu())[:, 0]


def build(**settings) -> Clicks:
    torch.manual_seed(0)
    return Clicks(**settings)


def batch(number: int, size: int = 8) -> torch.Tensor:
    """Ids of all tables, most of them small, and a label that follows from them."""
    generator = torch.Generator().manual_seed(number)
    draws = [
        (height * torch.rand(size, IDS, generator=generator).pow(3)).long() for height in HEIGHTS
    ]
    return torch.cat([*draws, (draws[0].sum(1, keepdim=True) % 2)], 1)


def loss(model: nn.Module, samples: torch.Tensor) -> torch.Tensor:
    return binary_cross_entropy_with_logits(model(samples[:, :-1]), samples[:, -1].float())


class NextToken(nn.Module):
    """For `gossamer train --model`: a table of tokens and a layer on it."""

    context = 8

    def __init__(self) -> None:
        super().__init__()
        self.table, self.top = nn.Embedding(256, 16, sparse=True), nn.Linear(16, 256)

    def forward(self, ids: torch.Tensor) -> torch.Tensor:
        return self.top(self.table(ids))


def build_next_token() -> NextToken:
    return NextToken()
