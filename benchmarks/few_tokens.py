"""Few tokens, cold weights: sparse layers against torch's dense ones of the same value type.

    python benchmarks/few_tokens.py [--json] [--tokens 1] [--dtypes fp32 bf16] [--shapes 768x768]

Every call takes the next of many copies of its weight, 64 MiB and more in all, so that both sides
stream from memory. Opponents: fp32 `F.linear`, bf16 the better of `F.linear` and `mv`, int8
`_weight_int8pack_mm`, int4 `_weight_int4pack_mm_for_cpu`, the last two with bf16 activations, which
is where torch is fast. `time` and `bytes` are ratios dense / sparse; `t/b` is how much of the saved
bytes became saved time.
"""

import argparse
import functools
import itertools
import json
import os
import sys

import torch
import torch.nn.functional as F

from gossamer.formats import SparseMatrix
from gossamer.ops.kernels import active_kernels, cpu_name
from gossamer.ops.linear.few import DTYPES, pack_few
from gossamer.ops.timing import duel
from gossamer.patterns import parse_pattern

SHAPES = ("576x576", "1536x576", "768x768", "3072x768", "4096x4096")
CASES = (
    ("unstructured", 0.5, "bitmask"),
    ("unstructured", 0.5, "indexed"),
    ("unstructured", 0.7, "bitmask"),
    ("unstructured", 0.7, "indexed"),
    ("unstructured", 0.8, "bitmask"),
    ("unstructured", 0.8, "indexed"),
    ("unstructured", 0.9, "bitmask"),
    ("unstructured", 0.9, "indexed"),
    ("2:4", 0.5, "nm"),
    ("2:8", 0.75, "nm"),
    ("4:16", 0.75, "nm"),
    ("2:16", 0.875, "nm"),
    ("4:32", 0.875, "nm"),
)
GOAL = {"fp32": 0.85, "bf16": 0.85, "int8": 0.6}  # of the byte ratio, 1 token; int4 has none
VERDICT = {True: "yes", False: "no", None: "-"}
COLD_BYTES = 72 << 20
MAX_COPIES = 3000


def next_of(copies, run):
    """`run` on the next copy, over and over."""
    order = itertools.cycle(copies)
    return lambda: run(next(order))


def num_copies(nbytes):
    return min(MAX_COPIES, COLD_BYTES // nbytes + 2)


def dense_runs(dtype, weight_RK, x_TK):
    """(bytes of the weight, [callables]) of torch's dense layers of this type."""
    if dtype == "fp32":
        nbytes, runs = weight_RK.numel() * 4, [functools.partial(F.linear, x_TK)]
    elif dtype == "bf16":
        x = x_TK.bfloat16()
        weight_RK = weight_RK.bfloat16()
        nbytes, runs = weight_RK.numel() * 2, [functools.partial(F.linear, x)]
        if len(x) == 1:
            runs.append(lambda w: torch.mv(w, x[0]))
    elif dtype == "int8":
        x, scale = x_TK.bfloat16(), torch.ones(len(weight_RK), dtype=torch.bfloat16)
        weight_RK = (weight_RK * 30).clamp(-127, 127).to(torch.int8)
        nbytes = weight_RK.numel() + scale.numel() * 2
        runs = [lambda w: torch._weight_int8pack_mm(x, w, scale)]
    else:
        x, columns = x_TK.bfloat16(), weight_RK.shape[1]
        scale = torch.ones(columns // 32, len(weight_RK), 2, dtype=torch.bfloat16)
        levels = (weight_RK * 2 + 8).clamp(0, 15).to(torch.int32)
        weight_RK = torch.ops.aten._convert_weight_to_int4pack_for_cpu(levels, 1)
        nbytes = weight_RK.numel() + scale.numel() * 2
        runs = [lambda w: torch.ops.aten._weight_int4pack_mm_for_cpu(x, w, 32, scale)]
    copies = [weight_RK.clone() for _ in range(num_copies(nbytes))]
    return nbytes, [next_of(copies, run) for run in runs]


def sparse_run(weight_RK, pattern, sparsity, form, dtype, x_TK, bare):
    """(packed weight, callable) of one form; `bare` calls the kernel with a y that exists."""
    chosen = parse_pattern(pattern)
    density = 1 - sparsity if chosen.fixed_density is None else None
    mask_RK = chosen.project(weight_RK.abs(), density)
    group = (chosen.num_kept, chosen.group) if form == "nm" else None
    matrix = SparseMatrix.from_dense(weight_RK, mask_RK)
    first = pack_few(matrix, form=form, dtype=dtype, group=group)
    copies = [first] + [
        pack_few(matrix, form=form, dtype=dtype, group=group)
        for _ in range(num_copies(first.nbytes) - 1)
    ]
    if not bare:
        return first, next_of(copies, lambda packed: packed(x_TK))
    y_TR = x_TK.new_empty(len(x_TK), len(weight_RK))

    def run(native):  # holds x and y: the kernel sees their addresses only
        size = len(x_TK), x_TK.shape[1]
        native.run(x_TK.data_ptr(), *size, y_TR.data_ptr(), y_TR.shape[1], 0, 0)

    return first, next_of([copy._native for copy in copies], run)


def bench(shape, tokens, dtype, cases, seconds, bare):
    generator = torch.Generator().manual_seed(0)
    rows, columns = map(int, shape.split("x"))
    weight_RK = torch.randn(rows, columns, generator=generator)
    x_TK = torch.randn(tokens, columns, generator=generator)
    dense_bytes, dense = dense_runs(dtype, weight_RK, x_TK)
    if len(dense) > 1:
        trial = duel(*dense, budget_seconds=seconds, max_rounds=10_000)
        dense = dense[:1] if trial.ratio < 1 else dense[1:]
    for pattern, sparsity, form in cases:
        packed, sparse = sparse_run(weight_RK, pattern, sparsity, form, dtype, x_TK, bare)
        best = duel(dense[0], sparse, budget_seconds=seconds, max_rounds=10_000)
        byte_ratio = dense_bytes / packed.nbytes
        yield {
            "dtype": dtype,
            "shape": shape,
            "tokens": tokens,
            "pattern": pattern,
            "sparsity": sparsity,
            "form": form,
            "dense_us": round(best.first_us, 2),
            "sparse_us": round(best.second_us, 2),
            "time_ratio": round(best.ratio, 3),
            "byte_ratio": round(byte_ratio, 3),
            "time_over_bytes": round(best.ratio / byte_ratio, 3),
            "sparse_gb_per_s": round(packed.nbytes / best.second_us * 1e-3, 2),
            "kept_gflops": round(2e-3 * packed.nnz * tokens / best.second_us, 2),
            "reached": best.ratio >= GOAL[dtype] * byte_ratio if dtype in GOAL else None,
        }


def main():
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--json", action="store_true")
    parser.add_argument("--tokens", type=int, default=1)
    parser.add_argument("--threads", type=int, default=1)
    parser.add_argument("--seconds", type=float, default=0.3, help="time per case")
    parser.add_argument(
        "--bare", action="store_true", help="the sparse kernel alone, without its call from Python"
    )
    parser.add_argument("--shapes", nargs="+", default=SHAPES, metavar="OUTxIN")
    parser.add_argument("--dtypes", nargs="+", default=DTYPES, choices=DTYPES)
    parser.add_argument("--forms", nargs="+", default=("bitmask", "indexed", "nm"))
    arguments = parser.parse_args()
    torch.set_num_threads(arguments.threads)
    cases = [case for case in CASES if case[2] in arguments.forms]
    rows = []
    header = (
        "dtype shape     tokens pattern      zeros form    dense us sparse us   time  bytes   t/b"
        "  GB/s  goal"
    )
    print(header, file=sys.stderr)
    with torch.inference_mode():
        for dtype, shape in itertools.product(arguments.dtypes, arguments.shapes):
            options = (arguments.tokens, dtype, cases, arguments.seconds, arguments.bare)
            for row in bench(shape, *options):
                rows.append(row)
                print(
                    f"{dtype:5s} {shape:9s} {row['tokens']:6d} {row['pattern']:12s}"
                    f" {row['sparsity']:5.1%} {row['form']:7s} {row['dense_us']:8.1f}"
                    f" {row['sparse_us']:9.1f} {row['time_ratio']:6.2f} {row['byte_ratio']:6.2f}"
                    f" {row['time_over_bytes']:5.2f} {row['sparse_gb_per_s']:5.1f}"
                    f"  {VERDICT[row['reached']]}",
                    file=sys.stderr,
                    flush=True,
                )
    document = {
        "cpu": cpu_name(),
        "kernels": active_kernels(),
        "torch": torch.__version__,
        "threads": arguments.threads,
        "bare": arguments.bare,
        "load": os.getloadavg()[0],
        "rows": rows,
    }
    if arguments.json:
        print(json.dumps(document, indent=1))
        return
    print(f"\n{document['cpu']}, {document['kernels']}, {arguments.threads} thread(s)")
    print("dtype form    zeros   worst t/b  median   best  reached")
    ordered = sorted(rows, key=lambda r: (DTYPES.index(r["dtype"]), r["form"], r["sparsity"]))
    for key, found in itertools.groupby(ordered, lambda r: (r["dtype"], r["form"], r["sparsity"])):
        group = sorted(found, key=lambda r: r["time_over_bytes"])
        shares = [r["time_over_bytes"] for r in group]
        print(
            f"{key[0]:5s} {key[1]:7s} {key[2]:5.1%} {shares[0]:11.2f}"
            f" {shares[len(shares) // 2]:7.2f} {shares[-1]:6.2f}"
            f"  {sum(bool(r['reached']) for r in group)} of {len(group)}"
        )


if __name__ == "__main__":
    main()
