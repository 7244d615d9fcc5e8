# SPDX-License-Identifier: Apache-2.0
"""`gossamer bench`: layers and whole encoders, timed against dense ones and other engines."""

import re
from typing import Any

from click import BadParameter, option

from gossamer.cli.bench.model import bench_model
from gossamer.cli.options import POSITIVE, SPARSITY
from gossamer.cli.shell import CommandGroup, Output, gossamer_command, table

_EXAMPLES = """
gossamer bench linear
gossamer bench linear --shape 768x768 --shape 3072x768 --tokens 128 --sparsity 0.9
gossamer bench linear --pattern 2:4 --threads 2 --json
"""


def parse_shape(value: Any) -> tuple[int, int]:
    """`768x3072` as (outputs, inputs)."""
    if isinstance(value, tuple):
        return value
    match = re.fullmatch(r"(\d+)x(\d+)", value)
    if match is None or "0" in match.groups():
        raise BadParameter(f"{value!r} is no shape; expected outputs x inputs, as in 768x3072.")
    return int(match[1]), int(match[2])


@gossamer_command("Linear layers.", _EXAMPLES)
@option(
    "--shape",
    "shapes",
    type=parse_shape,
    metavar="OUTXIN",
    multiple=True,
    default=((768, 768), (3072, 768)),
    show_default="768x768, 3072x768",
    help="Outputs x inputs of the layer; may be repeated.",
)
@option(
    "--tokens",
    type=POSITIVE,
    multiple=True,
    default=(128,),
    help="Rows of the activation; may be repeated.",
)
@option(
    "--sparsity",
    "sparsities",
    type=SPARSITY,
    multiple=True,
    default=(0.5, 0.8, 0.9, 0.95),
    help="Fraction of zeros; may be repeated.",
)
@option("--pattern", default="unstructured", help="As in 2:4, block:4x4.")
@option("--threads", type=POSITIVE, default=1)
def linear(
    out: Output,
    shapes: tuple[tuple[int, int], ...],
    tokens: tuple[int, ...],
    sparsities: tuple[float, ...],
    pattern: str,
    threads: int,
) -> None:
    """Dense F.linear against the sparse kernel: ratio, rate, and part of what is possible.

    Both sides run in one process, in turns, and the best time of each counts. "of ceiling" is the
    rate of kept work against the same instructions on rows that never end.
    """
    import torch

    from gossamer.patterns import parse_pattern
    from gossamer.running.bench import bench_linear, ceilings

    fixed = parse_pattern(pattern).fixed_density
    wanted = sparsities if fixed is None else (1 - fixed,)
    torch.set_num_threads(threads)
    cases = [(shape, count, s) for shape in shapes for count in tokens for s in wanted]
    rows = []
    with out.stage("timing layers", total=len(cases)) as stage:
        best = ceilings()
        for shape, count, sparsity in cases:
            rows.append(bench_linear(shape, count, sparsity, pattern))
            stage.advance()
    shown = table(
        "shape",
        "tokens",
        "sparsity",
        "pattern",
        ">dense us",
        ">sparse us",
        ">speed-up",
        ">spread",
        ">dense GFLOP/s",
        ">kept GFLOP/s",
        ">of ceiling",
        rows=(
            (
                f"{row.rows}x{row.columns}",
                f"{row.tokens}",
                f"{row.sparsity:.1%}",
                row.pattern,
                f"{row.dense_us:.0f}",
                f"{row.sparse_us:.0f}",
                f"{row.ratio:.2f}x",
                f"{row.spread:.0%}",
                f"{row.dense_gflops:.0f}",
                f"{row.kept_gflops:.0f}",
                f"{row.ceiling_fraction:.0%}",
            )
            for row in rows
        ),
    )
    first = rows[0]
    legend = (
        f"{first.kernel} kernel, {first.kernels}, {first.threads} thread(s). Ceilings of one"
        f" thread: {best['panel']:.0f} GFLOP/s for its instruction mix, {best['fma']:.0f} for pure"
        " FMAs. spread: how far best times of parts of the run lie apart."
    )
    if doubts := [row.doubt for row in rows if row.doubt]:
        legend += f"\n{len(doubts)} of {len(rows)} rows are of a {doubts[0]}. Do not quote them."
    out.result({"ceilings_gflops": best, "rows": [row.to_dict() for row in rows]}, shown, legend)


bench = CommandGroup(
    "bench",
    commands=[bench_model, linear],
    short_help="Time sparse layers and models against dense ones.",
    help="Time sparse layers and models against dense ones on this machine.",
)
