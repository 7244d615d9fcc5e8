# SPDX-License-Identifier: Apache-2.0
"""A model of bytes trained on windows of 16,384 tokens, on a laptop's CPU.

python examples/long_sequences.py [FILE] [--steps 3] [--tokens 16384] [--pattern TEXT]

Without a file it learns this package's own sources. Attention costs what its pattern keeps: the
default looks at the last 256 bytes, and at 64 more at the beginning.
"""

import argparse
import time
from pathlib import Path

import torch
import torch.nn.functional as F
from torch import nn

import gossamer
from gossamer.nn.attention import SparseAttention
from gossamer.patterns.attention import parse_attention


class Block(nn.Module):
    """Attention and a feed-forward part, each added to its input."""

    def __init__(self, width, heads, pattern):
        super().__init__()
        self.norms = nn.ModuleList([nn.LayerNorm(width), nn.LayerNorm(width)])
        self.attention = SparseAttention(
            width, heads, pattern, causal=True, alibi=True, batch_first=True
        )
        self.inner = nn.Sequential(
            nn.Linear(width, 4 * width), nn.GELU(), nn.Linear(4 * width, width)
        )

    def forward(self, x):
        x = x + self.attention(self.norms[0](x))[0]
        return x + self.inner(self.norms[1](x))


def model_of(pattern, width=64, heads=2, layers=2):
    """Bytes to logits of the next byte; positions are in the biases of ALiBi."""
    blocks = [Block(width, heads, pattern) for _ in range(layers)]
    return nn.Sequential(
        nn.Embedding(256, width), *blocks, nn.LayerNorm(width), nn.Linear(width, 256)
    )


def text_of(path):
    """The bytes of a file, or of this package's sources."""
    if path:
        return Path(path).read_bytes()
    sources = sorted(Path(gossamer.__file__).parent.rglob("*.py"))
    return b"".join(source.read_bytes() for source in sources)


def main(arguments=None):
    parser = argparse.ArgumentParser()
    parser.add_argument("file", nargs="?")
    parser.add_argument("--steps", type=int, default=3)
    parser.add_argument("--tokens", type=int, default=16384)
    parser.add_argument("--pattern", default="sinks:64+window:256")
    asked = parser.parse_args(arguments)
    data = torch.frombuffer(bytearray(text_of(asked.file)), dtype=torch.uint8).long()
    blocks = parse_attention(asked.pattern).blocks(asked.tokens, causal=True)
    print(f"{asked.pattern}: {blocks.density:.1%} of {asked.tokens}^2 pairs")
    torch.manual_seed(0)
    model = model_of(asked.pattern)
    optimizer = torch.optim.AdamW(model.parameters(), lr=3e-3)
    for step in range(asked.steps):
        start = int(torch.randint(0, len(data) - asked.tokens - 1, ()))
        window = data[start : start + asked.tokens + 1]
        began = time.perf_counter()
        loss = F.cross_entropy(model(window[None, :-1])[0], window[1:])
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        bits = loss.item() / 0.6931
        print(f"step {step + 1}: {bits:.2f} bits per byte, {time.perf_counter() - began:.1f} s")


if __name__ == "__main__":
    main()
