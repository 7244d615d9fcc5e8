"""One training step of a pruned layer: dense, masked and compact, time and bytes side by side.

    python benchmarks/compact_step.py [--json]

Forward, backward and AdamW on one thread, the three forms in turn, minimum of many. Bytes are
measured by walking the storages of weights, gradients, optimizer state and positions. In mode
`jit` a compact layer computes the dense product: it saves memory, not arithmetic.
"""

import argparse
import copy
import itertools
import json
import os
import time

import torch
from torch import nn

import gossamer
from gossamer.ops.kernels import cpu_name

SHAPES = ((768, 768), (3072, 768))
SPARSITIES = (0.5, 0.8, 0.9, 0.95)
TOKENS = 1024


class Contender:
    """A model with its optimizer, stepped on the same data."""

    def __init__(self, model):
        self.model = model
        self.optimizer = torch.optim.AdamW(model.parameters(), 1e-3)
        self.best = float("inf")

    def step(self, x):
        """One timed optimizer step."""
        start = time.perf_counter()
        self.optimizer.zero_grad()
        self.model(x).square().mean().backward()
        self.optimizer.step()
        self.best = min(self.best, time.perf_counter() - start)

    def state_bytes(self):
        """Bytes per weight of everything a step keeps, counted once per storage."""
        tensors = list(self.model.parameters()) + list(self.model.buffers())
        tensors += [p.grad for p in self.model.parameters()]
        tensors += [
            v
            for state in self.optimizer.state.values()
            for v in state.values()
            if isinstance(v, torch.Tensor)
        ]
        storages = {t.untyped_storage().data_ptr(): t.untyped_storage().nbytes() for t in tensors}
        return sum(storages.values())


def main():
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--json", action="store_true")
    parser.add_argument("--rounds", type=int, default=12)
    arguments = parser.parse_args()
    torch.set_num_threads(1)
    cases = [measure(*case, arguments.rounds) for case in itertools.product(SHAPES, SPARSITIES)]
    if arguments.json:
        print(json.dumps({"cpu": cpu_name(), "load": os.getloadavg()[0], "cases": cases}, indent=1))
        return
    print(f"{cpu_name()}, {TOKENS} tokens, fp32 AdamW, load {os.getloadavg()[0]:.1f}")
    print("layer      sparsity | bytes/weight: dense  compact  16f+0.13 | ms: dense masked compact")
    for case in cases:
        rows, columns = case["shape"]
        print(
            f"{rows:4d}x{columns:<5d} {case['sparsity']:8.0%} | {case['dense_bytes']:19.2f}"
            f" {case['compact_bytes']:8.3f} {case['formula_bytes']:9.3f} | {case['dense_ms']:9.2f}"
            f" {case['masked_ms']:6.2f} {case['compact_ms']:7.2f}"
        )


def measure(shape, sparsity, rounds):
    torch.manual_seed(0)
    dense = nn.Sequential(nn.Linear(shape[1], shape[0], bias=False))
    masked = copy.deepcopy(dense)
    gossamer.sparsify(masked, sparsity=sparsity)
    compact = copy.deepcopy(masked)
    gossamer.compact(compact)
    contenders = [Contender(model) for model in (dense, masked, compact)]
    x = torch.randn(TOKENS, shape[1])
    for _ in range(rounds):
        for contender in contenders:
            contender.step(x)
    numel = shape[0] * shape[1]
    return {
        "shape": shape,
        "sparsity": sparsity,
        "dense_ms": contenders[0].best * 1e3,
        "masked_ms": contenders[1].best * 1e3,
        "compact_ms": contenders[2].best * 1e3,
        "dense_bytes": contenders[0].state_bytes() / numel,
        "compact_bytes": contenders[2].state_bytes() / numel,
        "formula_bytes": 16 * (1 - sparsity) + 0.13,
    }


if __name__ == "__main__":
    main()
