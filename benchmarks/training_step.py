"""One training step of a pruned layer, every way to do it side by side: time and bytes.

    python benchmarks/training_step.py [--json] [--tokens 1024] [--pattern unstructured]
        [--sparsity 0.8 0.9] [--shape 768x768] [--threads 1] [--rounds 15]

Contenders take turns, minimum of many: a dense layer in fp32 and under bf16 autocast, a masked one,
and a compact one in its three modes (backward.py has the products beside SparseProp). A step is
forward and backward with the gradients of input and weights, timed without and
with AdamW. Bytes are measured by walking the storages of weights, gradients, optimizer state and
positions. The time of a move to another mask of as many weights stands beside a step.
"""

import argparse
import contextlib
import copy
import itertools
import json
import os
import re
import sys
import time

import torch
from torch import nn

import gossamer
from gossamer.ops.kernels import active_kernels, cpu_name
from gossamer.ops.timing import duel

SHAPES = ("768x768", "3072x768", "768x3072", "1536x576")
SPARSITIES = (0.5, 0.8, 0.9, 0.95)
TARGET = {0.8: 2.0, 0.9: 3.5}  # over dense fp32, forward and backward


class Contender:
    """A model with its optimizer, stepped on the same data."""

    def __init__(self, model, autocast=False):
        self.model = model
        self.autocast = autocast
        # CPUs without bf16 instructions take seconds for what fp32 does in milliseconds.
        self.rounds_left = 1 if autocast else None
        self.optimizer = torch.optim.AdamW(model.parameters(), 1e-3)
        self.products = self.whole = float("inf")

    def step(self, x, grad):
        """One timed optimizer step."""
        if self.rounds_left == 0:
            return
        if self.rounds_left is not None:
            self.rounds_left -= 1
        self.optimizer.zero_grad()
        x.grad = None
        start = time.perf_counter()
        with torch.autocast("cpu", torch.bfloat16) if self.autocast else contextlib.nullcontext():
            y = self.model(x)
        y.backward(grad.to(y.dtype))
        middle = time.perf_counter()
        self.optimizer.step()
        self.products = min(self.products, middle - start)
        self.whole = min(self.whole, time.perf_counter() - start)

    def state_bytes(self):
        """Bytes of everything that outlives a step, counted once per storage."""
        tensors = [p.grad for p in self.model.parameters()]
        for module in self.model.modules():
            held = itertools.chain(
                vars(module).values(), module._parameters.values(), module._buffers.values()
            )
            tensors += [t for t in held if isinstance(t, torch.Tensor)]
        for state in self.optimizer.state.values():
            tensors += [t for t in state.values() if isinstance(t, torch.Tensor)]
        storages = {t.untyped_storage().data_ptr(): t.untyped_storage().nbytes() for t in tensors}
        return sum(storages.values())


def main():
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--json", action="store_true")
    parser.add_argument("--tokens", type=int, default=1024)
    parser.add_argument("--threads", type=int, default=1)
    parser.add_argument("--rounds", type=int, default=15)
    parser.add_argument("--pattern", default="unstructured", help="2:8, for one; fixes sparsity")
    parser.add_argument("--sparsity", type=float, nargs="+", default=SPARSITIES)
    parser.add_argument("--shape", nargs="+", default=SHAPES, help="out x in")
    arguments = parser.parse_args()
    torch.set_num_threads(arguments.threads)
    fixed = re.fullmatch(r"(\d+):(\d+)", arguments.pattern)
    sparsities = [1 - int(fixed[1]) / int(fixed[2])] if fixed else arguments.sparsity
    cases = []
    for sparsity, text in itertools.product(sparsities, arguments.shape):
        shape = tuple(int(side) for side in text.split("x"))
        cases.append(measure(shape, sparsity, arguments))
        print(line_of(cases[-1]), file=sys.stderr, flush=True)
    summary = [summarise(sparsity, cases) for sparsity in sparsities]
    document = {
        "cpu": cpu_name(),
        "kernels": active_kernels(),
        "torch": torch.__version__,
        "threads": arguments.threads,
        "tokens": arguments.tokens,
        "pattern": arguments.pattern,
        "load": os.getloadavg()[0],
        "cases": cases,
        "summary": summary,
    }
    if arguments.json:
        print(json.dumps(document, indent=1))
        return
    print(
        f"\n{document['cpu']}, {document['kernels']}, {arguments.threads} thread(s),"
        f" {arguments.tokens} tokens, {arguments.pattern}, load {document['load']:.1f}"
    )
    for case in cases:
        print(line_of(case))
    print("\nkernel, forward and backward, over dense fp32: worst / best of the shapes, target")
    for row in summary:
        print(f"{row['sparsity']:8.1%} {row['worst']:6.2f} {row['best']:6.2f}  {row['target']}")


def measure(shape, sparsity, arguments):
    torch.manual_seed(0)
    dense = nn.Sequential(nn.Linear(shape[1], shape[0], bias=False))
    masked = copy.deepcopy(dense)
    gossamer.sparsify(masked, sparsity=sparsity, pattern=arguments.pattern)
    contenders = {
        "dense": Contender(dense),
        "dense bf16": Contender(copy.deepcopy(dense), autocast=True),
        "masked": Contender(masked),
    }
    for mode in ("jit", "resident", "kernel"):
        model = copy.deepcopy(masked)
        gossamer.compact(model, mode=mode)
        contenders[mode] = Contender(model)
    x = torch.randn(arguments.tokens, shape[1], requires_grad=True)
    grad = torch.randn(arguments.tokens, shape[0])
    for _ in range(arguments.rounds):
        for contender in contenders.values():
            contender.step(x, grad)
    numel, kept = shape[0] * shape[1], contenders["kernel"].model[0].nnz
    # Before remap drops the gradients.
    held = {name: c.state_bytes() / numel for name, c in contenders.items()}
    return {
        "shape": shape,
        "sparsity": 1 - kept / numel,
        "products_ms": {name: c.products * 1e3 for name, c in contenders.items()},
        "step_ms": {name: c.whole * 1e3 for name, c in contenders.items()},
        "remap_ms": remap_time(contenders["kernel"], x, grad) / 1e3,
        "bytes_per_weight": held,
        "bytes_allowed": 16 * kept / numel + 0.3,
        "kept_gflops": 6e-9 * kept * arguments.tokens / contenders["kernel"].products,
    }


def remap_time(contender, x, grad):
    """Microseconds of a move to a mask of as many weights: all of them one row further down."""
    layer, optimizer = contender.model[0], contender.optimizer
    masks = itertools.cycle([layer.mask().roll(1, 0), layer.mask()])
    return duel(
        lambda: contender.step(x, grad),
        lambda: layer.remap(next(masks), optimizer),
        budget_seconds=0.2,
    ).second_us


def line_of(case):
    rows, columns = case["shape"]
    times, held = case["products_ms"], case["bytes_per_weight"]
    ratios = "  ".join(f"{name} {times['dense'] / ms:.2f}x" for name, ms in times.items())
    return (
        f"{case['sparsity']:.1%} {rows}x{columns}: dense {times['dense']:.1f} ms  {ratios}"
        f"  | with AdamW: dense {case['step_ms']['dense']:.1f} ms, kernel"
        f" {case['step_ms']['kernel']:.2f} ms, remap {case['remap_ms']:.2f} ms"
        f"  | bytes/weight: dense {held['dense']:.2f}, kernel {held['kernel']:.3f}"
        f" (allowed {case['bytes_allowed']:.3f})  | {case['kept_gflops']:.1f} GFLOP/s kept"
    )


def summarise(sparsity, cases):
    rows = [case for case in cases if abs(case["sparsity"] - sparsity) < 0.02]
    ratios = [case["products_ms"]["dense"] / case["products_ms"]["kernel"] for case in rows]
    target = TARGET.get(round(sparsity, 3))
    verdict = "" if target is None else f"{target} {'ok' if min(ratios) >= target else 'missed'}"
    return {
        "sparsity": sparsity,
        "worst": min(ratios),
        "best": max(ratios),
        "target": verdict,
        "bytes_ok": all(c["bytes_per_weight"]["kernel"] <= c["bytes_allowed"] for c in rows),
    }


if __name__ == "__main__":
    main()
