"""Every pattern, every kernel and the other engines in one run, and how near each is to its limit.

    python benchmarks/kernels.py [--quick] [--json [FILE]] [--html FILE] [--shape 768x768 ...]

All contenders of one sparsity run in turns, minimum of many; each result is compared with the
dense one first. A line gives the worst and the median speed-up over torch dense fp32 over shapes
and token counts, the rate of kept work, and its part of the ceiling of the kernel's instruction
mix. It meets its goal on the speed-up or on 85 % of the ceiling, in every case. For a weight with
several kernels the fastest one counts, as in `gossamer.compile`.
"""

import itertools
import math
from pathlib import Path

import torch

from gossamer.cli.shell import table
from gossamer.ops.kernels import active_kernels
from gossamer.report import write_html
from gossamer.running.bench import BenchRow
from gossamer.running.bench.linear import mix_of, sample_weight
from support import contenders
from support.cases import COLUMNS, INT8, PEER, SHAPES, TOKENS, UNSTRUCTURED
from support.options import give, machine, parser, progress, shape
from support.peer import Peers
from support.roofline import bandwidth_gbs, roofline_page
from support.summary import Cell, claims_of, lines_of

QUICK_SHAPES, QUICK_TOKENS = ((768, 768), (1536, 576)), (128,)
_ROUNDS = 6


def main():
    options = parser(__doc__.splitlines()[0])
    options.add_argument("--html", type=Path, metavar="FILE", help="a page with the roofline")
    options.add_argument(
        "--shape", type=shape, action="append", help="outputs x inputs, repeatable"
    )
    options.add_argument("--tokens", type=int, action="append", help="repeatable")
    arguments = options.parse_args()
    torch.set_num_threads(arguments.threads)
    shapes = arguments.shape or (QUICK_SHAPES if arguments.quick else SHAPES)
    tokens = arguments.tokens or (QUICK_TOKENS if arguments.quick else TOKENS)
    seconds = arguments.seconds or (3.0 if arguments.quick else 8.0)
    before = machine()
    cells, ceilings = [], {}
    with Peers(arguments.peers, arguments.threads) as peers:
        for (layer_shape, count), column in itertools.product(
            itertools.product(shapes, tokens), COLUMNS
        ):
            measured, rates = measure(layer_shape, count, column, peers, seconds)
            cells += measured
            ceilings |= {mix: max(rate, ceilings.get(mix, 0)) for mix, rate in rates.items()}
            best = max((cell for cell in measured if cell.group != PEER), key=lambda c: c.row.ratio)
            progress(
                f"{layer_shape[0]}x{layer_shape[1]}, {count} tokens, {column.title}: best"
                f" {best.row.ratio:.2f}x ({best.row.pattern}, {best.row.kernel})"
            )
    lines, claims = lines_of(cells), claims_of(cells)
    document = {
        "machine": before,
        "ceilings_gflops": ceilings,
        "bandwidth_gbs": bandwidth_gbs(),
        "lines": [line.to_dict() for line in lines],
        "claims": [
            {**vars(claim), "worst": worst, "pattern": pattern} for claim, worst, pattern in claims
        ],
        "cells": [cell.to_dict() for cell in cells],
    }
    if arguments.html:
        write_html(roofline_page(document, cells, lines), arguments.html)
    give(arguments, document, line_table(lines), *claim_table(claims))


def measure(layer_shape, tokens, column, peers, seconds):
    """The race of one sparsity on one shape and token count: cells, and the ceilings of the run."""
    x_TK = torch.randn(tokens, layer_shape[1], generator=torch.Generator().manual_seed(1))
    weights = {
        (group, text): sample_weight(layer_shape, column.sparsity, text)
        for group, texts in column.patterns.items()
        for text in texts
    }
    formats = {text: sparse.format for (_, text), (_, sparse) in weights.items()}
    watches, zeros = {}, {}
    for (group, text), (w_RK, sparse) in weights.items():
        for precision, shown_group in (("fp32", group), ("int8", INT8)):
            found = contenders.gossamer_contenders(w_RK, sparse, x_TK, precision)
            watches |= {(shown_group, text, kernel): watch for kernel, watch in found.items()}
            zeros[shown_group, text] = 1 - sparse.nnz / w_RK.numel()
    mixes = sorted({"fma", *(mix_of(kernel) for _, _, kernel in watches)})
    w_RK, sparse = next(iter(weights.values()))
    others = contenders.dense_contender(w_RK, x_TK)
    if UNSTRUCTURED in column.patterns:
        others |= contenders.low_precision_contenders(w_RK, x_TK)
        others |= contenders.csr_contender(w_RK, x_TK)
        others |= contenders.peer_contenders(peers, w_RK, x_TK)
    for name, watch in others.items():
        watches[PEER, name, name] = watch
        zeros[PEER, name] = 0.0 if "dense" in name else 1 - sparse.nnz / w_RK.numel()
    with torch.inference_mode():
        times, rates = contenders.run_race(watches, mixes, seconds, _ROUNDS)

    fastest = {}
    for (group, text, kernel), us in times.items():
        if us < fastest.get((group, text), (math.inf,))[0]:
            fastest[group, text] = us, kernel
    cells = [
        Cell(
            group,
            column.title,
            BenchRow(
                rows=layer_shape[0],
                columns=layer_shape[1],
                tokens=tokens,
                sparsity=zeros[group, text],
                pattern=text,
                format="" if group == PEER else formats[text],
                kernel=kernel,
                kernels=active_kernels(),
                threads=torch.get_num_threads(),
                dense_us=times[PEER, contenders.DENSE, contenders.DENSE],
                sparse_us=us,
                ceiling_gflops=math.nan if group == PEER else rates[mix_of(kernel)],
            ),
        )
        for (group, text), (us, kernel) in fastest.items()
    ]
    return cells, rates


def line_table(lines):
    shown = table(
        *("sparsity", "group", "pattern", "kernel", ">zeros", ">worst", ">median", ">GFLOP/s"),
        *(">of ceiling: worst", ">median", ">goal", "verdict"),
    )
    for line in lines:
        is_peer = line.group == PEER
        shown.add_row(
            line.column,
            line.group,
            line.pattern,
            "" if is_peer else line.kernels,
            f"{line.sparsity:.1%}",
            f"{line.worst:.2f}x",
            f"{line.median:.2f}x",
            f"{line.gflops:.0f}",
            "" if is_peer else f"{line.worst_ceiling:.0%}",
            "" if is_peer else f"{line.median_ceiling:.0%}",
            "" if line.goal is None else f"{line.goal:g}",
            line.verdict,
        )
    return shown


def claim_table(claims):
    if not claims:
        return ()
    shown = table("against", "sparsity", "gossamer", ">worst", ">goal", "verdict")
    for claim, worst, pattern in claims:
        verdict = "met" if worst >= claim.goal else "missed"
        shown.add_row(
            claim.peer,
            claim.column,
            f"{claim.group} ({pattern})",
            f"{worst:.2f}x",
            f"{claim.goal:g}",
            verdict,
        )
    return ("", shown)


if __name__ == "__main__":
    main()
