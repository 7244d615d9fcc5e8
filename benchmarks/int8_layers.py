# SPDX-License-Identifier: Apache-2.0
"""int8 layers from one token to a thousand, beside the best dense int8 of torch.

    python benchmarks/int8_layers.py [--shape 3072x768 ...] [--tokens 1 2 ...] [--sparsity 0 0.5]
        [--pattern 2:4] [--quick] [--json [FILE]]

All kernels of a case and torch's dense int8 (its dynamic layers, and oneDNN and FBGEMM called by
gossamer without their overhead) run in turn, minimum of many. `x dense` is over the fastest of
those; `of ceiling` is what the kernel's instruction mix reaches without ends of rows.
"""

import torch

from gossamer.running.bench.linear import mix_of, sample_weight
from support import contenders
from support.options import give, machine, parser, progress, shape

_SHAPES = ((768, 768), (3072, 768), (768, 3072), (1000, 777), (2048, 4096), (2048, 8192))
_TOKENS = (1, 2, 4, 7, 16, 24, 37, 64, 65, 128, 513, 1024)
_SPARSITIES = (0.0, 0.5, 0.8, 0.9)
_TORCH = ("dense/onednn-int8", "dense/fbgemm-int8", "torch dense int8")


def main():
    options = parser(__doc__.splitlines()[0])
    options.add_argument("--shape", type=shape, nargs="+", default=_SHAPES)
    options.add_argument("--tokens", type=int, nargs="+", default=_TOKENS)
    options.add_argument("--sparsity", type=float, nargs="+", default=_SPARSITIES)
    options.add_argument("--pattern", default="unstructured")
    options.add_argument("--without", nargs="*", default=[], help="kernels to leave out")
    given = options.parse_args()
    given.seconds = given.seconds or (0.1 if given.quick else 0.5)
    torch.set_num_threads(given.threads)
    before, rows = machine(), []
    for layer in given.shape:
        for tokens in given.tokens:
            for sparsity in given.sparsity:
                rows.append(measure(layer, tokens, sparsity, given))
                progress(line(rows[-1]))
    document = {"machine": before, "rows": rows, "load_at_end": machine()["load"]}
    give(given, document, table(rows), f"Load {before['load']} to {document['load_at_end']}.")


def measure(layer, tokens, sparsity, given):
    w_RK, sparse = sample_weight(layer, sparsity, given.pattern if sparsity else "unstructured")
    x_TK = torch.randn(tokens, layer[1], generator=torch.Generator().manual_seed(1))
    runs = contenders.gossamer_contenders(w_RK, sparse, x_TK, "int8")
    dynamic = contenders.low_precision_contenders(w_RK, x_TK)
    runs = {name: run for name, run in runs.items() if name not in given.without}
    runs |= {name: run for name, run in dynamic.items() if name in _TORCH}
    mixes = {mix_of(name) for name in runs if name not in _TORCH}
    best_us, rates = contenders.run_race(runs, mixes, given.seconds, 3)
    dense = min((us, name) for name, us in best_us.items() if name in _TORCH)
    ours = min((us, name) for name, us in best_us.items() if name not in _TORCH)
    kept = 2e-3 * tokens * (w_RK.numel() if ours[1] == "dense/int8" else sparse.nnz) / ours[0]
    return {
        "shape": f"{layer[0]}x{layer[1]}", "tokens": tokens, "sparsity": sparsity,
        "pattern": str(sparse.pattern), "kernel": ours[1], "us": ours[0], "dense": dense[1],
        "dense_us": dense[0], "ratio": dense[0] / ours[0], "ceiling": kept / rates[mix_of(ours[1])],
        "all_us": best_us,
    }  # fmt: skip


def line(row):
    return (
        f"| {row['shape']} | {row['tokens']} | {row['sparsity']:.0%} | {row['us']:.1f}"
        f" | {row['kernel']} | {row['dense_us']:.1f} | {row['dense']} | {row['ratio']:.2f}"
        f" | {row['ceiling']:.0%} |"
    )


def table(rows):
    head = "| shape | tokens | zeros | us | kernel | dense us | dense | x dense | of ceiling |"
    return "\n".join([head, "|---|---|---|---|---|---|---|---|---|", *map(line, rows)])


if __name__ == "__main__":
    main()
