"""Sparse int8 layers against torch's dense int8 and fp32: one interleaved run, minimum of many.

    python benchmarks/int8.py [--seconds 0.4] [--tokens 128 1024]

Dense int8 is torch's dynamic quantisation with the better of its engines. Sparse int8 is the panel
kernel on unstructured masks and the quad kernel on 1x4 and 4x4 blocks, with activations quantised
inside the call on all sides.
"""

import argparse
import time
import warnings

import torch
import torch.nn.functional as F

from gossamer.formats.bits import pack_bits
from gossamer.ops import _native
from gossamer.ops.int8 import pack_int8
from gossamer.ops.kernels import active_kernels, cpu_name
from gossamer.patterns import parse_pattern

SHAPES = ((768, 768), (3072, 768), (768, 3072), (1536, 576))
CASES = (("unstructured", "panel"), ("block:1x4", "quad"), ("block:4x4", "quad"))
TARGET_INT8 = {0.5: 1.3, 0.8: 2.5, 0.9: 4.0, 0.95: 4.0}
ENGINES = ("fbgemm", "onednn")


def fastest(contenders, seconds):
    best = dict.fromkeys(contenders, float("inf"))
    for run in contenders.values():
        run()
    start = time.perf_counter()
    while time.perf_counter() - start < seconds:
        for name, run in contenders.items():
            t0 = time.perf_counter()
            run()
            best[name] = min(best[name], time.perf_counter() - t0)
    return best


def ceiling(mix):
    """Best of many short runs, GOP/s."""
    rates = []
    for _ in range(40):
        t0 = time.perf_counter()
        operations = _native.run_ceiling(active_kernels(), mix, 200)
        rates.append(operations / (time.perf_counter() - t0) / 1e9)
    return max(rates)


def dense_int8(linear, engine):
    torch.backends.quantized.engine = engine
    quantised = torch.ao.quantization.quantize_dynamic(
        torch.nn.Sequential(linear), {torch.nn.Linear}, torch.qint8
    )

    def run(x):
        torch.backends.quantized.engine = engine
        return quantised(x)

    return run


def bench(shape, tokens, sparsity, seconds, ceilings):
    linear, x = torch.nn.Linear(shape[1], shape[0]), torch.randn(tokens, shape[1])
    weight, bias = linear.weight.detach(), linear.bias.detach()
    contenders = {"fp32": lambda: F.linear(x, weight, bias)}
    for engine in ENGINES:
        quantised = dense_int8(linear, engine)
        contenders[engine] = lambda quantised=quantised: quantised(x)
    for pattern, layout in CASES:
        mask = parse_pattern(pattern).project(weight.abs(), 1 - sparsity)
        layer = pack_int8(weight[mask], pack_bits(mask), shape, layout)
        contenders[pattern] = lambda layer=layer: layer(x, bias)
    best = fastest(contenders, seconds)
    int8 = min(best[engine] for engine in ENGINES)
    fp32 = best["fp32"]
    line = (
        f"{sparsity:.0%} {shape[0]}x{shape[1]} {tokens} tokens: dense int8 {fp32 / int8:.2f}x fp32"
    )
    over_int8 = {}
    for pattern, layout in CASES:
        rate = 2e-9 * shape[0] * shape[1] * tokens * (1 - sparsity) / best[pattern]
        over_int8[pattern] = int8 / best[pattern]
        line += (
            f" | {pattern} {fp32 / best[pattern]:.2f}x fp32, {over_int8[pattern]:.2f}x int8,"
            f" {rate:.0f} GOP/s ({rate / ceilings[layout]:.0%})"
        )
    print(line, flush=True)
    return over_int8


def main():
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--seconds", type=float, default=0.4, help="time per case")
    parser.add_argument("--tokens", type=int, nargs="+", default=[128, 1024])
    arguments = parser.parse_args()
    warnings.simplefilter("ignore")
    torch.set_num_threads(1)
    torch.manual_seed(0)
    ceilings = {layout: ceiling(f"int8_{layout}") for layout in ("panel", "quad")}
    print(f"{cpu_name()}, {active_kernels()} kernels, torch {torch.__version__}, 1 thread")
    print("ceilings, GOP/s:", {name: round(rate) for name, rate in ceilings.items()})
    with torch.inference_mode():
        for sparsity, target in TARGET_INT8.items():
            rows = [
                bench(shape, tokens, sparsity, arguments.seconds, ceilings)
                for shape in SHAPES
                for tokens in arguments.tokens
            ]
            worst = {pattern: min(row[pattern] for row in rows) for pattern, _ in CASES}
            text = ", ".join(f"{pattern} {ratio:.2f}" for pattern, ratio in worst.items())
            print(f"{sparsity:.0%} over dense int8, worst case: {text} (target {target})")


if __name__ == "__main__":
    main()
